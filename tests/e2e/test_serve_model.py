"""The command that serves a model, as a user runs it."""

import os
import signal
import subprocess
import sys

import pytest

from istar_envs.chat import ChatClient

pytestmark = pytest.mark.e2e


def test_a_served_model_answers_until_it_is_interrupted(tiny_folder):
    start = "import sys; from istar_trainer.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-W", "error", "-c", start, "serve-model", str(tiny_folder), "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        name, _, rest = process.stdout.readline().partition(" at ")
        client = ChatClient(rest.partition(";")[0], name)
        reply = client.complete([{"role": "user", "content": "hello"}], max_tokens=3)
        client.close()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert reply.model == tiny_folder.name
    assert (process.returncode, out, errors) == (0, "", "")
