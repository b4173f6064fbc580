"""Run the command line in a process that dies by SIGKILL when a chosen function is called the n-th time.

    python kill_switch.py istar_trainer.train:update_policy:3 train CONFIG …

The function is replaced where it is looked up; ``module:Class.method:n`` works too.
"""

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from istar_trainer.cli import main


@contextmanager
def death() -> Iterator[None]:
    """Die at once."""
    os.kill(os.getpid(), signal.SIGKILL)
    yield


def arm(target: str, fault: Callable[[], AbstractContextManager[None]] = death) -> None:
    """Replace a function by one whose n-th call happens within a fault."""
    module, path, count = target.split(":")
    *parents, name = path.split(".")
    owner = importlib.import_module(module)
    for parent in parents:
        owner = getattr(owner, parent)
    original, calls = getattr(owner, name), []

    def counted(*args, **options):
        calls.append(name)
        if len(calls) != int(count):
            return original(*args, **options)
        with fault():
            return original(*args, **options)

    setattr(owner, name, counted)


if __name__ == "__main__":
    arm(sys.argv[1])
    main(sys.argv[2:])
