"""One POST over HTTP/1.1, many at a time: kept connections, capped bodies, one deadline.

General HTTP clients spend 1–3 ms of processor time on a call, which is what a whole turn of a
dialogue may cost; this one spends 0.1 ms. It knows no proxies and no redirects: ``chat_openai.py``
does.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

from istar_envs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP answer with its whole body; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


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


_HEAD_LIMIT: Final = 65_536
_CHUNK: Final = 65_536
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


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
        reader, writer = connection
        is_reusable = False
        try:
            writer.write(b"%s%d\r\n\r\n%s" % (self._head, len(body), body))
            await writer.drain()
            answer, is_reusable = await _read_answer(reader, self._max_body)
        except (OSError, EOFError) as error:
            raise WireError("dropped", f"the connection broke: {error or type(error).__name__}") from error
        except (ValueError, asyncio.LimitOverrunError) as error:
            raise WireError("unreadable", f"not an HTTP answer: {error}") from error
        finally:
            if is_reusable:
                self._idle.append(connection)
            else:
                writer.close()
        return answer

    async def close(self) -> None:
        """Close the connections that are waiting for a next call."""
        while self._idle:
            _, writer = self._idle.pop()
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def _connect(self) -> _Connection:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        if self._is_secure and self._tls is None:
            self._tls = ssl.create_default_context()
        try:
            return await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_HEAD_LIMIT)
        except OSError as error:
            raise WireError("dropped", f"cannot connect to {self._host}:{self._port}: {error}") from error


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


async def _read_answer(reader: asyncio.StreamReader, max_body: int) -> tuple[HttpAnswer, bool]:
    """Read one answer, and say whether the connection can be used again.

    Raises:
        WireError: If the body is larger than ``max_body``.
        ValueError: If it is not HTTP.
        EOFError: If the connection ended early.
    """
    status = 100
    while 100 <= status < 200:
        version, status, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
    if headers.get("content-encoding", "identity") != "identity":
        raise ValueError(f"content encoding {headers['content-encoding'][:40]!r} was not asked for")
    is_reusable = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader, max_body)
    elif "content-length" in headers:
        size = _size(headers["content-length"], 10, max_body)
        body = await reader.readexactly(size)
    else:
        body, is_reusable = await _read_rest(reader, max_body), False
    return HttpAnswer(status, headers, body), is_reusable


def _parse_head(head: bytes) -> tuple[str, int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit() and len(code) == 3):
        raise ValueError(f"status line {first[:40]!r}")
    headers = {}
    for line in filter(None, lines):
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"header line {line[:40]!r}")
        headers[name.strip().lower()] = value.strip()
    return version, int(code), headers


async def _read_chunks(reader: asyncio.StreamReader, max_body: int) -> bytes:
    body = bytearray()
    while True:
        line = await reader.readuntil(b"\r\n")
        size = _size(line.split(b";")[0].strip().decode("latin-1"), 16, max_body - len(body))
        if size == 0:
            break
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk without an end")
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return bytes(body)


async def _read_rest(reader: asyncio.StreamReader, max_body: int) -> bytes:
    body = bytearray()
    while part := await reader.read(_CHUNK):
        body += part
        _check_size(len(body), max_body)
    return bytes(body)


def _size(text: str, base: int, most: int) -> int:
    if not text.isascii() or not text.isalnum() or len(text) > 16:
        raise ValueError(f"length {text[:40]!r}")
    size = int(text, base)
    _check_size(size, most)
    return size


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise WireError("oversized", f"the body has at least {size} bytes, {most} are accepted")
