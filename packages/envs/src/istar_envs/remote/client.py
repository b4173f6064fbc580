"""Requests to a server of environments, repeated until they are answered.

Every request may be repeated: calls are numbered, sessions are opened under a key, and the rest changes
nothing. So a broken connection, a busy server or one that is being restarted costs time and nothing else.
"""

import http.client
import json
import random
import secrets
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from istar_envs import errors
from istar_envs.errors import ConfigError, EnvError, ServerUnreachable, SessionLost
from istar_envs.wire.values import dumps, loads

_RETRIED: Final = frozenset({429, 502, 503, 504})
_LONGEST_WAIT_S: Final = 1.0
_SHOWN: Final = 200
_ERRORS: Final[Mapping[str, type[errors.IstarError]]] = {
    kind.__name__: kind
    for kind in (
        errors.ConfigError,
        errors.EnvError,
        errors.UnknownEnv,
        errors.ResetNeeded,
        errors.MissingAsset,
        errors.LevelFormatError,
        errors.LevelGenerationFailed,
        errors.SessionLost,
    )
}


class _NoAnswer(Exception):
    """A request was not answered for good; it may be repeated."""


class _Connections:
    """Connections that wait for their next request; those that nobody can use any more are closed."""

    def __init__(self) -> None:
        self._idle: deque[http.client.HTTPConnection] = deque()

    def take(self) -> http.client.HTTPConnection | None:
        """Return one that waits, if there is any."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def give(self, connection: http.client.HTTPConnection) -> None:
        """Let one wait."""
        self._idle.append(connection)

    def close(self) -> None:
        """Close all that wait."""
        while (connection := self.take()) is not None:
            connection.close()

    def __del__(self) -> None:
        self.close()


class Client:
    """Speaks with one server; threads may use it at the same time.

    Args:
        url: Address of the server, such as ``http://127.0.0.1:8700``.
        token: What the server asks for, if anything.
        timeout_s: Seconds to wait for one answer.
        patience_s: Seconds during which a request that fails is repeated.

    Attributes:
        url: As given, without a slash at the end.

    Raises:
        ConfigError: If the address is no http or https address.
    """

    def __init__(
        self, url: str, *, token: str = "", timeout_s: float = 60.0, patience_s: float = 30.0
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"url {url!r} is no address of a server (istar/Remote-v0, option url). Write it as "
                "http://127.0.0.1:8700."
            )
        self.url = url.rstrip("/")
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._place = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._headers = {"Content-Type": "application/json", "X-Istar-Client": secrets.token_hex(8)}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._idle = _Connections()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        opened_on: str | None = None,
        patience_s: float | None = None,
    ) -> Any:
        """Send a request until it is answered.

        Args:
            method: HTTP method.
            path: Below the address of the server.
            body: What to send as JSON; None sends nothing.
            opened_on: Name of the server that the session was opened on.
            patience_s: Seconds of repeating, if not the client's own.

        Returns:
            What the answer holds; None if it is empty.

        Raises:
            ServerUnreachable: If there was no answer, or none of such a server.
            EnvError: What the server says went wrong.
        """
        data = None if body is None else dumps(body).encode()
        wait_s, deadline = 0.0, None
        while True:
            try:
                answer, is_good = self._answer(method, self._prefix + path, data)
                if is_good:
                    return answer
                raise error_of(answer, opened_on)
            except _NoAnswer as error:
                now = time.monotonic()
                if deadline is None:
                    deadline = now + (self._patience_s if patience_s is None else patience_s)
                if now + wait_s >= deadline:
                    raise ServerUnreachable(
                        f"no answer from {self.url}: {error} (istar/Remote-v0, option url). Start the server "
                        "with: istar-envs serve --all, or correct the address."
                    ) from error
                time.sleep(wait_s * (0.5 + random.SystemRandom().random()))
                wait_s = min(max(2 * wait_s, 0.02), _LONGEST_WAIT_S)

    def close(self) -> None:
        """Close the connections; the next call opens a new one."""
        self._idle.close()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_idle"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._idle = _Connections()

    def _answer(self, method: str, path: str, data: bytes | None) -> tuple[Any, bool]:
        """Send a request once; return what the answer holds, and whether it is no problem document."""
        status, kind, content = self._exchange(method, path, data)
        if status in _RETRIED:
            raise _NoAnswer(f"{status} {_detail(content)}")
        try:
            answer = loads(content) if content else None
        except ValueError as error:
            raise self._stranger(status, content) from error
        if status >= 400 and kind != "application/problem+json":
            raise self._stranger(status, content)
        return answer, status < 400

    def _exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, str, bytes]:
        connection = self._idle.take() or self._kind(self._place, timeout=self._timeout_s)
        try:
            connection.request(method, path, data, self._headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _NoAnswer(str(error) or type(error).__name__) from error
        if response.will_close:
            connection.close()
        else:
            self._idle.give(connection)
        return response.status, response.headers.get_content_type(), content

    def _stranger(self, status: int, content: bytes) -> ServerUnreachable:
        return ServerUnreachable(
            f"{self.url} answers {status} with {content[:_SHOWN]!r}, which no server of environments does "
            "(istar/Remote-v0, option url). Correct the address."
        )


def error_of(problem: Mapping[str, Any], opened_on: str | None = None) -> errors.IstarError:
    """Return the error that a problem document tells of.

    Args:
        problem: The document.
        opened_on: Name of the server that the session was opened on.
    """
    kind = _ERRORS.get(str(problem.get("error")), EnvError)
    if kind is SessionLost and opened_on is not None and problem.get("server") != opened_on:
        return SessionLost(
            "the server was restarted, and its sessions are lost with it (istar/Remote-v0). Call reset() to "
            "start an episode in a new one."
        )
    return kind(str(problem.get("detail", problem)))


def _detail(content: bytes) -> str:
    """Return what a problem document says, if it is one."""
    try:
        return str(json.loads(content)["detail"])
    except (ValueError, KeyError, TypeError):
        return repr(content[:_SHOWN])
