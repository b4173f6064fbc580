import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

import istar_judges
from istar_envs.episode import write_episodes
from istar_judges import PairRule, read_pairs, read_preference_examples
from istar_judges.cli import Pairs, main


@pytest.fixture
def episodes(tmp_path, play):
    """Two tasks: one won and two lost games (two alike), one without a loser, and a broken game."""
    path = tmp_path / "episodes.jsonl"
    played = [play(["down", "right"]), play(["right"]), play(["down", "right"])]
    other = [play(["right"], task_id="level-2"), replace(play([], task_id="level-2"), end="failed")]
    write_episodes(path, [*played, *other])
    return path


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_score_prints_one_outcome_per_episode_in_order(episodes, capsys):
    assert main(["score", str(episodes), "--verifier", "sokoban"]) == 0
    out, err = capsys.readouterr()
    assert [record["score"] for record in lines(out)] == [0.0, 1.0, 0.0, 1.0, None]
    assert [record["status"] for record in lines(out)] == ["ok"] * 4 + ["invalid"]
    assert lines(out)[0]["task_id"] == "level-1"
    assert len({record["trajectory_id"] for record in lines(out)}) == 5
    assert err == "5 episodes: 1 invalid, 4 ok; 2 successes\n"


def test_score_writes_returns_to_a_file(episodes, tmp_path, capsys):
    out = tmp_path / "scores.jsonl"
    assert main(["score", str(episodes), "--scale", "return", "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert lines(out.read_text())[1]["score"] == pytest.approx(10.9, abs=1e-12)


def test_pairs_writes_weighed_pairs_of_each_task(episodes, tmp_path, capsys):
    out = tmp_path / "pairs.jsonl"
    assert main(["pairs", str(episodes), "--label", "rank", "--out", str(out)]) == 0
    pairs = read_pairs(out)
    assert [(pair.group_id, pair.weight) for pair in pairs] == [("istar/Sokoban-v0:level-1", 0.5)] * 2
    assert capsys.readouterr().err.splitlines()[1] == f"2 pairs from 1 of 2 tasks: {out}"
    assert main(["score", str(episodes)]) == 0
    ids = [record["trajectory_id"] for record in lines(capsys.readouterr().out)]
    assert {pair.preferred for pair in pairs} == {ids[1]}
    assert {pair.rejected for pair in pairs} == {ids[0], ids[2]}


def test_identical_episodes_are_not_paired_even_if_their_returns_differ(tmp_path, play):
    path, out = tmp_path / "episodes.jsonl", tmp_path / "pairs.jsonl"
    poor = play(["right"])
    rich = replace(poor, transitions=(replace(poor.transitions[0], reward=20.0),))
    write_episodes(path, [poor, rich])
    assert main(["pairs", str(path), "--scale", "return", "--label", "rank", "--out", str(out)]) == 0
    assert read_pairs(out) == ()


def test_pairs_do_not_depend_on_the_order_of_the_file(episodes, tmp_path):
    turned = tmp_path / "turned.jsonl"
    turned.write_text("".join(reversed(episodes.read_text().splitlines(keepends=True))))
    for name, source in (("a", episodes), ("b", turned)):
        assert main(["pairs", str(source), "--pair-set", "one_to_one", "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_pairs_writes_messages_for_dpo_trainers(episodes, tmp_path):
    out = tmp_path / "dpo.jsonl"
    assert main(["pairs", str(episodes), "--layout", "messages", "--out", str(out)]) == 0
    assert [example.chosen[0].content for example in read_preference_examples(out)] == [
        "<action>right</action>"
    ] * 2


def test_pair_options_reach_the_rule(episodes, tmp_path):
    out = tmp_path / "pairs.jsonl"
    options = ["--label", "margin", "--margin", "0.5", "--sharpness", "2", "--pair-set", "best_worst"]
    assert main(["pairs", str(episodes), *options, "--weights", "pair", "--out", str(out)]) == 0
    (pair,) = read_pairs(out)
    assert pair.target == pytest.approx(0.880797078, abs=1e-9)  # σ(2 · 1)


def test_the_command_line_has_the_defaults_of_the_rule():
    defaults = {field.name: field.default for field in fields(Pairs)}
    assert {name: defaults[name] for name in PairRule.model_fields} == PairRule().model_dump()


def test_output_is_replaced_only_when_asked(episodes, tmp_path, capsys):
    out = tmp_path / "pairs.jsonl"
    out.write_text("precious\n")
    assert main(["pairs", str(episodes), "--out", str(out)]) == 2
    assert "output exists already" in capsys.readouterr().err
    assert out.read_text() == "precious\n"
    assert main(["pairs", str(episodes), "--out", str(out), "--overwrite"]) == 0
    assert len(read_pairs(out)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--verifier", "sokobann"], "unknown verifier 'sokobann'. Did you mean \"sokoban\"?"),
        (["--margin", "-1"], "--margin: Input should be greater than or equal to 0 (got -1.0)."),
        (["--label", "margin"], "label 'margin' needs margin > 0; set margin, or use label 'rank'."),
    ],
)
def test_wrong_options_end_in_one_line_and_code_two(episodes, tmp_path, capsys, options, message):
    assert main(["pairs", str(episodes), "--out", str(tmp_path / "out"), *options]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("istar-judge: ")
    assert message in err
    assert not (tmp_path / "out").exists()


def test_a_missing_or_broken_file_ends_in_one_line_and_code_two(tmp_path, capsys):
    assert main(["score", str(tmp_path / "none.jsonl")]) == 2
    assert "cannot read episodes" in capsys.readouterr().err
    (tmp_path / "broken.jsonl").write_text("{}\n")
    assert main(["score", str(tmp_path / "broken.jsonl")]) == 2
    err = capsys.readouterr().err
    assert "broken.jsonl, line 1: not an episode" in err
    assert err.count("\n") == 1


def test_a_mistyped_option_is_answered_by_the_parser(episodes, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["pairs", str(episodes), "--out", "x", "--lable", "rank"])
    assert stop.value.code == 2
    assert "--label" in capsys.readouterr().err


def test_the_readme_example_runs(episodes):
    readme = Path(istar_judges.__file__).parents[2] / "README.md"
    code = readme.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    names: dict = {"path": episodes}
    exec(code, names)
    assert sum(pair.weight for pair in names["batch"]) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.integration
def test_the_command_survives_a_reader_that_stops(tmp_path, play):
    path = tmp_path / "many.jsonl"
    write_episodes(path, [play(["right"])] * 2000)
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import istar_judges.cli as c; raise SystemExit(c.main())",
            "score",
            str(path),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
