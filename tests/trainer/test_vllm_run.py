"""A whole run that samples from a scripted vLLM server with a real model behind it."""

import json
from collections.abc import Iterator

import pytest

from fake_vllm import FakeVllm
from istar_trainer.pipeline import run_training
from istar_trainer.progress import Progress
from model_brain import ModelBrain
from tiny_run import tiny_config

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("_restore_torch")]


@pytest.fixture
def server() -> Iterator[FakeVllm]:
    server = FakeVllm(ModelBrain())
    yield server
    server.kill()


def test_every_iteration_is_sampled_from_the_weights_that_learn(tmp_path, server):
    run = tmp_path / "run"
    sections = {
        "iterations": 2,
        "warm_start": {"enabled": False},
        "rollout": {"num_tasks": 2, "group_size": 2},
        "eval": {"every": 3, "dev_tasks": 1, "test_tasks": 0},
        "sampler": {"type": "vllm", "url": server.url, "dtype": "float32", "concurrency": 2},
        "algorithm": {"type": "rloo", "loss": {"correction": {"reject": "token"}}},
    }
    run_training(tiny_config(run, **sections), resume=False, progress=Progress())
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["rollout/snapshot_id"] for line in metrics] == [0, 1]
    for line in metrics:
        assert 0 < line["mismatch/abs_max"] < 1e-4
        assert line["mismatch/rejected_frac"] == line["mismatch/capped_frac"] == 0
    loaded = [
        call["kwargs"]["weights_path"].rpartition("-")[2] for call in server.calls_to("/collective_rpc")
    ]
    assert loaded == ["00000000", "00000001", "00000002"]
    moved = {**sections, "iterations": 3, "sampler": "local"}
    run_training(tiny_config(run, **moved), resume=True, progress=Progress())
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
