"""A run whose outcomes come from a model that judges dialogues: failures weigh nothing, resuming is free."""

import json
from pathlib import Path

import pytest

import istar_envs
from bad_endpoint import bad_endpoint
from istar_judges.errors import JudgeUnavailable
from istar_trainer.config import RunConfig
from istar_trainer.metrics import METRICS, read_metrics
from istar_trainer.pipeline import run_training
from istar_trainer.progress import Progress
from istar_trainer.rollout import Player
from istar_trainer.tiny import init_tiny
from tiny_run import tiny_tree

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("_restore_torch")]


@pytest.fixture(autouse=True)
def _everybody_talks(monkeypatch):
    """Let whatever the model writes be something that is said, so that dialogues differ."""
    monkeypatch.setattr(Player, "_decode", lambda _, ids: f"<action>say: {' '.join(map(str, ids))}</action>")


ENV = {"scenarios": "bargaining", "max_turns": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny untrained model for bargaining."""
    env = istar_envs.make("istar/Sotopia-v0", **ENV)
    size = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
    return init_tiny(
        env, tmp_path_factory.mktemp("tiny") / "model", template="bare-v1", window=0, seed=0, **size
    )


def train(folder: Path, model: Path, url: str, *, iterations: int = 2, resume: bool = False, **judge) -> Path:
    """Train on bargaining, judged by the model at an address."""
    tree = tiny_tree(
        run_dir=str(folder),
        iterations=iterations,
        model={"path": str(model)},
        warm_start={"enabled": False},
        rollout={"num_tasks": 2, "group_size": 4, "max_prompt_tokens": 4096, "max_response_tokens": 3},
        verifier="llm",
        judge={"model": "m", "base_url": url, "concurrency": 1, **judge},
        outcome="return",
        prm={"pair_rule": {"label": "success"}},
        eval={"every": 1, "dev_tasks": 1, "test_tasks": 0},
        checkpoint={"every": 1},
    )
    tree["env"] = {"id": "istar/Sotopia-v0", "kwargs": ENV}
    with Progress() as progress:
        run_training(RunConfig.model_validate(tree), resume=resume, progress=progress)
    return folder


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def untimed(folder: Path) -> list[dict]:
    return [
        {k: v for k, v in record.items() if not k.startswith("time/")}
        for record in lines(folder / "metrics.jsonl")
    ]


def test_verdicts_become_outcomes_and_missing_ones_count_in_no_mean(tmp_path, model):
    with bad_endpoint(share=0.3, faults=("refusal", "refusal_text")) as endpoint:
        folder = train(tmp_path / "run", model, endpoint.url, max_failed_frac=0.8)
    records = read_metrics(folder / "metrics.jsonl")
    log = lines(folder / "judge.jsonl")
    rounds = [line["statuses"] for line in log if "statuses" in line]
    assert len(records) == len(rounds) == 2
    for record, statuses in zip(records, rounds, strict=True):
        assert record.keys() - {"iteration"} <= METRICS.keys()
        assert record["judge/no_verdict_frac"] == pytest.approx(statuses.get("refused", 0) / 8)
        assert 0 < record["judge/outcome_mean"] < 1
        assert record["time/judge_s"] > 0
    assert sum(statuses.get("refused", 0) for statuses in rounds) > 0
    assert sum(line["tokens"] for line in log) == sum(record["judge/tokens"] for record in records) > 0
    assert records[0]["judge/canary_failed_frac"] > 0
    assert (folder / "canaries" / "000000.jsonl").exists()


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, model):
    with bad_endpoint() as endpoint:
        straight = train(tmp_path / "straight", model, endpoint.url)
        train(tmp_path / "resumed", model, endpoint.url, iterations=1)
        resumed = train(tmp_path / "resumed", model, endpoint.url, resume=True)
    assert untimed(resumed) == untimed(straight)
    assert all(record["judge/outcome_mean"] > 0 for record in untimed(straight))


def test_a_spent_budget_stops_the_run_and_a_higher_one_lets_it_go_on(tmp_path, model):
    with bad_endpoint() as endpoint:
        with pytest.raises(JudgeUnavailable, match="budget is spent"):
            train(tmp_path / "run", model, endpoint.url, max_tokens=4_000, canaries_every=0)
        train(tmp_path / "run", model, endpoint.url, resume=True, max_tokens=100_000, canaries_every=0)
    assert [record["judge/no_verdict_frac"] for record in untimed(tmp_path / "run")] == [0, 0]
    assert len(endpoint.requests) <= 16
