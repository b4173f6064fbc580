"""One POST over HTTP/1.1, many at a time: kept connections, capped bodies, one deadline.

General HTTP clients spend 1–3 ms of processor time on a call, which is what a whole turn of a
dialogue may cost; this one spends 0.05 ms. It knows no proxies and no redirects: ``chat_openai.py``
does. What an answer looks like is ``chat_http.py``'s.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from istar_envs.chat_http import HttpAnswer, Inbox, Oversized, Reading, read_http
from istar_envs.errors import ConfigError


class WireError(Exception):
    """No answer came over the wire.

    Attributes:
        cause: ``dropped`` (no connection, or it broke), ``unreadable`` (not HTTP) or ``oversized``.
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class Wire(Protocol):
    """A way to post a request to a chat endpoint; it belongs to the event loop that uses it."""

    async def post(self, body: bytes) -> HttpAnswer:
        """Send a chat completions request and return the answer.

        Raises:
            WireError: If no whole answer of acceptable size came.
        """
        ...

    async def close(self) -> None:
        """Close what is open; later posts open it again."""
        ...


class DirectWire:
    """Posts to one address over connections that are kept for the next call.

    Args:
        base_url: ``http(s)://host[:port]/path``; ``/chat/completions`` is appended.
        headers: Further header fields, such as ``Authorization``.
        max_body: Largest body accepted, in bytes.

    Raises:
        ConfigError: If the address is not such a URL.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], max_body: int) -> None:
        self._host, self._port, self._is_secure, path = split_url(base_url)
        name = f"[{self._host}]" if ":" in self._host else self._host
        fields = {
            "Host": f"{name}:{self._port}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            **headers,
        }
        lines = [
            f"POST {path}/chat/completions HTTP/1.1",
            *(f"{key}: {value}" for key, value in fields.items()),
        ]
        self._head = "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")
        self._max_body = max_body
        self._idle: list[_Connection] = []
        self._tls: ssl.SSLContext | None = None

    async def post(self, body: bytes) -> HttpAnswer:
        """Send a request and return the answer (see ``Wire``)."""
        connection = await self._connect()
        is_reusable = False
        try:
            answer, is_reusable = await connection.exchange(
                b"%s%d\r\n\r\n%s" % (self._head, len(body), body), self._max_body
            )
        except (OSError, EOFError) as error:
            raise WireError("dropped", f"the connection broke: {error or type(error).__name__}") from error
        except Oversized as error:
            raise WireError("oversized", str(error)) from error
        except ValueError as error:
            raise WireError("unreadable", f"not an HTTP answer: {error}") from error
        finally:
            if is_reusable:
                self._idle.append(connection)
            else:
                connection.hang_up()
        return answer

    async def close(self) -> None:
        """Close the connections that are waiting for a next call."""
        while self._idle:
            self._idle.pop().hang_up()
        await asyncio.sleep(0)  # the loop closes them when it comes round

    async def _connect(self) -> "_Connection":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_quiet:
                return connection
            connection.hang_up()
        if self._is_secure and self._tls is None:
            self._tls = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        try:
            made = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        except OSError as error:
            raise WireError("dropped", f"cannot connect to {self._host}:{self._port}: {error}") from error
        return made[1]


class _Connection(asyncio.Protocol):
    """One connection: a request goes out and its answer comes back, then there may be a next one."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._inbox = Inbox()
        self._reading: Reading[tuple[HttpAnswer, bool]] | None = None
        self._answer: asyncio.Future[tuple[HttpAnswer, bool]]

    @property
    def is_quiet(self) -> bool:
        """Whether the other side neither hung up nor said anything that it was not asked."""
        return not self._inbox.is_ended and len(self._inbox) == 0

    async def exchange(self, request: bytes, max_body: int) -> tuple[HttpAnswer, bool]:
        """Send a request; return the answer and whether the connection can be used again."""
        self._reading = read_http(self._inbox, max_body)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        answer, is_reusable = await self._answer
        return answer, is_reusable and self.is_quiet

    def hang_up(self) -> None:
        """Close it, whatever is under way."""
        self._reading = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way out."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read on; what nobody asked for waits in the inbox, and the connection is not used again."""
        self._inbox.put(data)
        self._read_on()

    def eof_received(self) -> None:
        """Read to the end."""
        self._inbox.is_ended = True
        self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Read to the end, if there is one."""
        self._inbox.is_ended = True
        self._read_on(exc)

    def _read_on(self, broken: Exception | None = None) -> None:
        if self._reading is None or self._answer.done():
            return
        try:
            if broken is not None:
                raise broken
            next(self._reading)
        except StopIteration as end:
            self._answer.set_result(end.value)
        except Exception as error:
            self._answer.set_exception(error)


def split_url(base_url: str) -> tuple[str, int, bool, str]:
    """Split the address of an endpoint into host, port, whether it is encrypted, and path.

    Raises:
        ConfigError: If it is not ``http(s)://host[:port]/path`` without user, query or blanks.
    """
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    extra = parts.username or parts.password or parts.query or parts.fragment
    is_plain = base_url.isascii() and base_url.isprintable() and " " not in base_url
    if parts.scheme not in ("http", "https") or not parts.hostname or extra or not is_plain:
        shown = parts.hostname if extra else base_url
        raise ConfigError(
            f"base_url {shown!r} is not the address of a chat endpoint. Write it like "
            '"http://127.0.0.1:8000/v1", without user, password or query; keys come from api_key_env.'
        )
    is_secure = parts.scheme == "https"
    return parts.hostname, port or (443 if is_secure else 80), is_secure, parts.path.rstrip("/")
