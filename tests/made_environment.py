"""Environments of their own for packages that do not fit beside ours."""

import fcntl
import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRL = "trl==1.16.0 accelerate==1.15.0 datasets==5.2.0 pandas psutil jmespath multiprocess dill xxhash".split()
LIBRARIES = {
    "openenv": ["openenv==0.10.0"],
    "trl": ["--no-deps", *TRL],  # torch and transformers are here
    "verifiers": ["verifiers==0.4.0", "uv"],
}
"""What is installed for each, into an environment that sees the packages of this one behind its own."""


def made_by(script: str, name: str) -> Path:
    """Return the interpreter of an environment that a script makes on first use, by one test process.

    Args:
        script: Name of the script, which keeps a complete environment as it is.
        name: Folder in the repository, which ``make clean`` removes.
    """
    folder = ROOT / name
    with _alone(folder):
        command = [ROOT / "scripts" / script, folder]
        subprocess.run(command, check=True, env={**os.environ, "PYTHON": sys.executable}, timeout=3600)
    return folder / "bin/python"


def said_with(library: str, program: Path, *arguments: str | Path, paths: Sequence[Path] = ()) -> Any:
    """Run a program where a library is, made on first use; returns the JSON that it printed last.

    Args:
        library: One of ``LIBRARIES``.
        program: The program.
        arguments: What it gets; the first is the folder that it runs in.
        paths: Further folders that it imports from.
    """
    python = _interpreter(library)
    done = subprocess.run(
        [python, program, *arguments],
        cwd=arguments[0],
        env={
            **os.environ,
            "PATH": os.pathsep.join((str(python.parent), os.environ["PATH"])),  # verifiers calls uv
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def _interpreter(library: str) -> Path:
    folder = ROOT / ".venv-interop" / library
    complete, wanted = folder / "complete", " ".join(LIBRARIES[library])
    python = folder / "bin/python"
    with _alone(folder.parent):
        if not complete.exists() or complete.read_text(encoding="utf-8") != wanted:
            venv.create(folder, clear=True, with_pip=True)
            command = [python, "-m", "pip", "install", "--quiet", "--no-input", *LIBRARIES[library]]
            subprocess.run(command, check=True)
            site = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
            behind = Path(site, "zz_behind.pth")
            behind.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
            complete.write_text(wanted, encoding="utf-8")
    return python


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other test processes out of a folder, which is made if missing."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
