"""A model as the source of outcomes: scales, failures, what it costs, and whether it stays the same."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import istar_envs
from bad_endpoint import BadEndpoint, bad_endpoint
from istar_envs.episode import Episode, Outcome
from istar_envs.errors import ConfigError
from istar_judges import read_outcomes
from istar_judges.errors import JudgeUnavailable
from istar_trainer import cli
from istar_trainer.config import RunConfig
from istar_trainer.folder import RunFolder, require_same
from istar_trainer.judging import (
    ModelJudging,
    RuleJudging,
    check_judging,
    make_judging,
    require_verdicts,
)
from istar_trainer.metrics import METRICS, warn_if_contradictory
from judged import make_social_episode
from tiny_run import write_config


@pytest.fixture
def endpoint() -> Iterator[BadEndpoint]:
    with bad_endpoint() as served:
        yield served


def config_of(endpoint: BadEndpoint | None = None, outcome: str = "return", **judge) -> RunConfig:
    url = {"base_url": endpoint.url} if endpoint else {}
    return RunConfig(
        verifier="llm",
        outcome=outcome,
        env={"id": "istar/Sotopia-v0"},
        judge={"model": "judge-2025-01-01", **url, **judge},
    )


def open_judging(folder: Path, config: RunConfig) -> ModelJudging:
    judging = make_judging(config, RunFolder(folder, config, resume=True))
    assert isinstance(judging, ModelJudging)
    return judging


def episodes(*goals: int) -> list[Episode]:
    """One dialogue for each goal that the player's seat reaches; all differ."""
    return [make_social_episode(f"Hello {n}.", goals=(goal, 0)) for n, goal in enumerate(goals)]


def log_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "judge.jsonl").read_text().splitlines()]


# Outcomes


@pytest.mark.parametrize(
    ("outcome", "expected"), [("return", [0.2, 0.6, 0.7, 1.0]), ("success", [0.0, 0.0, 1.0, 1.0])]
)
def test_an_outcome_is_the_judged_goal_or_whether_it_is_a_success(tmp_path, endpoint, outcome, expected):
    judging = open_judging(tmp_path, config_of(endpoint, outcome))
    found = judging.outcomes(episodes(2, 6, 7, 10), 0)
    assert [o.score for o in found] == expected
    assert [o.success for o in found] == [False, False, True, True]
    judging.close()


def test_dimension_divisor_and_threshold_are_those_of_the_section(tmp_path, endpoint):
    changes = {"rubric": "sotopia-v1", "dimension": "relationship", "divisor": 5.0, "threshold": 1.0}
    judging = open_judging(tmp_path, config_of(endpoint, **changes))
    found = judging.outcomes(episodes(6, 7), 0)  # −5 + 6 and −5 + 7
    assert [(o.score, o.success) for o in found] == [(0.2, False), (0.4, True)]
    judging.close()


def test_an_episode_without_a_verdict_has_no_number_and_the_others_keep_theirs(tmp_path, endpoint):
    endpoint.script = ["refusal"]
    judging = open_judging(tmp_path, config_of(endpoint, concurrency=1))
    found = judging.outcomes(episodes(7, 7, 7, 7), 3)
    assert [o.status for o in found] == ["refused", "ok", "ok", "ok"]
    assert [o.score for o in found] == [None, 0.7, 0.7, 0.7]
    assert log_of(tmp_path)[0]["statuses"] == {"refused": 1, "ok": 3}
    assert log_of(tmp_path)[0]["iteration"] == 3
    judging.close()


def test_too_many_missing_verdicts_stop_the_run_and_say_why(tmp_path, endpoint):
    endpoint.script = ["refusal", "refusal"]
    judging = open_judging(tmp_path, config_of(endpoint, concurrency=1))
    with pytest.raises(JudgeUnavailable, match=r"2 of 4 episodes got no verdict \(2 refused\).*=0\.25"):
        judging.outcomes(episodes(7, 7, 7, 7), 0)
    judging.close()


def test_episodes_that_broke_are_not_the_judges_failures(tmp_path, endpoint):
    judging = open_judging(tmp_path, config_of(endpoint))
    broken = make_social_episode(end="failed", error="the world ended")
    found = judging.outcomes([broken, broken, *episodes(7)], 0)
    assert [o.status for o in found] == ["invalid", "invalid", "ok"]
    judging.close()


@pytest.mark.parametrize(
    ("num_failed", "num", "limit", "stops"),
    [(0, 0, 0.0, False), (1, 4, 0.25, False), (2, 4, 0.25, True), (1, 1, 1.0, True), (3, 4, 1.0, False)],
)
def test_the_share_of_missing_verdicts_is_bounded(num_failed, num, limit, stops):
    ok, failed = Outcome("ok", "j", 1.0, True), Outcome("timeout", "j")
    found = [failed] * num_failed + [ok] * (num - num_failed)
    if stops:
        with pytest.raises(JudgeUnavailable):
            require_verdicts(found, limit)
    else:
        require_verdicts(found, limit)


# What it costs


def test_a_second_look_is_free_but_canaries_are_asked_anew(tmp_path, endpoint):
    config = config_of(endpoint)
    judging = open_judging(tmp_path, config)
    first = judging.outcomes(episodes(3, 4), 0)
    assert judging.watch(0)["judge/tokens"] == 42 * 120
    judging.close()
    assert len(endpoint.requests) == 42
    again = open_judging(tmp_path, config)
    assert again.outcomes(episodes(3, 4), 0) == first
    assert len(endpoint.requests) == 42
    assert again.watch(0)["judge/tokens"] == 40 * 120
    assert len(endpoint.requests) == 82
    again.close()


def test_the_cache_may_be_shared_by_runs(tmp_path, endpoint):
    for name in ("one", "other"):
        judging = open_judging(tmp_path / name, config_of(endpoint, cache=str(tmp_path / "shared.sqlite")))
        judging.outcomes(episodes(3, 4), 0)
        judging.close()
    assert len(endpoint.requests) == 2


def test_a_budget_holds_for_the_whole_run_also_when_it_is_resumed(tmp_path, endpoint):
    config = config_of(endpoint, max_tokens=6_000, concurrency=1)
    judging = open_judging(tmp_path, config)
    assert judging.outcomes(episodes(1, 2), 0)[1].status == "ok"
    judging.close()
    assert sum(line["tokens"] for line in log_of(tmp_path)) == 240
    with (tmp_path / "judge.jsonl").open("a") as log:
        log.write('{"iteration": 0, "tokens": 5000, "statuses": {}}\n')
    resumed = open_judging(tmp_path, config)
    with pytest.raises(JudgeUnavailable, match=r"3 budget.*budget is spent"):
        resumed.outcomes(episodes(1, 2, 3, 4, 5), 0)
    resumed.close()
    assert len(endpoint.requests) == 2


def test_what_was_spent_is_told_once(tmp_path, endpoint):
    judging = open_judging(tmp_path, config_of(endpoint, canaries_every=0))
    judging.outcomes(episodes(1, 2), 0)
    assert judging.watch(0) == {"judge/tokens": 240}
    assert judging.watch(1) == {"judge/tokens": 0}
    judging.close()


# Whether it stays the same


def test_canaries_are_judged_every_so_many_iterations_and_kept(tmp_path, endpoint):
    judging = open_judging(tmp_path, config_of(endpoint, canaries_every=2))
    seen = [judging.watch(iteration) for iteration in range(4)]
    judging.close()
    assert [len(values) for values in seen] == [5, 1, 7, 1]
    assert seen[2]["judge/canary_shift"] == seen[2]["judge/canary_changed_frac"] == 0.0
    assert seen[0]["judge/canary_failed_frac"] == seen[2]["judge/canary_drifted"] == 0.0
    assert 0 < seen[0]["judge/canary_error"] == seen[2]["judge/canary_error"]
    assert {name for values in seen for name in values} <= METRICS.keys()
    names = sorted(path.name for path in (tmp_path / "canaries").iterdir())
    assert names == ["000000.jsonl", "000002.jsonl"]
    assert len(read_outcomes(tmp_path / "canaries" / names[0])) == 40


def test_j9_a_judge_that_drifts_is_warned_of_by_name_also_after_a_resume(tmp_path, endpoint):
    config = config_of(endpoint)
    judging = open_judging(tmp_path, config)
    assert warn_if_contradictory(judging.watch(0), []) == []
    judging.close()
    kind = {seat: {"goal": {"reason": "so", "score": 10}} for seat in ("A", "B")}
    endpoint.script = ["=" + json.dumps(kind)] * 40
    resumed = open_judging(tmp_path, config)
    values = resumed.watch(10)
    resumed.close()
    assert values["judge/canary_drifted"] == 1.0
    assert values["judge/canary_shift"] > 2
    (warning,) = warn_if_contradictory(values, [])
    assert warning.startswith("judge-drift: judge/canary_shift is ")
    assert warning.endswith("See docs/metrics.md#judge-drift.")


def test_a_pass_without_verdicts_is_no_reference(tmp_path, endpoint):
    endpoint.script = ["refusal"] * 40
    judging = open_judging(tmp_path, config_of(endpoint, concurrency=1, canaries_every=1))
    silent = judging.watch(0)
    assert (silent["judge/canary_failed_frac"], silent["judge/canary_drifted"]) == (1.0, 1.0)
    assert "judge/canary_shift" not in judging.watch(1)
    assert judging.watch(2)["judge/canary_shift"] == 0.0
    judging.close()
    again = open_judging(tmp_path, config_of(endpoint, concurrency=1, canaries_every=1))
    assert again.watch(3)["judge/canary_shift"] == 0.0
    again.close()


# Configuration


def test_a_verifier_needs_no_watching(tmp_path):
    config = RunConfig(env={"id": "istar/Sotopia-v0"})
    judging = make_judging(config, RunFolder(tmp_path, config, resume=False))
    assert isinstance(judging, RuleJudging)
    assert judging.watch(0) == {}
    judging.close()
    assert not (tmp_path / "verdicts.sqlite").exists()


@pytest.mark.parametrize("tree", [{"verifier": "llm"}, {"judge": {"model": "m"}}])
def test_a_model_and_its_section_belong_together(tree):
    with pytest.raises(ValueError, match=r"a model judges with verifier: llm and judge\.model set"):
        RunConfig.model_validate(tree)


@pytest.mark.parametrize(
    ("env", "judge", "message"),
    [
        ("istar/Sokoban-v0", {}, "episodes of istar/Sokoban-v0 hold none"),
        ("istar/Sotopia-v0", {"rubric": "gaol-v1"}, 'Did you mean "goal-v1"'),
        ("istar/Sotopia-v0", {"dimension": "secret"}, "no dimension 'secret'"),
        ("istar/Sotopia-v0", {"api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
        ("istar/Sotopia-v0", {"base_url": "nowhere"}, "nowhere"),
    ],
)
def test_a_judge_that_cannot_judge_is_named_before_anything_is_played(env, judge, message):
    config = config_of(**judge).model_copy(update={"env": RunConfig(env={"id": env}).env})
    with pytest.raises(ConfigError, match=message):
        check_judging(config, istar_envs.make(env))


def test_a_run_may_go_on_with_another_address_and_budget_but_not_with_another_judge(tmp_path):
    RunFolder(tmp_path, config_of(), resume=False)
    require_same(tmp_path / "config.json", config_of(max_tokens=9, base_url="http://127.0.0.1:1/v1"))
    with pytest.raises(ConfigError, match=r"judge\.rubric: 'goal-v1' then, 'goal-plus-v1' now"):
        require_same(tmp_path / "config.json", config_of(rubric="goal-plus-v1"))


def test_a_judge_can_be_named_on_the_command_line(capsys, tmp_path):
    path = write_config(tmp_path / "c.yaml", run_dir=str(tmp_path / "run"))
    words = ["--verifier", "llm", "--judge.model", "m", "--judge.rubric", "goal-plus-v1"]
    assert cli.run(["config", str(path), *words]) == 0
    shown = RunConfig.model_validate_json(capsys.readouterr().out)
    assert (shown.verifier, shown.judge.model, shown.judge.rubric) == ("llm", "m", "goal-plus-v1")
