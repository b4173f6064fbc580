"""A run on WebShop goes through every stage like any other."""

import json

import pytest

from istar_envs.episode import read_episodes
from istar_judges import WebShopVerifier
from istar_trainer.config import RunConfig
from istar_trainer.metrics import read_metrics
from istar_trainer.pipeline import run_training
from istar_trainer.progress import Progress
from tiny_run import tiny_tree

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("_restore_torch")]


def test_a_run_trains_and_is_evaluated_on_the_generated_shop(tmp_path):
    tree = tiny_tree(
        run_dir=str(tmp_path / "run"),
        iterations=2,
        model={"vocab_size": 600},
        warm_start={"episodes": 4, "max_epochs": 1, "eval_tasks": 2, "batch_size": 4},
        rollout={"num_tasks": 2, "group_size": 2, "max_response_tokens": 6, "max_prompt_tokens": 2000},
        eval={"dev_tasks": 2, "test_tasks": 3},
    )
    tree["env"] = {"id": "istar/WebShop-v1", "kwargs": {"page_size": 2, "max_steps": 4}}
    config = RunConfig.model_validate(tree)
    with Progress() as progress:
        report = run_training(config, resume=False, progress=progress)
    assert "istar/WebShop-v1" in report.read_text()
    assert [row["iteration"] for row in read_metrics(config.run_dir / "metrics.jsonl")] == [0, 1]
    episodes = list(read_episodes(config.run_dir / "episodes" / "after.jsonl"))
    assert len(episodes) == 3
    verifier = WebShopVerifier(page_size=2)
    assert all(verifier(episode).status == "ok" for episode in episodes)
    before = json.loads((config.run_dir / "eval.jsonl").read_text().splitlines()[0])
    assert before["label"] == "before"
    assert before["baselines"]["random"] == 0.0
