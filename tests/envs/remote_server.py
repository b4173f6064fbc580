"""A server of environments in a process of its own, for the tests."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from free_ports import free_port

PATIENCE_S = 300.0
"""For what happens within seconds on a machine that has time."""
_CODE = "import sys; from istar_envs.cli import main; main(sys.argv[1:])"


@dataclass
class ServerProcess:
    """A running `istar-envs serve`."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def terminate(self) -> int:
        """Send SIGTERM and wait for the end."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE_S)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.process.kill()
        self.process.wait(timeout=PATIENCE_S)

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of the log that are complete."""
        *lines, _ = self.log.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines if line[:1] == "{"]

    def wait_for(self, event: str) -> None:
        """Wait until the log tells of an event."""
        end = time.monotonic() + PATIENCE_S
        while not any(told["event"] == event for told in self.events()):
            assert self.process.poll() is None, self.log.read_text(encoding="utf-8")[-2000:]
            assert time.monotonic() < end, f"the log does not tell of {event!r}"
            time.sleep(0.05)


@contextmanager
def serving(log: Path, *arguments: object) -> Iterator[ServerProcess]:
    """Start `istar-envs serve` and wait until it is ready; it is killed at the end if it still runs."""
    port = free_port() if "--port" not in arguments else arguments[arguments.index("--port") + 1]
    words = [str(word) for word in arguments]
    if "--port" not in words:
        words += ["--port", str(port)]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE, "serve", *words],
            stdout=subprocess.DEVNULL,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        server = ServerProcess(process, f"http://127.0.0.1:{port}", log)
        _wait_until_ready(server)
        yield server
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(server: ServerProcess) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.url}/readyz", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise AssertionError(f"the server did not become ready: {server.log.read_text(encoding='utf-8')[-2000:]}")
