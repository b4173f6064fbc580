"""One HTTP/1.1 answer out of bytes that come bit by bit: head, then a body of known, chunked or open length.

Pure: no socket and no clock. The connections are ``chat_wire.py``'s.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

_T = TypeVar("_T")
Reading = Generator[None, None, _T]
"""Asks for more bytes at each ``yield``, then returns what it read."""

_LINE_LIMIT: Final = 65_536
_END: Final = b"\r\n"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP answer with its whole body; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Oversized(ValueError):
    """A body is larger than what is accepted."""


class Inbox:
    """Bytes that came and were not read yet.

    Attributes:
        is_ended: Whether no more will come.
    """

    def __init__(self) -> None:
        self.is_ended = False
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes)

    def put(self, data: bytes) -> None:
        """Add bytes that came."""
        self._bytes += data

    def exactly(self, size: int) -> Reading[bytes]:
        """Read so many bytes; raises EOFError if fewer come."""
        while len(self._bytes) < size:
            yield from self._more()
        return self._take(size)

    def until(self, mark: bytes) -> Reading[bytes]:
        """Read up to and with a mark.

        Raises:
            EOFError: If it does not come.
            ValueError: If it does not come soon.
        """
        searched = 0
        while (place := self._bytes.find(mark, searched)) < 0:
            searched = max(0, len(self._bytes) - len(mark) + 1)
            if searched > _LINE_LIMIT:
                raise ValueError(f"no end of line within {_LINE_LIMIT} bytes")
            yield from self._more()
        return self._take(place + len(mark))

    def rest(self, max_size: int) -> Reading[bytes]:
        """Read all that comes; raises Oversized if it is more than ``max_size`` bytes."""
        while True:
            _check_size(len(self._bytes), max_size)
            if self.is_ended:
                return self._take(len(self._bytes))
            yield

    def _more(self) -> Reading[None]:
        if self.is_ended:
            raise EOFError("the other side hung up")
        yield

    def _take(self, size: int) -> bytes:
        taken = bytes(self._bytes[:size])
        del self._bytes[:size]
        return taken


def read_http(inbox: Inbox, max_body: int) -> Reading[tuple[HttpAnswer, bool]]:
    """Read one answer, and say whether the connection can be used again.

    Args:
        inbox: Where the bytes come in; go on when there are more of them or they have ended.
        max_body: Largest body accepted, in bytes.

    Raises:
        Oversized: If the body is larger.
        ValueError: If it is not HTTP.
        EOFError: If the bytes end early.
    """
    status = 100
    while 100 <= status < 200:
        head = yield from inbox.until(b"\r\n\r\n")
        version, status, headers = _parse_head(head)
    if headers.get("content-encoding", "identity") != "identity":
        raise ValueError(f"content encoding {headers['content-encoding'][:40]!r} was not asked for")
    is_reusable = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = yield from _read_chunks(inbox, max_body)
    elif "content-length" in headers:
        body = yield from inbox.exactly(_size(headers["content-length"], 10, max_body))
    else:
        body, is_reusable = (yield from inbox.rest(max_body)), False
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


def _read_chunks(inbox: Inbox, max_body: int) -> Reading[bytes]:
    body = bytearray()
    while True:
        line = yield from inbox.until(_END)
        size = _size(line.split(b";")[0].strip().decode("latin-1"), 16, max_body - len(body))
        if size == 0:
            break
        body += yield from inbox.exactly(size)
        if (yield from inbox.exactly(2)) != _END:
            raise ValueError("a chunk without an end")
    while (yield from inbox.until(_END)) != _END:
        pass
    return bytes(body)


def _size(text: str, base: int, most: int) -> int:
    if not text.isascii() or not text.isalnum() or len(text) > 16:
        raise ValueError(f"length {text[:40]!r}")
    size = int(text, base)
    _check_size(size, most)
    return size


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise Oversized(f"the body has at least {size} bytes, {most} are accepted")
