"""Who judges an evaluation: each dialogue is asked about once, and a verdict belongs to its own seat."""

from dataclasses import replace
from typing import Any

import pytest

from istar_envs.chat import ChatTimeout
from istar_judges import LlmJudge
from istar_trainer.social.judging import ask_once, open_judging
from istar_trainer.social.options import SocialEvalArgs
from judged import ScriptedModel, make_social_episode


def both_seats(*words: str, **fields: Any) -> list[Any]:
    return [make_social_episode(*words, seat=seat, task_id=f"t/seat{seat}", **fields) for seat in (0, 1)]


def test_one_answer_scores_both_seats_of_a_dialogue():
    model = ScriptedModel()
    episodes = [*both_seats("Hi."), *both_seats("Good day.", goals=(9, 5))]
    outcomes = ask_once(LlmJudge(model, "goal-v1"), episodes)
    assert [o.score for o in outcomes] == pytest.approx([0.7, 0.3, 0.9, 0.5])
    assert [o.success for o in outcomes] == [True, False, True, False]
    assert len(model.requests) == 2


def test_a_rubric_with_a_call_for_each_seat_asks_about_the_evaluated_ones():
    model = ScriptedModel()
    first, second = both_seats("Hi.")
    judge = LlmJudge(model, "goal-each-v1")
    assert [o.score for o in ask_once(judge, [second])] == pytest.approx([0.3])
    assert len(model.requests) == 1
    assert [o.score for o in ask_once(judge, [first, second])] == pytest.approx([0.7, 0.3])
    assert len(model.requests) == 3


def test_a_failed_episode_costs_nothing_and_a_missing_verdict_takes_both_seats():
    model = ScriptedModel(ChatTimeout("no answer within 60 s"))
    first, second = both_seats("Hi.")
    failed = replace(first, end="failed", error="partner m: gone", transitions=())
    outcomes = ask_once(LlmJudge(model, "goal-v1"), [failed, first, second])
    assert [o.status for o in outcomes] == ["invalid", "timeout", "timeout"]
    assert outcomes[0].detail == "the episode failed: partner m: gone"
    assert [o.score for o in outcomes] == [None, None, None]
    assert len(model.requests) == 1


def test_the_verifier_needs_no_endpoint():
    with open_judging(SocialEvalArgs("expert")) as judging:
        assert judging.name == "sotopia-verifier/1"
        assert judging.budget is None
        (outcome,) = judging.outcomes([make_social_episode(task_id="nowhere/1/seat0")])
    assert (outcome.status, outcome.score) == ("invalid", None)
