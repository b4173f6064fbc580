"""Intervals, paired differences and sample sizes against numbers worked out by hand."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from istar_trainer.compare.statistics import (
    Estimate,
    Signs,
    area_under,
    bootstrap_mean,
    bootstrap_share,
    first_reaching,
    seeds_needed,
    sign_counts,
    student_interval,
    student_quantile,
)

VALUES = arrays(np.float64, (3, 4), elements=st.floats(-1, 1).map(lambda x: round(x, 3)))


def ends(estimate):
    return estimate.low, estimate.high


def test_values_that_are_all_equal_leave_no_doubt():
    assert bootstrap_mean(np.full((3, 5), 0.25)) == Estimate(0.25, 0.25, 0.25)
    assert student_interval(np.full((3, 5), 0.25)) == Estimate(0.25, 0.25, 0.25)


def test_two_seeds_are_drawn_alike_or_mixed_and_spread_by_the_root_of_two():
    estimate = bootstrap_mean(np.array([[0.0], [1.0]]))
    assert estimate.value == 0.5
    assert ends(estimate) == pytest.approx((0.5 - 0.5 * math.sqrt(2), 0.5 + 0.5 * math.sqrt(2)))


def test_a_single_seed_is_not_spread():
    tasks = np.array([[0.0, 1.0]])
    assert bootstrap_mean(tasks) == Estimate(0.5, 0.0, 1.0)
    assert student_interval(tasks) is None


def test_the_bootstrap_draws_seeds_and_the_tasks_that_they_share():
    generator = np.random.default_rng(3)
    values = generator.random((4, 6)) + generator.random((4, 1))
    draws = []
    for _ in range(20_000):
        seeds, tasks = generator.integers(0, 4, 4), generator.integers(0, 6, 6)
        draws.append(values[np.ix_(seeds, tasks)].mean())
    spread = values.mean() + math.sqrt(4 / 3) * (np.array(draws) - values.mean())
    width = np.quantile(spread, 0.975) - np.quantile(spread, 0.025)
    assert ends(bootstrap_mean(values)) == pytest.approx(
        tuple(np.quantile(spread, (0.025, 0.975))), abs=0.05 * width
    )


def test_equal_shapes_see_equal_draws_so_differences_stay_paired():
    values = np.random.default_rng(0).random((5, 30))
    shifted = bootstrap_mean(values + 0.125)
    assert ends(shifted) == pytest.approx(tuple(end + 0.125 for end in ends(bootstrap_mean(values))))


def test_students_interval_adds_the_variance_of_seeds_and_of_tasks():
    estimate = student_interval(np.array([[1.0, 2.0], [3.0, 6.0]]))
    # MS of seeds 9, of tasks 4, residual 1: variance (9 + 4 − 1)/4 = 3; 144/98 degrees round down to 1
    assert estimate.value == 3
    assert estimate.high - estimate.value == pytest.approx(12.7062 * math.sqrt(3), rel=1e-5)


def test_tasks_that_agree_leave_students_interval_to_the_seeds():
    values = np.array([[1.0, 2.0], [4.0, 3.0], [2.5, 2.5]])
    means = [1.5, 3.5, 2.5]
    half = 4.302653 * statistics.stdev(means) / math.sqrt(3)
    assert ends(student_interval(values)) == pytest.approx((2.5 - half, 2.5 + half), abs=1e-5)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (4, 2.7764),
        (5, 2.5706),
        (10, 2.2281),
        (30, 2.0423),
        (999, 1.9623),
    ],
)
def test_students_quantile_is_that_of_the_tables(degrees, quantile):
    assert student_quantile(degrees) == pytest.approx(quantile, abs=1e-4)


@pytest.mark.property
@settings(max_examples=25, deadline=None)
@given(values=VALUES, order=st.permutations(range(3)))
def test_the_order_of_seeds_does_not_matter_and_the_sign_mirrors(values, order):
    student = student_interval(values)
    assert ends(student_interval(values[order])) == pytest.approx(ends(student), abs=1e-9)
    low, high = ends(bootstrap_mean(-values))
    assert (-high, -low) == pytest.approx(ends(bootstrap_mean(values)), abs=1e-9)


def test_an_interval_on_one_side_excludes_zero():
    assert Estimate(0.2, 0.1, 0.3).excludes_zero
    assert Estimate(-0.2, -0.3, -0.1).excludes_zero
    assert not Estimate(0.2, 0.0, 0.3).excludes_zero


def test_tasks_count_by_the_sign_of_their_sum_over_seeds():
    differences = np.array([[1.0, 1.0, -1.0, 0.0], [1.0, -1.0, -1.0, -1.0]])
    assert sign_counts(differences) == Signs(better=1, worse=2, equal=1)


def test_the_seeds_needed_follow_from_spread_and_size():
    # (1.95996 + 0.84162) · 0.141421 / 0.2 = 1.98102, squared 3.92
    assert seeds_needed(np.array([0.1, 0.3])) == 4
    assert seeds_needed(np.array([-0.1, -0.3])) == 4
    assert seeds_needed(np.array([0.2, 0.2])) == 2
    assert seeds_needed(np.array([0.1, -0.1])) is None
    assert seeds_needed(np.array([0.3])) is None


def test_the_share_of_a_lead_is_drawn_together_with_the_lead():
    lead = np.array([[0.5, 0.25], [0.25, 0.5], [0.25, 0.25]])
    assert bootstrap_share(lead / 2, lead) == Estimate(0.5, pytest.approx(0.5), pytest.approx(0.5))


def test_a_lead_that_may_be_none_has_no_shares():
    lead = np.array([[0.5, -0.25], [0.25, -0.5]])
    assert bootstrap_share(lead, lead) is None


def test_a_curve_is_weighed_by_the_distance_between_its_points():
    assert area_under(np.array([0.0, 10.0, 20.0]), np.array([0.0, 1.0, 1.0])) == 0.75
    assert area_under(np.array([0.0, 10.0, 40.0]), np.array([0.0, 0.0, 1.0])) == 0.375
    assert area_under(np.array([5.0]), np.array([0.3])) == 0.3


def test_the_first_iteration_at_the_threshold_is_found():
    iterations, values = np.array([5.0, 10.0, 15.0]), np.array([0.2, 0.5, 0.4])
    assert first_reaching(iterations, values, 0.5) == 10
    assert first_reaching(iterations, values, 0.51) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_seeds", "seed_sd", "task_sd"), [(5, 0.0, 0.0), (5, 0.03, 0.1), (5, 0.08, 0.0), (3, 0.03, 0.1)]
)
def test_intervals_cover_the_true_difference_as_often_as_they_say(num_seeds, seed_sd, task_sd):
    generator = np.random.default_rng(11)
    covered = np.zeros(2)
    for _ in range(400):
        ability = generator.normal(0.5, 0.15, 200)
        gap = 0.05 + generator.normal(0, task_sd, 200)
        rates = generator.normal(0, seed_sd, (2, num_seeds, 1)) + np.stack([[ability], [ability + gap]])
        first, second = (generator.random(rates.shape) < rates).astype(float)
        kinds = student_interval(second - first), bootstrap_mean(second - first)
        covered += [kind.low <= 0.05 <= kind.high for kind in kinds]
    assert 0.92 <= covered[0] / 400 <= 0.98
    assert covered[1] / 400 >= 0.9
