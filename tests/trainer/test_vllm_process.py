"""A server as a child process: its environment, its end with all its workers, its log."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from istar_envs.errors import ConfigError
from istar_trainer.errors import SamplerFailed
from istar_trainer.sampler import Request
from istar_trainer.vllm.files import FileTransfer
from istar_trainer.vllm.process import ServerProcess
from istar_trainer.vllm.sampler import VllmSampler
from istar_trainer.vllm.server import VllmServer

SCRIPT = """
import json, os, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
names = ["VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "EXTRA"]
print(json.dumps([worker.pid, sys.argv[1:], [os.environ[name] for name in names]]), flush=True)
time.sleep(600)
"""


@pytest.fixture
def package(tmp_path) -> Path:
    """A folder in which ``vllm.entrypoints.openai.api_server`` is a script that starts a worker and waits."""
    folder = tmp_path / "packages"
    place = folder / "vllm/entrypoints/openai"
    place.mkdir(parents=True)
    for parent in (place, *place.parents[:2]):
        (parent / "__init__.py").touch()
    (place / "api_server.py").write_text(SCRIPT)
    return folder


@pytest.fixture
def process(package, tmp_path) -> Iterator[ServerProcess]:
    env = {"PYTHONPATH": str(package), "EXTRA": "7"}
    process = ServerProcess(None, ["--port", "1"], env, log=tmp_path / "vllm.log")
    yield process
    process.kill()


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def said(log: Path) -> list:
    wait_for(lambda: log.read_text().endswith("\n"))
    return eval(log.read_text())


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_the_server_gets_its_flags_and_may_change_weights(process, tmp_path):
    _, flags, env = said(tmp_path / "vllm.log")
    assert flags == ["--port", "1"]
    assert env == ["1", "1", "7"]
    assert process.exit_code is None


def test_no_worker_outlives_its_server(process, tmp_path):
    worker = said(tmp_path / "vllm.log")[0]
    os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: process.exit_code == -signal.SIGKILL)
    assert not is_gone(worker)
    process.kill()
    wait_for(lambda: is_gone(worker))


def test_server_and_worker_end_with_the_trainer_however_it_ends(package, tmp_path):
    log = tmp_path / "vllm.log"
    trainer = f"""
import pathlib, time
from istar_trainer.vllm.process import ServerProcess
env = {{"PYTHONPATH": {str(package)!r}, "EXTRA": ""}}
server = ServerProcess(None, [], env, log=pathlib.Path({str(log)!r}))
print(server.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", trainer], stdout=subprocess.PIPE, text=True)
    server = int(parent.stdout.readline())
    worker = said(log)[0]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: is_gone(server) and is_gone(worker))


def test_the_servers_workers_find_the_receiver_of_weights_and_no_other_module_of_ours_in_their_way(
    package, tmp_path
):
    log = tmp_path / "vllm.log"
    find = (
        "import importlib.util as i; print([i.find_spec(n) is not None for n in ('istar_receiver', 'wire')])"
    )
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-P', '-c', {find!r}])"
    (package / "vllm/entrypoints/openai/api_server.py").write_text(script)
    process = ServerProcess(None, [], {"PYTHONPATH": str(package)}, log=log)
    assert said(log) == [True, False]
    process.kill()


def test_a_server_that_cannot_start_says_why(tmp_path):
    log = tmp_path / "run" / "vllm.log"

    def start(flags: list[str]) -> ServerProcess:
        return ServerProcess(None, flags, {}, log=log)

    server = VllmServer(
        lambda model: {},
        start_process=start,
        pixels=torch.float32,
        concurrency=1,
        start_timeout_s=60,
        request_timeout_s=5,
    )
    settings = {"eos_token_id": 2, "max_new_tokens": 4, "probe_band": 0.1, "max_restarts": 3}
    files = FileTransfer(server, tmp_path, tmp_path / "s", lambda weights, folder: None)
    sampler = VllmSampler(server, files, score=None, **settings)
    with pytest.raises(SamplerFailed) as error:
        sampler.generate([Request([1, 2], 0)], temperature=1.0)
    for part in (
        "did not come up",
        "ended with code 1",
        str(log),
        "First error: ModuleNotFoundError: No module",
    ):
        assert part in str(error.value)
    sampler.close()


def test_an_interpreter_that_is_not_there_is_named(tmp_path):
    with pytest.raises(
        ConfigError, match=r"/nowhere/python \(sampler\.python\): No such file.*make_vllm_venv"
    ):
        ServerProcess(Path("/nowhere/python"), [], {}, log=tmp_path / "log")
