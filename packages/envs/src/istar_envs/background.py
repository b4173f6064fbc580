"""Asynchronous work for callers that are not asynchronous: one event loop in a thread of its own.

Every synchronous call that waits for a network goes through ``run``, so calls from many threads
share one loop, its connections and its limits.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_running: dict[int, asyncio.AbstractEventLoop] = {}


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for its result.

    It may be called from any thread, also while another event loop runs there. A process made by
    ``fork`` starts a loop of its own.

    Args:
        work: What to run; it is cancelled if the waiting thread is interrupted.

    Raises:
        RuntimeError: If it is called from the background loop itself, which would wait forever.
    """
    loop = _loop()
    if asyncio._get_running_loop() is loop:
        work.close()
        raise RuntimeError("run() was called on the background loop: await the coroutine instead")
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    finally:
        future.cancel()


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        pid = os.getpid()
        if pid not in _running:
            _running.clear()
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="istar-background", daemon=True).start()
            _running[pid] = loop
        return _running[pid]
