"""Training with the real vLLM whose weights come by broadcast: as with files, through every loss of a server.

Over gloo, since nothing here needs a GPU. The environment with vLLM's CPU build is made by
``scripts/make_vllm_venv.sh`` on first use.
"""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from istar_trainer.pipeline import run_training
from istar_trainer.progress import Progress
from istar_trainer.setup import Run
from istar_trainer.vllm import broadcast
from made_environment import made_by
from same_run import assert_same_run, lines_of
from tiny_run import tiny_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("_restore_torch")]
SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def python() -> Path:
    """An interpreter with vLLM."""
    return made_by("make_vllm_venv.sh", ".venv-vllm")


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
