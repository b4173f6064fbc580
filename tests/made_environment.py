"""Environments of their own for packages that do not fit beside ours."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def made_by(script: str, name: str) -> Path:
    """Return the interpreter of an environment that a script makes on first use, by one test process.

    Args:
        script: Name of the script, which keeps a complete environment as it is.
        name: Folder in the repository, which ``make clean`` removes.
    """
    folder = ROOT / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [ROOT / "scripts" / script, folder]
        subprocess.run(command, check=True, env={**os.environ, "PYTHON": sys.executable}, timeout=3600)
    return folder / "bin/python"
