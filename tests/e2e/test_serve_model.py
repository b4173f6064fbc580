"""The command that serves a model, as a user runs it."""

import os
import signal

import pytest

from child_process import running
from istar_envs.chat import ChatClient

pytestmark = pytest.mark.e2e


def test_a_served_model_answers_until_it_is_interrupted(tiny_folder):
    start = "import sys; from istar_trainer.cli import main; main(sys.argv[1:])"
    words = ("serve-model", tiny_folder, "--port", 0)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with running(start, *words, flags=("-W", "error"), env=env) as process:
        name, _, rest = process.stdout.readline().partition(" at ")
        client = ChatClient(rest.partition(";")[0], name)
        reply = client.complete([{"role": "user", "content": "hello"}], max_tokens=3)
        client.close()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=600)
    assert reply.model == tiny_folder.name
    assert (process.returncode, out, errors) == (0, "", "")
