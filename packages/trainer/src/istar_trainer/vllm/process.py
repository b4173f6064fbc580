"""A vLLM server as a child process: started, watched, ended with all its workers, and its log read."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from istar_envs.errors import ConfigError

_SERVE = Path(__file__).with_name("served") / "serve.py"
_ALWAYS = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1"}
"""New weights and adapters while it runs; nothing is told to anyone."""
_CAUSE = re.compile(r"\b\w*(?:Error|Exception): .+")
_TAIL_LINES = 15
_PORTS = range(10_000, 32_000)
"""Below those that Linux and other systems deal out."""


class ServerProcess:
    """One server process.

    Args:
        python: Interpreter that has vLLM; None for this one.
        flags: Arguments of the server.
        env: Environment variables besides the present ones.
        log: File that its output is appended to.

    Raises:
        ConfigError: If the interpreter cannot be run.
    """

    def __init__(
        self, python: Path | None, flags: Sequence[str], env: Mapping[str, str], *, log: Path
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        command = [str(python or sys.executable), "-P", str(_SERVE), *flags]
        try:
            with log.open("ab") as output:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **_ALWAYS, **env},
                    start_new_session=True,
                )
        except OSError as error:
            raise ConfigError(
                f"cannot run {command[0]} (sampler.python): {error.strerror}. Name the interpreter of an "
                "environment with vLLM; scripts/make_vllm_venv.sh makes one."
            ) from error

    @property
    def pid(self) -> int:
        """Process id of the server, which leads its group."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._child.poll()

    def kill(self) -> None:
        """End the server and its workers, and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        if self._child.stdin is not None:
            self._child.stdin.close()

    def tail(self) -> str:
        """The first error in its log, and the last lines."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            text = file.read().decode("utf-8", errors="replace")
        cause = _CAUSE.search(text)
        last = "\n".join(f"  {line[:300]}" for line in text.splitlines()[-_TAIL_LINES:])
        first = f" First error: {cause.group()[:500]}" if cause else ""
        return f"Its log is {self._log}.{first} Last lines:\n{last}"


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on, and that the kernel hands to nobody.

    vLLM binds it seconds later; one of the range that the kernel deals out could be gone by then.
    """
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise ConfigError(f"ports {_PORTS.start} to {_PORTS.stop - 1} of this machine are all taken; free some.")
