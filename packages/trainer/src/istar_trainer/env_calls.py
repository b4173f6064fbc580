"""Calls of environments that may wait: for a server, for the model that speaks as a partner, for a judge."""

import math
from collections.abc import Callable, Hashable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

_T = TypeVar("_T", bound=Hashable)


class EnvCalls(Generic[_T]):
    """At most one running call for each caller, in this thread or on a bounded pool.

    Args:
        num_threads: Calls that may wait at a time; with 0 each call is made at once, in this thread.
        min_ready_frac: Share of the callers that ``ended`` waits for.
    """

    def __init__(self, num_threads: int, min_ready_frac: float) -> None:
        self._pool = ThreadPoolExecutor(num_threads, "istar-env") if num_threads else None
        self._min_ready_frac = min_ready_frac
        self._open: dict[_T, Future[None]] = {}

    def start(self, caller: _T, action: Callable[[], None]) -> None:
        """Make a call.

        Args:
            caller: Whose call it is.
            action: The call; whatever it raises is raised here, or by ``ended`` if it has a thread.
        """
        if self._pool is not None:
            self._open[caller] = self._pool.submit(action)
            return
        action()
        self._open[caller] = Future()
        self._open[caller].set_result(None)

    def ended(self) -> list[_T]:
        """Wait until enough calls have ended, and forget them.

        Returns:
            Their callers in the order in which they called; empty only if there is no call.
        """
        enough = math.ceil(self._min_ready_frac * len(self._open))
        while len(running := [f for f in self._open.values() if not f.done()]) > len(self._open) - enough:
            wait(running, return_when=FIRST_COMPLETED)
        callers = [caller for caller, future in self._open.items() if future.done()]
        for caller in callers:
            self._open.pop(caller).result()
        return callers

    def close(self) -> None:
        """Wait for the calls that are running, drop those that have not begun, and end the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._open.clear()
