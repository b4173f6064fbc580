"""Training with the real vLLM whose weights come by broadcast: as with files, through every loss of a server.

Over gloo, since nothing here needs a GPU. The environment with vLLM's CPU build is made by
``scripts/make_vllm_venv.sh`` on first use.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from istar_trainer.config import EnvConfig
from istar_trainer.factories import make_env
from istar_trainer.pipeline import run_training
from istar_trainer.progress import Progress
from istar_trainer.sampler import Request
from istar_trainer.setup import Run
from istar_trainer.tiny import init_tiny
from istar_trainer.vllm import broadcast
from istar_trainer.vllm.build import text_logprobs
from istar_trainer.vllm.process import free_port
from istar_trainer.vllm.served import istar_receiver
from istar_trainer.weights import load_model
from same_run import assert_same_run, lines_of
from small_vllm import SMALL, small_sampler
from tiny_run import tiny_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("_restore_torch")]


@contextmanager
def served(python: Path, model: Path, folder: Path) -> Iterator[str]:
    """A server with two workers that somebody started as docs/scaling.md says; yields its address."""
    shutil.copy(istar_receiver.__file__, folder)
    port = free_port()
    flags = {
        "model": model,
        "host": "127.0.0.1",
        "port": port,
        "dtype": "float32",
        "tensor-parallel-size": 2,
        "generation-config": "vllm",
        "logprobs-mode": "processed_logprobs",
        "worker-extension-cls": "istar_receiver.WeightReceiver",
        "load-format": "dummy",
        "hf-overrides": '{"tie_word_embeddings": false}',
    }
    switches = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(folder)}
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, *(str(word) for name, value in flags.items() for word in (f"--{name}", value))],
            env={**os.environ, **SMALL, **switches},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def train(run_dir: Path, python: Path, **sampler: Any) -> None:
    """Three iterations of a tiny model in fp32, one reply at a time."""
    sampler = {"type": "vllm", "dtype": "float32", "python": str(python), "env": SMALL, **sampler}
    config = tiny_config(
        run_dir,
        iterations=3,
        model={"hidden_size": 64, "num_layers": 1, "num_heads": 2},
        eval={"every": 3, "dev_tasks": 2, "test_tasks": 0},
        checkpoint={"every": 1},
        sampler={"concurrency": 1, **sampler},
    )
    run_training(config, resume=False, progress=Progress())


def test_a_run_is_the_same_as_with_files_though_its_server_is_killed_between_and_amid_transfers(
    tmp_path, python, monkeypatch, caplog
):
    train(tmp_path / "files", python)
    publish, send = Run.publish_policy, broadcast.broadcast
    killed: list[str] = []
    sent = 0

    def kill(run: Run, when: str) -> None:
        killed.append(when)
        os.kill(run.sampler.backend.pid, signal.SIGKILL)

    def publish_and_kill(run: Run) -> None:
        publish(run)
        if run.iteration == 0:
            kill(run, "between transfers")
        if run.iteration == 1:
            monkeypatch.setattr(broadcast, "broadcast", lambda *args: send_and_kill(run, *args))

    def send_and_kill(run: Run, *args: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == 4:
            kill(run, "amid a transfer")
        send(*args)

    monkeypatch.setattr(Run, "publish_policy", publish_and_kill)
    train(tmp_path / "broadcast", python, transfer="broadcast")
    assert killed == ["between transfers", "amid a transfer"]
    assert caplog.text.count("it is started again with snapshot") == 2
    assert_same_run(tmp_path / "broadcast", tmp_path / "files")
    metrics = lines_of(tmp_path / "broadcast/metrics.jsonl")
    assert [line["rollout/snapshot_id"] for line in metrics] == [0, 1, 2]
    assert all(line["mismatch/abs_max"] < 1e-4 for line in metrics)
    assert not (tmp_path / "broadcast/snapshots").exists()


def test_all_workers_of_a_server_that_runs_already_follow_one_run_and_the_next(tmp_path, python):
    env = make_env(EnvConfig(), "train")
    shape = {"hidden_size": 64, "num_layers": 2, "num_heads": 2}
    path = init_tiny(env, tmp_path / "model", template="bare-v1", window=0, **shape, seed=0)
    env.close()
    model, tokenizer = load_model(path)
    folder = tmp_path / "server"
    folder.mkdir()
    noise = torch.Generator().manual_seed(0)
    before = text_logprobs(model, range(5, 30))
    with served(python, path, folder) as url:
        for _ in range(2):
            sampler = small_sampler(model, tokenizer, path, tmp_path / "run", url=url, transfer="broadcast")
            for snapshot_id in (1, 2):
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=0.05)
                sampler.load(model.state_dict(), snapshot_id)
                sampler.generate([Request(list(range(5, 30)), 0)], temperature=1.0)
                after = text_logprobs(model, range(5, 30))
                assert sampler.backend.prompt_logprobs(range(5, 30)) == pytest.approx(after, abs=1e-4)
                assert max(abs(a - b) for a, b in zip(after, before, strict=True)) > 1e-2
                before = after
            sampler.close()
