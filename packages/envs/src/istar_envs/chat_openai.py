"""The way to a chat endpoint through the ``openai`` package: proxies, certificates, its own rules.

Slower than ``chat_wire.DirectWire`` and needed where that one does not reach.
"""

import importlib.util
import json
from typing import Any

from istar_envs.chat_http import HttpAnswer
from istar_envs.chat_wire import WireError
from istar_envs.errors import EnvError


class OpenAIWire:
    """Posts through ``openai.AsyncOpenAI``, which repeats nothing by itself here.

    Args:
        base_url: Address of the endpoint up to its version.
        key: API key, or None.
        max_body: Largest body accepted, in bytes.

    Raises:
        EnvError: If the package is not installed.
    """

    def __init__(self, base_url: str, key: str | None, max_body: int) -> None:
        self.require()
        from openai import AsyncOpenAI

        self._client = AsyncOpenAI(base_url=base_url, api_key=key or "none", max_retries=0, timeout=None)
        self._max_body = max_body

    @staticmethod
    def require() -> None:
        """Refuse to go on without the package.

        Raises:
            EnvError: If it is not installed.
        """
        if importlib.util.find_spec("openai") is None:
            raise EnvError(
                'transport="openai" needs the package openai. Run: pip install "istar-envs[llm]", '
                'or use transport="direct".'
            )

    async def post(self, body: bytes) -> HttpAnswer:
        """Send a chat completions request and return the answer (see ``Wire``)."""
        import openai

        fields: dict[str, Any] = json.loads(body)
        named = {"model": fields.pop("model"), "messages": fields.pop("messages")}
        try:
            create = self._client.chat.completions.with_streaming_response.create
            async with create(**named, extra_body=fields) as response:
                return HttpAnswer(response.status_code, _lower(response.headers), await self._read(response))
        except openai.APIStatusError as error:
            return HttpAnswer(error.status_code, _lower(error.response.headers), error.response.content)
        except openai.APITimeoutError as error:
            raise TimeoutError from error
        except WireError:
            raise
        except Exception as error:  # the package lets the errors of its own HTTP client through
            raise WireError("dropped", f"the connection broke: {error.__cause__ or error}") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _read(self, response: Any) -> bytes:
        body = bytearray()
        async for part in response.iter_bytes():
            body += part
            if len(body) > self._max_body:
                raise WireError("oversized", f"the body has over {self._max_body} bytes")
        return bytes(body)


def _lower(headers: Any) -> dict[str, str]:
    return {str(key).lower(): str(value) for key, value in headers.items()}
