"""Levels from a file are a training source like any other."""

from pathlib import Path

import pytest

from istar_trainer.metrics import read_metrics
from istar_trainer.pipeline import run_training
from istar_trainer.progress import Progress
from official_data import OFFICIAL_DATA
from tiny_run import tiny_config

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("_restore_torch")]


def find_boxoban() -> Path:
    files = sorted((OFFICIAL_DATA / "boxoban").rglob("*_[0-9]*.txt"))
    if not files:
        pytest.skip(f"no official Boxoban levels under {OFFICIAL_DATA}")
    return files[0]


def test_a_run_trains_and_is_evaluated_on_official_boxoban_levels(tmp_path):
    levels = {"levels": str(find_boxoban()), "max_steps": 5, "min_moves": None, "max_moves": None}
    config = tiny_config(
        tmp_path / "run",
        iterations=1,
        env={"kwargs": levels},
        warm_start={"episodes": 2, "max_epochs": 1, "eval_tasks": 2},
        eval={"dev_tasks": 2, "test_tasks": 2},
    )
    with Progress() as progress:
        report = run_training(config, resume=False, progress=progress)
    assert report.is_file()
    (record,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert record["env/episode_steps_mean"] == 5
