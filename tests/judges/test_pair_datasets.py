"""Preference pairs in the forms that other tools read, and labels as sure as the judge is."""

import json
import math
import pickle
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from istar_envs.episode import Outcome, write_episodes
from istar_envs.errors import ConfigError, MissingAsset
from istar_judges import (
    PairRule,
    PreferencePair,
    StubJudge,
    canary_episodes,
    make_pairs,
    noise_target,
    preference_example,
    read_outcomes,
    read_pairs,
    score_errors,
    to_dataset,
    trajectory_ids,
    write_dataset,
    write_parquet,
)
from istar_judges.cli import main
from istar_judges.outcome_files import JudgedEpisode
from istar_judges.pair_files import write_lines
from istar_judges.panel import Panel
from made_environment import ROOT, said_with

PAIRS = (
    PreferencePair("g", "a", "b", weight=0.25, target=0.75),
    PreferencePair("täsk", "c", "d", weight=0.75),
)


@pytest.fixture
def examples(play) -> list[Any]:
    """Two examples, one of them with odd characters and several turns."""
    return [
        preference_example(play(["right"]), play(["down", "up"])),
        preference_example(play(["right"], note='"{x}" \u2028é '), play(["down", None, "up"])),
    ]


def as_rows(examples: list[Any]) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(asdict(example))) for example in examples]


# Parquet and data set folders


def test_examples_come_back_from_parquet_with_exactly_three_columns_of_messages(examples, tmp_path):
    path = tmp_path / "pairs.parquet"
    write_parquet(path, examples)
    table = pyarrow.parquet.read_table(path)
    assert table.column_names == ["prompt", "chosen", "rejected"]
    assert table.to_pylist() == as_rows(examples)
    messages = "list<element: struct<role: string, content: string>>"
    assert {str(kind) for kind in table.schema.types} == {messages}


def test_pairs_come_back_from_parquet_with_weight_and_target(tmp_path):
    path = tmp_path / "pairs.parquet"
    write_parquet(path, PAIRS)
    assert tuple(PreferencePair(**row) for row in pyarrow.parquet.read_table(path).to_pylist()) == PAIRS


def test_no_examples_make_a_file_with_the_columns_all_the_same(tmp_path):
    write_parquet(tmp_path / "none.parquet", [])
    table = pyarrow.parquet.read_table(tmp_path / "none.parquet")
    assert (table.num_rows, table.column_names) == (0, ["prompt", "chosen", "rejected"])


def test_a_data_set_folder_has_a_card_that_names_its_split(examples, tmp_path):
    write_dataset(tmp_path / "set", examples, split="dev")
    card = (tmp_path / "set" / "README.md").read_text()
    assert "- split: dev\n    path: data/dev-*.parquet" in card
    data = tmp_path / "set" / "data" / "dev-00000-of-00001.parquet"
    assert pyarrow.parquet.read_table(data).to_pylist() == as_rows(examples)
    with pytest.raises(ConfigError, match="output exists already"):
        write_dataset(tmp_path / "set", examples, split="dev")
    write_dataset(tmp_path / "set", examples[:1], split="dev", overwrite=True)
    assert pyarrow.parquet.read_table(data).num_rows == 1


def test_a_file_appears_whole_or_not_at_all(examples, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write .*nowhere"):
        write_parquet(tmp_path / "nowhere" / "pairs.parquet", examples)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        write_dataset(tmp_path / "file", examples)
    write_parquet(tmp_path / "pairs.parquet", examples)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pairs.parquet"]


@pytest.mark.parametrize(
    ("module", "extra", "write"),
    [
        ("pyarrow", "parquet", lambda examples, path: write_parquet(path, examples)),
        ("datasets", "datasets", lambda examples, _path: to_dataset(examples)),
    ],
)
def test_a_missing_package_is_named_with_its_extra(examples, tmp_path, monkeypatch, module, extra, write):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingAsset, match=rf'Install "istar-judges\[{extra}\]"'):
        write(examples, tmp_path / "x.parquet")


@pytest.mark.slow
def test_datasets_reads_and_trl_trains_on_the_examples_as_they_are(examples, tmp_path, tiny_folder):
    write_dataset(tmp_path / "set", examples)
    (tmp_path / "examples").write_bytes(pickle.dumps(examples))
    program = Path(__file__).with_name("pairs_in_trl.py")
    paths = (ROOT / "packages/envs/src", ROOT / "packages/judges/src")
    seen = said_with("trl", program, tmp_path, tiny_folder, paths=paths)
    assert seen["columns"] == ["prompt", "chosen", "rejected"]
    assert seen["read"] == seen["made"] == as_rows(examples)
    assert seen["losses"].keys() == {"dpo", "reward"}
    assert all(0 < loss < 10 for loss in seen["losses"].values())


# Labels as sure as the judge


def test_a_soft_label_is_the_chance_that_the_gap_is_no_accident():
    assert noise_target(1.0, 0.6, 0.8) == pytest.approx(0.841344746)  # Φ(1)
    assert noise_target(1.96, 1.0, 0.0) == pytest.approx(0.975002105)
    assert noise_target(0.0, 1.0, 1.0) == 0.5
    assert (noise_target(0.1, 0.0, 0.0), noise_target(0.0, 0.0, 0.0)) == (1.0, 0.5)


def test_j9_the_error_of_a_score_comes_from_the_scatter_of_all_votes():
    errors = score_errors({"a": [0.4, 0.6], "b": [0.7, 0.7, 0.7, 0.7], "c": [0.1]})
    noise = math.sqrt((0.1**2 + 0.1**2) / (1 + 3))
    assert errors == {
        "a": pytest.approx(noise / math.sqrt(2)),
        "b": pytest.approx(noise / 2),
        "c": pytest.approx(noise),
    }


@pytest.mark.parametrize(
    ("votes", "message"),
    [({"a": [0.4], "b": [0.2]}, "no trajectory has two votes"), ({"a": [1, 2], "b": []}, "'b' has no vote")],
)
def test_noise_shows_only_in_repeated_votes(votes, message):
    with pytest.raises(ValueError, match=message):
        score_errors(votes)


def outcomes(**scores: float) -> dict[str, Outcome]:
    return {key: Outcome("ok", "j", score, score > 0.6) for key, score in scores.items()}


def test_pairs_take_their_targets_from_the_errors():
    errors = {"a": 0.06, "b": 0.08, "c": 0.0}
    pairs = make_pairs(
        outcomes(a=0.9, b=0.8, c=0.1), group_id="g", rule=PairRule(label="rank"), errors=errors
    )
    targets = {(pair.preferred, pair.rejected): pair.target for pair in pairs}
    assert targets[("a", "b")] == pytest.approx(0.841344746)
    assert targets[("a", "c")] == pytest.approx(1.0)
    assert sum(pair.weight for pair in pairs) == pytest.approx(1.0)


def test_errors_and_sharpness_together_or_a_missing_error_are_refused():
    scored = outcomes(a=0.9, b=0.1)
    with pytest.raises(ValueError, match="give one"):
        make_pairs(scored, group_id="g", rule=PairRule(sharpness=1.0), errors={"a": 1.0, "b": 1.0})
    with pytest.raises(ValueError, match=r"no error for the scores of trajectories \['b'\]"):
        make_pairs(scored, group_id="g", rule=PairRule(), errors={"a": 1.0})


def test_the_label_success_follows_the_judge_and_not_the_unit_of_its_scores():
    scored = outcomes(a=0.7, b=0.6, c=0.3)
    pairs = make_pairs(scored, group_id="g", rule=PairRule(label="success"))
    assert [(pair.preferred, pair.rejected) for pair in pairs] == [("a", "c"), ("a", "b")]
    assert make_pairs(outcomes(b=0.6, c=0.3), group_id="g", rule=PairRule(label="success")) == ()


# From the shell


@pytest.fixture
def scored(tmp_path) -> tuple[Path, Path]:
    """The canaries and a noisy judge's outcomes on them, one under attack among them."""
    episodes, outcome_file = tmp_path / "episodes.jsonl", tmp_path / "outcomes.jsonl"
    write_episodes(episodes, canary_episodes())
    records = []
    for number, (key, episode) in enumerate(trajectory_ids(canary_episodes())):
        goal = 10 * episode.score
        panel = Panel(StubJudge(rule_of_goal=lambda *_, goal=goal: goal, noise=1.0, seed=number), samples=2)
        tally = panel.tally(episode, panel.judge_many([episode])[0])
        seat = number // 5 % 2
        records.append(JudgedEpisode.of(key, episode, tally.outcome, seat=seat, votes=tally.votes))
    records.append(replace(records[3], attack="pad", score=1.0, success=True))
    records.append(replace(records[4], seat=1, score=1.0, success=True))
    write_lines(outcome_file, [record.to_json() for record in records])
    return episodes, outcome_file


def test_pairs_are_made_from_recorded_outcomes_with_the_judges_own_doubt(scored, tmp_path, capsys):
    episodes, recorded = scored
    command = ["pairs", str(episodes), "--outcomes", str(recorded), "--label", "success"]
    assert main([*command, "--noise", "--out", str(tmp_path / "soft.jsonl")]) == 0
    assert main([*command, "--out", str(tmp_path / "hard.jsonl")]) == 0
    soft, hard = (read_pairs(tmp_path / f"{name}.jsonl") for name in ("soft", "hard"))
    assert "of 8 tasks" in capsys.readouterr().err
    assert [(p.preferred, p.rejected, p.weight) for p in soft] == [
        (p.preferred, p.rejected, p.weight) for p in hard
    ]
    won = {record.trajectory_id for record in read_outcomes(recorded)[:40] if record.success}
    assert {pair.preferred for pair in hard} == won
    assert {pair.target for pair in hard} == {1.0}
    assert all(0.5 < pair.target <= 1.0 for pair in soft)
    assert len(soft) >= 16
    assert len({pair.target for pair in soft}) > 1


@pytest.mark.parametrize("layout", ["pairs", "messages"])
def test_the_shell_writes_parquet(scored, tmp_path, layout):
    episodes, recorded = scored
    out = tmp_path / "pairs.parquet"
    options = ["--label", "success", "--layout", layout, "--format", "parquet", "--out", str(out)]
    assert main(["pairs", str(episodes), "--outcomes", str(recorded), *options]) == 0
    first = pyarrow.parquet.read_table(out).to_pylist()[0]
    assert list(first) == (
        ["group_id", "preferred", "rejected", "weight", "target"]
        if layout == "pairs"
        else ["prompt", "chosen", "rejected"]
    )


def test_the_shell_writes_a_data_set_folder(scored, tmp_path, capsys):
    episodes, _ = scored
    command = ["pairs", str(episodes), "--format", "dataset", "--out", str(tmp_path / "set")]
    assert main(command) == 2
    assert "Give --layout messages" in capsys.readouterr().err
    assert main([*command, "--layout", "messages"]) == 0
    table = pyarrow.parquet.read_table(tmp_path / "set" / "data" / "train-00000-of-00001.parquet")
    chosen = table.to_pylist()[0]["chosen"]
    assert [message["role"] for message in chosen] == ["assistant", "user", "assistant"]
    assert chosen[-1]["content"].startswith("<action>do: propose")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--noise"], "--noise needs --outcomes"),
        (["--noise", "--sharpness", "2", "--outcomes", "x"], "and no --sharpness"),
        (["--outcomes", "{short}"], "has no outcome of 39 of the 40 episodes"),
        (
            ["--outcomes", "{single}", "--noise"],
            "no trajectory has two votes. Score with --samples 2 or more.",
        ),
    ],
)
def test_outcomes_that_cannot_serve_are_refused(scored, tmp_path, capsys, options, message):
    episodes, recorded = scored
    lines = recorded.read_text().splitlines()
    files = {
        "short": lines[:1],
        "single": [json.dumps({**json.loads(line), "votes": [{"score": 0.5}]}) for line in lines],
    }
    for name, content in files.items():
        write_lines(tmp_path / name, content)
    filled = [option.format(**{name: tmp_path / name for name in files}) for option in options]
    assert main(["pairs", str(episodes), "--out", str(tmp_path / "out"), *filled]) == 2
    assert message in capsys.readouterr().err
