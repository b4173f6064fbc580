"""``istar eval --env istar/Sotopia-v0`` as a user runs it: who plays, who judges, what is written."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bad_endpoint as wire
from bad_endpoint import bad_endpoint
from istar_envs.episode import read_episodes
from istar_judges import read_outcomes
from istar_judges.cli import main as judge_main
from istar_trainer import cli
from official_data import SOTOPIA, needs_sotopia

pytestmark = pytest.mark.e2e

ACCEPT = '{"action_type": "action", "argument": "accept"}'


@pytest.fixture
def _talking_endpoint(monkeypatch):
    """Let the endpoint take seats too: it accepts what is proposed."""
    judge = wire._words

    def words(fault: str, request: dict[str, Any]) -> tuple[str | None, str, str | None]:
        schema = request.get("response_format", {}).get("json_schema", {}).get("schema", {})
        is_seat = "action_type" in schema.get("properties", {})
        return (ACCEPT, "stop", None) if is_seat and fault != "refusal" else judge(fault, request)

    monkeypatch.setattr(wire, "_words", words)


def run(*words: object) -> int:
    try:
        return cli.run(["eval", "--env", "istar/Sotopia-v0", *map(str, words)])
    except SystemExit as error:
        return int(error.code or 0)


def result_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "result.json").read_text())


def row_of(result: dict[str, Any], group: str, seat: object = "both") -> dict[str, Any]:
    (row,) = (row for row in result["rows"] if (row["group"], row["seat"]) == (group, seat))
    return row


def mean_goal(out: Path, group: str = "all") -> float:
    return float(row_of(result_of(out), group)["goal"]["mean"]["value"])


def test_a_good_policy_and_a_naive_one_are_told_apart(tmp_path, capsys):
    for policy in ("expert", "naive"):
        assert run("--policy", policy, "--max-scenarios", 20, "--out", tmp_path / policy) == 0
    shown = capsys.readouterr().out
    assert "policy: expert-1" in shown
    assert "judge: sotopia-verifier/1" in shown
    expert, naive = result_of(tmp_path / "expert"), result_of(tmp_path / "naive")
    for family in ("all", "bargaining", "division", "friends", "scheduling"):
        good, bad = (row_of(result, family)["goal"]["mean"] for result in (expert, naive))
        assert good["value"] > bad["value"] + 2
    assert row_of(expert, "all")["goal"]["mean"]["low"] > row_of(naive, "all")["goal"]["mean"]["high"]
    assert row_of(expert, "all")["num_episodes"] == 160
    assert row_of(expert, "all", 0)["num_episodes"] == row_of(expert, "all", 1)["num_episodes"] == 80


def test_what_is_written_is_complete_and_agrees_with_itself(tmp_path):
    out = tmp_path / "out"
    assert run("--policy", "expert", "--scenarios", "division", "--max-scenarios", 8, "--out", out) == 0
    names = ("config.json", "env.json", "episodes.jsonl", "outcomes.jsonl", "report.md", "result.json")
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    episodes, outcomes = list(read_episodes(out / "episodes.jsonl")), read_outcomes(out / "outcomes.jsonl")
    assert [e.task_id for e in episodes] == [o.task_id for o in outcomes]
    assert [e.score for e in episodes] == pytest.approx([o.score for o in outcomes])
    goals = [10 * e.score for e in episodes]
    assert mean_goal(out, "division") == pytest.approx(sum(goals) / 16)
    assert f"| division | both | 8 | 16 | 0 | {sum(goals) / 16:.2f} (" in (out / "report.md").read_text()
    assert json.loads((out / "config.json").read_text())["policy"] == "expert"


def test_recorded_episodes_can_be_judged_and_replayed(tmp_path, capsys):
    out, again = tmp_path / "out", tmp_path / "again"
    few = ("--scenarios", "bargaining", "--max-scenarios", 6)
    assert run("--policy", "expert", *few, "--out", out) == 0
    judged = tmp_path / "judged.jsonl"
    assert judge_main(["score", str(out / "episodes.jsonl"), "--scale", "return", "--out", str(judged)]) == 0
    assert judged.read_text() == (out / "outcomes.jsonl").read_text()
    assert run("--policy", out / "episodes.jsonl", *few, "--out", again) == 0
    assert (again / "episodes.jsonl").read_text() == (out / "episodes.jsonl").read_text()
    assert result_of(again)["rows"] == result_of(out)["rows"]
    other = ("--scenarios", "friends", "--max-scenarios", 2)
    assert run("--policy", out / "episodes.jsonl", *other, "--out", tmp_path / "other") == 0
    row = row_of(result_of(tmp_path / "other"), "friends")
    assert (row["failures"], row["goal"]["best"]) == ({"policy": 4}, 10.0)


def test_equal_commands_write_equal_files_in_any_process(tmp_path):
    words = ["--policy", "scripted", "--protocol", "self-play", "--max-scenarios", "5"]
    program = "import sys; from istar_trainer.cli import main; main()"
    for number in range(2):
        command = ["eval", "--env", "istar/Sotopia-v0", *words, "--out", str(tmp_path / str(number))]
        environment = {**os.environ, "PYTHONHASHSEED": str(number)}
        subprocess.run(
            [sys.executable, "-c", program, *command], env=environment, check=True, capture_output=True
        )
    for name in ("episodes.jsonl", "outcomes.jsonl", "result.json", "report.md"):
        first, second = ((tmp_path / str(number) / name).read_bytes() for number in range(2))
        assert first == second, name


@pytest.mark.usefixtures("_restore_torch")
def test_a_local_model_takes_a_seat_or_both_and_plays_alike_again(tmp_path, tiny_folder):
    words = (
        "--policy",
        tiny_folder,
        "--max-scenarios",
        1,
        "--template",
        "bare-v1",
        "--max-response-tokens",
        6,
    )
    for number in range(2):
        assert run(*words, "--out", tmp_path / str(number)) == 0
    first, second = ((tmp_path / str(n) / "episodes.jsonl").read_text() for n in range(2))
    assert first == second
    assert run(*words, "--protocol", "self-play", "--seats", "0", "--out", tmp_path / "self") == 0
    assert [row["seat"] for row in result_of(tmp_path / "self")["rows"]] == [0] * 5
    assert row_of(result_of(tmp_path / "0"), "all")["num_unreadable"] > 0


@needs_sotopia
def test_published_scenarios_are_told_by_set_and_source(tmp_path, capsys):
    out = tmp_path / "out"
    assert run("--policy", "expert", "--data-dir", SOTOPIA, "--out", out) == 0
    assert "60 of 90 scenarios are left out: no rule can score them." in capsys.readouterr().out
    result = result_of(out)
    assert {row["group"] for row in result["rows"]} == {
        *("all", "hard", "craigslist_bargains", "deal-or-no-deal", "mutual_friends"),
    }
    assert (row_of(result, "all")["num_scenarios"], row_of(result, "all")["num_episodes"]) == (30, 300)
    assert row_of(result, "hard")["num_scenarios"] == 5
    assert {o.source for o in read_outcomes(out / "outcomes.jsonl")} == {"sotopia-verifier/1"}


@needs_sotopia
@pytest.mark.usefixtures("_talking_endpoint")
def test_chat_models_play_and_judge_what_no_rule_can_score(tmp_path):
    out, cache = tmp_path / "out", tmp_path / "verdicts.sqlite"
    with bad_endpoint() as endpoint:
        words = [
            *("--data-dir", SOTOPIA, "--scenarios", "hand-craft", "--protocol", "self-play"),
            *("--policy", "endpoint", "--policy-url", endpoint.url, "--policy-model", "m"),
            *("--judge", "llm", "--judge-url", endpoint.url, "--judge-model", "j", "--judge-cache", cache),
            *("--policy-price", "1", "2"),
        ]
        assert run(*words, "--max-scenarios", 2, "--out", out) == 0
        judged = sum(request["model"] == "j" for request in endpoint.requests)
        assert run(*words, "--max-scenarios", 2, "--out", tmp_path / "again") == 0
        assert sum(request["model"] == "j" for request in endpoint.requests) == judged == 10
    result, again = result_of(out), result_of(tmp_path / "again")
    assert row_of(result, "hand-craft")["num_episodes"] == 20
    assert row_of(result, "hand-craft")["goal"]["mean"]["num"] == 20
    assert again["rows"] == result["rows"]
    calls = 10 * 20
    assert result["spent"]["policy"] == {
        "calls": calls,
        "calls_of_unknown_cost": 0,
        "prompt_tokens": 100 * calls,
        "completion_tokens": 20 * calls,
        "cost": pytest.approx(calls * (100 * 1 + 20 * 2) / 1e6),
    }
    assert result["spent"]["judge"]["calls"] == 10
    assert again["spent"]["judge"]["calls"] == 0
    assert "policy: 200 calls, 20,000 + 4,000 tokens, cost 0.028" in (out / "report.md").read_text()


@pytest.mark.usefixtures("_talking_endpoint")
def test_when_three_of_ten_calls_fail_bounds_hold_and_nothing_is_lost(tmp_path):
    out = tmp_path / "out"
    faults = ("500", "429", "dropped", "cut_body", "half_body", "no_choices", "refusal")
    with bad_endpoint(share=0.3, faults=faults) as endpoint:
        words = [
            *("--policy", "endpoint", "--policy-url", endpoint.url, "--policy-model", "m"),
            *("--judge", "llm", "--judge-url", endpoint.url, "--judge-model", "j"),
            *("--max-scenarios", 20, "--retries", 0, "--out", out),
        ]
        assert run(*words) == 0
    row = row_of(result_of(out), "all")
    episodes, outcomes = list(read_episodes(out / "episodes.jsonl")), read_outcomes(out / "outcomes.jsonl")
    assert len(episodes) == len(outcomes) == row["num_episodes"] == 160
    assert row["failures"]["policy"] == sum(e.end == "failed" for e in episodes) > 20
    assert row["failures"]["policy"] == sum(" failed: partner m: " in o.detail for o in outcomes)
    scores = [o.score for o in outcomes if o.score is not None]
    assert len(scores) == row["goal"]["mean"]["num"] > 20
    num_failed = sum(row["failures"].values())
    assert len(scores) + num_failed == 160
    assert set(row["failures"]) == {"policy", "verdict unavailable", "verdict refused"}
    assert row["goal"]["worst"] == pytest.approx(10 * sum(scores) / 160)
    assert row["goal"]["best"] == pytest.approx(10 * (sum(scores) + num_failed) / 160)
    assert row["goal"]["worst"] < row["goal"]["mean"]["low"] < row["goal"]["best"]
    assert all(e.score == 0.0 for e in episodes if e.end == "failed")
    assert f"[{row['goal']['worst']:.2f} … {row['goal']['best']:.2f}]" in (out / "report.md").read_text()


def test_a_spent_budget_ends_episodes_as_failures(tmp_path):
    with bad_endpoint(faults=()) as endpoint:
        words = [
            *("--policy", "naive", "--judge", "llm", "--judge-url", endpoint.url, "--judge-model", "j"),
            *("--judge-budget", 1, "--max-scenarios", 1, "--out", tmp_path / "out"),
        ]
        assert run(*words) == 0
    assert endpoint.requests == []
    assert row_of(result_of(tmp_path / "out"), "all")["failures"] == {"verdict budget": 8}


def test_a_key_never_reaches_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    with bad_endpoint() as endpoint:
        words = [
            *("--policy", "naive", "--judge", "llm", "--judge-url", endpoint.url, "--judge-model", "j"),
            *("--judge-key-env", "JUDGE_KEY", "--max-scenarios", 1, "--out", tmp_path / "out"),
        ]
        assert run(*words) == 0
    assert {headers["authorization"] for headers in endpoint.headers} == {"Bearer sk-very-secret"}
    assert all(b"very-secret" not in path.read_bytes() for path in (tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--policy", "exprt"], 'Did you mean "expert"'),
        (["--policy", "endpoint"], "--policy-url is not given"),
        (["--policy", "expert", "--scenarios", "hard"], "--data-dir"),
        (["--policy", "expert", "--protocol", "self-play", "--partner", "naive"], "--partner belongs to"),
        (["--policy", "expert", "--judge", "llm"], "--judge-url is not given"),
    ],
)
def test_a_mistake_is_answered_by_one_line(capsys, words, hint):
    assert run(*words) == 2
    shown = capsys.readouterr()
    assert hint in shown.err
    assert "Traceback" not in shown.err
    assert shown.err.count("\n") == 1


@needs_sotopia
def test_scripted_people_are_not_sent_where_nothing_can_be_checked(capsys, tmp_path):
    words = [
        "--data-dir",
        SOTOPIA,
        "--judge",
        "llm",
        "--judge-url",
        "http://127.0.0.1:1/v1",
        "--judge-model",
        "j",
    ]
    assert run("--policy", "expert", *words, "--out", tmp_path / "out") == 2
    assert "can play only what can be checked, but 60 of 90 scenarios cannot" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_refused_before_anything_is_played(capsys, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert run("--policy", "expert", "--out", tmp_path) == 2
    assert f"--out {tmp_path} is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_another_environment_is_refused_and_help_names_the_options(capsys):
    assert cli_code("eval", "--env", "istar/Sokoban-v0", "--policy", "expert") == 2
    assert "Sotopia" in capsys.readouterr().err
    assert cli_code("eval", "--env", "istar/Sotopia-v0", "--help") == 0
    shown = capsys.readouterr().out
    assert "--episodes-per-scenario" in shown
    assert "--judge-budget" in shown


def cli_code(*words: str) -> int:
    try:
        return cli.run(list(words))
    except SystemExit as error:
        return int(error.code or 0)
