"""Means, intervals over scenarios, and bounds over failures, against numbers worked out by hand."""

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_envs.episode import Episode, Outcome
from istar_trainer.social.summary import Result, Row, summarize


def result(goal: float | None, scenario: str = "s", *, seat: int = 0, **changes: Any) -> Result:
    """One evaluated seat; None is a verdict that timed out."""
    episode = Episode("istar/Sotopia-v0", f"{scenario}/seat{seat}", "", (), False, 0.0, "terminated")
    outcome = Outcome("timeout", "j") if goal is None else Outcome("ok", "j", goal / 10, goal > 6)
    return Result(
        **{
            "scenario": scenario,
            "family": "division",
            "is_hard": False,
            "seat": seat,
            "episode": episode,
            "outcome": outcome,
            **changes,
        }
    )


def only_row(*results: Result) -> Row:
    (row,) = summarize(results, "division", seed=0)
    return row


def test_a_mean_comes_with_its_counts():
    row = only_row(result(7.0, "a"), result(2.0, "a"), result(6.0, "b"))
    assert (row.group, row.seat) == ("division", 0)
    assert (row.num_scenarios, row.num_episodes, row.failures) == (2, 3, {})
    assert (row.goal.mean.value, row.goal.mean.num) == (5.0, 3)
    assert row.success.mean.value == pytest.approx(1 / 3)
    assert row.goal.worst == row.goal.best == pytest.approx(5.0)


def test_failures_are_no_zeros_but_bound_the_mean():
    row = only_row(
        result(8.0, "a"),
        result(4.0, "b"),
        result(None, "c"),
        result(None, "d", culprit="policy"),
        result(None, "d", culprit="partner"),
    )
    assert row.failures == {"verdict timeout": 1, "policy": 1, "partner": 1}
    assert (row.goal.mean.value, row.goal.mean.num, row.num_episodes) == (6.0, 2, 5)
    assert (row.goal.worst, row.goal.best) == pytest.approx((12 / 5, 42 / 5))
    assert (row.success.worst, row.success.best) == pytest.approx((1 / 5, 4 / 5))


def test_without_any_verdict_the_bounds_are_the_whole_scale():
    row = only_row(result(None, "a"), result(None, "b"))
    assert math.isnan(row.goal.mean.value)
    assert math.isnan(row.goal.mean.low)
    assert (row.goal.worst, row.goal.best) == (0.0, 10.0)
    assert (row.success.worst, row.success.best) == (0.0, 1.0)


def test_a_success_is_a_goal_above_six():
    assert only_row(result(6.0, "a"), result(6.1, "b")).success.mean.value == 0.5


def test_more_episodes_of_the_same_scenarios_make_no_interval_narrower():
    few = [result(goal, f"s{i}") for i, goal in enumerate((1.0, 4.0, 5.0, 9.0))]
    once, often = only_row(*few), only_row(*few * 25)
    assert (once.num_episodes, often.num_episodes) == (4, 100)
    assert (often.goal.mean.low, often.goal.mean.high) == pytest.approx(
        (once.goal.mean.low, once.goal.mean.high)
    )
    many = only_row(*(result(goal, f"s{i}") for i, goal in enumerate((1.0, 4.0, 5.0, 9.0) * 25)))
    assert many.goal.mean.high - many.goal.mean.low < (once.goal.mean.high - once.goal.mean.low) / 3


def test_an_interval_has_about_the_width_of_theory():
    rng = random.Random(0)
    row = only_row(*(result(rng.uniform(0, 10), f"s{i}") for i in range(200)))
    width = 2 * 1.96 * (10 / math.sqrt(12)) / math.sqrt(200)
    assert row.goal.mean.high - row.goal.mean.low == pytest.approx(width, rel=0.15)


@pytest.mark.parametrize("goals", [(5.0,), (5.0, 5.0)])
def test_no_interval_is_made_up_where_scenarios_do_not_differ(goals):
    row = only_row(*(result(goal, f"s{i}") for i, goal in enumerate(goals)))
    assert row.goal.mean.value == 5.0
    assert math.isnan(row.goal.mean.low)
    assert math.isnan(only_row(result(1.0, "a"), result(9.0, "a")).goal.mean.low)


def test_intervals_follow_the_seed_and_not_the_order():
    results = [result(goal, f"s{goal}") for goal in range(10)]
    first = summarize(results, "division", seed=0)
    assert summarize(results, "division", seed=0) == first
    assert summarize(results[::-1], "division", seed=0)[0].goal.mean.low == pytest.approx(
        first[0].goal.mean.low
    )
    assert summarize(results, "division", seed=1) != first


def test_rows_are_sets_then_families_each_by_seat_too():
    results = [
        result(4.0, "a", seat=0),
        result(8.0, "a", seat=1),
        result(2.0, "b", seat=0, family="bargaining", is_hard=True),
        result(None, "b", seat=1, family="bargaining", is_hard=True),
    ]
    rows = summarize(results, "all", seed=0)
    assert [(row.group, row.seat, row.goal.mean.num) for row in rows] == [
        *(("all", "both", 3), ("all", 0, 2), ("all", 1, 1)),
        *(("hard", "both", 1), ("hard", 0, 1), ("hard", 1, 0)),
        *(("bargaining", "both", 1), ("bargaining", 0, 1), ("bargaining", 1, 0)),
        *(("division", "both", 2), ("division", 0, 1), ("division", 1, 1)),
    ]
    assert rows[0].goal.mean.value == pytest.approx(14 / 3)
    assert (rows[2].num_episodes, rows[2].failures) == (2, Counter({"verdict timeout": 1}))
    hard = summarize(results[2:], "hard", seed=0)
    assert [(row.group, row.seat) for row in hard][::3] == [("hard", "both"), ("bargaining", "both")]


GOALS = st.lists(
    st.tuples(st.none() | st.floats(0, 10), st.sampled_from("abcd"), st.sampled_from((0, 1))), min_size=1
)


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(GOALS)
def test_the_mean_lies_within_the_bounds_and_nothing_is_lost(drawn):
    rows = summarize([result(g, s, seat=seat) for g, s, seat in drawn], "division", seed=0)
    row = rows[0]
    assert row.num_episodes == len(drawn) == row.goal.mean.num + sum(row.failures.values())
    assert -1e-9 <= row.goal.worst <= row.goal.best <= 10 + 1e-9
    if row.goal.mean.num:
        assert row.goal.worst - 1e-9 <= row.goal.mean.value <= row.goal.best + 1e-9
        assert row.success.worst - 1e-9 <= row.success.mean.value <= row.success.best + 1e-9
    assert sum(r.num_episodes for r in rows[1:]) in (0, len(drawn))
