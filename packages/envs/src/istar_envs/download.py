"""Download one file over HTTP, patiently: interrupted transfers go on where they stopped.

Whether the content is right is for the caller to check. Only the standard library is needed, so
proxies are taken from the usual environment variables.
"""

import http.client
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are here, and all bytes if the server tells."""

_BLOCK = 1 << 18
_TIMEOUT_S = 30.0
_PAUSES_S = (0.5, 1.0, 2.0)
"""Waits before the second try and those after it."""


class NoAnswer(Exception):
    """An address did not give the file.

    Attributes:
        is_final: Whether trying again is useless.
    """

    def __init__(self, reason: object, *, is_final: bool = False) -> None:
        super().__init__(str(reason))
        self.is_final = is_final


def download(url: str, part: Path, progress: Progress) -> None:
    """Complete a file that is partly there, with a few tries.

    Args:
        url: Address, http or https.
        part: File to append to, or to make. If the server cannot send a rest, it starts anew.
        progress: Told about every block that arrives.

    Raises:
        NoAnswer: If the address does not give the file; what came stays in ``part``.
        OSError: If ``part`` cannot be written.
    """
    for pause in _PAUSES_S:
        try:
            return _receive(url, part, progress)
        except NoAnswer as error:
            if error.is_final:
                raise
            time.sleep(pause)
    return _receive(url, part, progress)


def _receive(url: str, part: Path, progress: Progress) -> None:
    """Append to ``part`` what it lacks; start anew if the server sends the whole file."""
    start = part.stat().st_size if part.exists() else 0
    with _open(url, start, part) as response:
        start = start if response.status == http.client.PARTIAL_CONTENT else 0
        total = None if response.length is None else start + response.length
        with part.open("ab" if start else "wb") as out:
            for block in _blocks(response):
                out.write(block)
                progress(out.tell(), total)
            done = out.tell()
    if total is not None and done < total:
        raise NoAnswer(f"the connection broke after {done} of {total} bytes")


def _open(url: str, start: int, part: Path) -> http.client.HTTPResponse:
    headers = {"User-Agent": "istar-envs", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        request = urllib.request.Request(url, headers=headers)
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # the part is longer than the file
            part.unlink(missing_ok=True)
        is_final = error.code < 500 and error.code not in (408, 416, 429)
        raise NoAnswer(f"the server answers {error.code} {error.reason}", is_final=is_final) from error
    except urllib.error.URLError as error:
        is_final = isinstance(error.reason, socket.gaierror)
        raise NoAnswer(error.reason, is_final=is_final) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(error, is_final=isinstance(error, ValueError)) from error
    return response


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Read to the end; every fault of the network becomes ``NoAnswer``."""
    while True:
        try:
            block = response.read(_BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"the connection broke: {error}") from error
        if not block:
            return
        yield block
