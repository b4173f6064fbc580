"""An event loop whose clock jumps to the next thing that is due: waiting takes no time in tests."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that never sleeps. Its clock starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        poll = self._selector.select

        def select(timeout: float | None = None) -> list[Any]:
            events = poll(0)
            if not events:
                if timeout is None:
                    raise RuntimeError("nothing is due: the test waits for ever")
                self._now += timeout
            return events

        self._selector.select = select

    def time(self) -> float:
        return self._now


def run_virtual(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run a coroutine; return its result and how many seconds it would have taken."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work), loop.time()
    finally:
        loop.close()
