"""Ports for programs that must be told where to listen, and addresses at which nobody listens."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

_FIRST: Final = 10_000
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_turns = count(os.getpid() * 97)
"""Test processes begin at places of their own, and none uses a port again soon."""


def free_port() -> int:
    """Return a port of this machine that nobody listens on and that the kernel hands to nobody.

    Whoever binds or connects without naming a port is given one of the range that the kernel keeps for that,
    also one that a test has chosen and its program has not bound yet. This one lies below that range.
    """
    size = int(_RANGE.read_text().split()[0]) - _FIRST if _RANGE.exists() else 0
    for turn in _turns:
        port = _FIRST + turn % size if size > 0 else 0
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AssertionError("there is always another turn")


@contextmanager
def refusing_address() -> Iterator[str]:
    """An address of this machine that refuses connections: bound, so that nobody else listens there."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
