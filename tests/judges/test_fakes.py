"""Judges without a network: the one by rule and the one that only remembers."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from istar_envs.errors import ConfigError
from istar_judges.cache import VerdictCache
from istar_judges.dialogue import JudgedDialogue
from istar_judges.dialogue_judge import penalty_for_length, words_of
from istar_judges.errors import CacheMiss
from istar_judges.fakes import ReplayJudge, StubJudge, deal_rule
from istar_judges.llm_judge import LlmJudge
from judged import NAMES, ScriptedModel, make_dialogue, make_social_episode

DEAL = ((0, "Ann Lee [action] propose 120"), (1, "Bo Roe [action] accept"))


def spoken(*turns: tuple[int, str]) -> JudgedDialogue:
    return JudgedDialogue("Two meet.", turns, ("Sell.", "Buy."), NAMES, seat=0)


def goal(judge: StubJudge, dialogue: JudgedDialogue, seat: int = 0) -> int:
    return judge.judge_many([dialogue])[0].scores[seat]["goal"].score


# The judge by rule


def test_j14_the_stub_judge_needs_no_model_and_is_the_same_in_every_process():
    code = (
        "from judged import make_social_episode as m; from istar_judges import StubJudge;"
        "print([StubJudge(noise=2.0)(m(str(n))).score for n in range(20)])"
    )
    command = [sys.executable, "-c", code]
    tests = Path(__file__).parents[1]
    runs = {
        subprocess.run(command, cwd=tests, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    here = [StubJudge(noise=2.0)(make_social_episode(str(n))).score for n in range(20)]
    assert runs == {f"{here}\n"}
    assert len(set(here)) > 3


@pytest.mark.parametrize(
    ("turns", "score"),
    [
        (DEAL, 8.0),
        (DEAL[::-1], 2.0),
        ((DEAL[0],), 2.0),
        ((DEAL[0], (0, "Ann Lee [action] accept")), 2.0),
        (((0, 'Ann Lee said: "propose 120"'), (1, 'Bo Roe said: "accept"')), 2.0),
        (((1, 'Bo Roe said: "Hm."'),), 0.0),
    ],
)
def test_the_rule_believes_actions_alone(turns, score):
    assert deal_rule(spoken(*turns), 0) == score


def test_ordered_weaknesses_show():
    dialogue = make_dialogue("word " * 100, "x")
    assert goal(StubJudge(), dialogue) == 2
    assert goal(StubJudge(length_bias=3.0), dialogue) == 2 + 3
    assert goal(StubJudge(first_bias=2.0), dialogue, 0) - goal(StubJudge(first_bias=2.0), dialogue, 1) == 2
    claim = make_dialogue("My goal has been achieved.", "x")
    assert (goal(StubJudge(claim_bias=4.0), claim), goal(StubJudge(claim_bias=4.0), claim, 1)) == (6, 2)


def test_scores_are_whole_and_within_the_range():
    always = {low: StubJudge(rule_of_goal=lambda *_, low=low: low) for low in (-50.0, 50.0)}
    assert [goal(judge, make_dialogue()) for judge in always.values()] == [0, 10]
    seven = StubJudge("sotopia-v1").judge_many([make_dialogue()])[0].scores[1]
    assert {key: score.score for key, score in seven.items() if key != "goal"} == dict.fromkeys(
        set(seven) - {"goal"}, 0
    )


def test_samples_differ_only_with_noise():
    dialogue = make_dialogue()
    for noise, distinct in ((0.0, False), (3.0, True)):
        judge = StubJudge(noise=noise, rule_of_goal=lambda *_: 5.0)
        results = {sampled(judge, dialogue, sample) for sample in range(10)}
        assert (len(results) > 1) is distinct


def sampled(judge: StubJudge, dialogue: JudgedDialogue, sample: int) -> int:
    return asyncio.run(judge.ajudge(dialogue, sample=sample)).scores[0]["goal"].score


def test_a_failed_episode_has_no_number_here_either():
    assert StubJudge()(make_social_episode(end="failed", error="x")).status == "invalid"


# The penalty


def test_j11_a_penalty_for_length_takes_points_off_down_to_the_lowest_score():
    short, long = make_social_episode("hm", "x"), make_social_episode(" ".join(["word"] * 298), "x")
    fined = {"penalty": penalty_for_length(100, 2.0), "rule_of_goal": lambda *_: 9.0}
    judge = StubJudge(**fined)
    assert (judge(short).score, judge(short).success) == (0.9, True)
    assert words_of(make_dialogue(" ".join(["word"] * 298), "x"), 0) == 301
    assert judge(long).score == pytest.approx((9 - 2.01 * 2) / 10)
    assert judge(long).success is False
    assert StubJudge(**{**fined, "penalty": penalty_for_length(0, 1000.0)})(long).score == 0.0


# The judge that only remembers


def test_j14_the_replay_judge_repeats_recorded_verdicts_without_a_call(tmp_path):
    path, episodes = tmp_path / "verdicts.sqlite", [make_social_episode(goals=(g, 1)) for g in (2, 9)]
    model = ScriptedModel(structured="json_schema", extra={})
    with VerdictCache(path) as cache:
        live = LlmJudge(model, "goal-v1", cache=cache).outcomes(episodes)
    with VerdictCache(path, read_only=True) as cache:
        replay = ReplayJudge(cache, "judge-2025", rubric="goal-v1")
        assert replay.outcomes(episodes) == live
        assert replay.judge_many(episodes[:1])[0].is_cached
    assert [outcome.score for outcome in live] == [0.2, 0.9]
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    "change",
    [{"model": "judge-2026"}, {"rubric": "sotopia-v1"}, {"identity": {"structured": "off"}}],
)
def test_j14_a_verdict_that_was_not_recorded_is_an_error(tmp_path, change):
    path, episode = tmp_path / "verdicts.sqlite", make_social_episode()
    with VerdictCache(path) as cache:
        LlmJudge(ScriptedModel(structured="json_schema", extra={}), "goal-v1", cache=cache)(episode)
    options = {"model": "judge-2025", "rubric": "goal-v1", **change}
    with VerdictCache(path, read_only=True) as cache:
        with pytest.raises(CacheMiss, match="Judge once with a writable cache"):
            ReplayJudge(cache, **options)(episode)
        with pytest.raises(CacheMiss):
            ReplayJudge(cache, "judge-2025", rubric="goal-v1")(make_social_episode("Something else."))


def test_a_replay_judge_takes_no_cache_that_could_be_written_to(tmp_path):
    with VerdictCache(tmp_path / "new.sqlite") as cache, pytest.raises(ConfigError, match="read_only=True"):
        ReplayJudge(cache, "m")
