"""Run the command line in a process whose machine fails it when a chosen function is called the n-th time.

    python fault_switch.py fill FOLDER istar_trainer.checkpoint:seal:2 train CONFIG …
    python fault_switch.py starve MIB istar_trainer.update:_accumulate:3 train CONFIG …

``fill`` leaves no room on the file system of a folder, ``starve`` no more memory than so many MiB until
the call returns. Functions are named as for ``kill_switch.py``.
"""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kill_switch import arm

from istar_trainer.cli import main


@contextmanager
def fill(folder: str) -> Iterator[None]:
    """Write a file until the disk is full."""
    with (Path(folder) / "ballast").open("wb", buffering=0) as out:
        try:
            while out.write(bytes(4096)):
                continue
        except OSError:
            pass
    yield


@contextmanager
def starve(mib: str) -> Iterator[None]:
    """Let this process have no more memory than it has and so many MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + int(mib) * 2**20
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


if __name__ == "__main__":
    action, argument, target = sys.argv[1:4]
    arm(target, partial({"fill": fill, "starve": starve}[action], argument))
    main(sys.argv[4:])
