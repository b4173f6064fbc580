"""Programs as users start them: children that Ctrl-C reaches and that never outlive their test."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

_HEAR_CTRL_C: Final = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
"""A shell's background jobs ignore SIGINT, and so would what they start."""


@contextmanager
def running(
    code: str, *arguments: object, flags: Sequence[str] = (), **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start Python on a piece of code with some arguments; it is killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, *flags, "-c", _HEAR_CTRL_C + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
