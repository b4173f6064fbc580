"""Stops a process that makes no progress, and says who waited where.

Each process notes in the launcher's key-value store which collective it is in, or since when it has
been busy on its own. A small thread watches the clock and the stop signal: both can come while the
main thread waits inside a library and runs no Python.
"""

import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

EXIT_CODE: Final = 3
"""Exit code of a process that its watchdog ended."""
_TICK_S: Final = 0.5
_LOCKED_S: Final = 30.0
"""How much later the interpreter's own timer fires, should even this thread not run."""


class Watchdog:
    """Notes where this process is and ends it when it stays there too long; use it as a context manager.

    Args:
        store: Where the processes see each other's notes.
        rank: Number of this process.
        num_ranks: How many there are.
        folder: Where stacks go: ``rank-N.txt``.
        limit_s: Seconds without progress after which the process is ended.
    """

    def __init__(self, store: Store, rank: int, num_ranks: int, folder: Path, limit_s: float) -> None:
        self._store, self._rank, self._num_ranks = store, rank, num_ranks
        self._folder, self._limit_s = folder, limit_s
        self._since = time.monotonic()
        self._note = "the start"
        self._done = threading.Event()
        self._pipe = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch, and to hear the signal by which launchers stop processes."""
        for end in self._pipe:
            os.set_blocking(end, False)
        self._old_fd = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._old_handler = signal.signal(signal.SIGTERM, _stop)
        self._tell("busy since the start")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Watch no more."""
        self._done.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        signal.set_wakeup_fd(self._old_fd)
        signal.signal(signal.SIGTERM, self._old_handler)
        for end in self._pipe:
            os.close(end)

    def enter(self, place: str) -> None:
        """Note that this process is where it needs the others."""
        self._tell(f'in "{place}"')

    def leave(self, place: str) -> None:
        """Note that this process has gone on from there on its own."""
        self._tell(f'busy since "{place}"')

    def report(self, what: str) -> str:
        """Say what happened and where all processes were last seen, and dump this one's stacks.

        Args:
            what: What happened to this process.
        """
        path = self._folder / f"rank-{self._rank}.txt"
        lines = [f"rank {self._rank} of {self._num_ranks} {what}."]
        lines += [f"  rank {rank}: {self._seen(rank)}" for rank in range(self._num_ranks)]
        lines.append(
            f"Look first at a rank that was elsewhere than the others. Stacks of rank {self._rank}: {path}. "
            "The last checkpoint is intact; go on with --resume."
        )
        text = "\n".join(lines)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as out:
                out.write(text + "\n\n")
                out.flush()
                faulthandler.dump_traceback(out, all_threads=True)
        return text

    def _tell(self, note: str) -> None:
        self._since, self._note = time.monotonic(), note
        self._store.set(str(self._rank), f"{time.time()} {note}")

    def _seen(self, rank: int) -> str:
        if rank == self._rank:
            return f"{self._note}, for {time.monotonic() - self._since:.0f} s"
        try:
            if not self._store.check([str(rank)]):
                return "never seen"
            since, note = self._store.get(str(rank)).decode().split(" ", 1)
        except (DistError, RuntimeError) as error:
            return f"unknown ({type(error).__name__})"
        return f"{note}, for {time.time() - float(since):.0f} s"

    def _watch(self) -> None:
        while not self._done.is_set():
            faulthandler.dump_traceback_later(self._limit_s + _LOCKED_S, exit=True)
            heard, _, _ = select.select([self._pipe[0]], [], [], _TICK_S)
            if heard and signal.SIGTERM in os.read(self._pipe[0], 64):
                self._end("was told to stop (SIGTERM)", 128 + signal.SIGTERM)
            if time.monotonic() - self._since > self._limit_s:
                self._end(
                    f"made no progress for {self._limit_s:g} s (learner.watchdog_s) and ends the run",
                    EXIT_CODE,
                )

    def _end(self, what: str, code: int) -> None:
        sys.stderr.write(f"istar: {self.report(what)}\n")
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        sys.stderr.flush()
        os._exit(code)


def _stop(number: int, frame: FrameType | None) -> None:
    """Leave the ending to the watchdog's thread, which has heard the signal too."""
