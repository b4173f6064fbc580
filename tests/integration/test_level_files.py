"""Levels from a file are a training source like any other."""

import os
from pathlib import Path

import pytest
import torch

from istar_trainer.metrics import read_metrics
from istar_trainer.pipeline import run_training
from istar_trainer.progress import Progress
from tiny_run import tiny_config

pytestmark = pytest.mark.integration
DATA = Path(os.environ.get("ISTAR_SHARED_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


@pytest.fixture(autouse=True)
def _restore_torch():
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def find_boxoban() -> Path:
    files = sorted((DATA / "boxoban").rglob("*_[0-9]*.txt"))
    if not files:
        pytest.skip(f"no official Boxoban levels under {DATA}")
    return files[0]


def test_a_run_trains_and_is_evaluated_on_official_boxoban_levels(tmp_path):
    levels = {"levels": str(find_boxoban()), "max_steps": 5, "min_moves": None, "max_moves": None}
    config = tiny_config(
        tmp_path / "run",
        iterations=1,
        env={"kwargs": levels},
        warm_start={"levels": 2, "max_epochs": 1, "eval_tasks": 2},
        eval={"dev_tasks": 2, "test_tasks": 2},
    )
    with Progress() as progress:
        report = run_training(config, resume=False, progress=progress)
    assert report.is_file()
    (record,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert record["env/episode_steps_mean"] == 5
