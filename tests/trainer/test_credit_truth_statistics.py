"""Measures of credit against truth: hand-computed values, and resamples against recomputing from scratch."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_judges.agreement.statistics import spearman
from istar_trainer.credit_truth.statistics import MEASURES, draws, estimate, resamples
from istar_trainer.credit_truth.truth import StepKeys, StepTruth


def keys_of(groups, trajectories=None, states=None):
    rows = np.arange(len(groups))
    return StepKeys(
        np.asarray(groups),
        np.asarray(groups if trajectories is None else trajectories),
        rows if states is None else np.asarray(states),
    )


def exact(values):
    return StepTruth(np.asarray(values, dtype=float), np.zeros(len(values)), "given")


def value(name, credit, truth, keys):
    num_groups = keys.groups.max() + 1
    truth = truth if isinstance(truth, StepTruth) else exact(truth)
    return draws(MEASURES[name], np.asarray(credit, dtype=float), truth, keys, np.zeros((0, num_groups)))[0]


def tau_b(first, second):
    """Kendall's τ-b by its definition."""
    pairs = [
        (np.sign(first[i] - first[j]), np.sign(second[i] - second[j]))
        for i, j in combinations(range(len(first)), 2)
    ]
    untied = [sum(1 for pair in pairs if pair[side]) for side in (0, 1)]
    return sum(a * b for a, b in pairs) / math.sqrt(untied[0] * untied[1]) if all(untied) else math.nan


def random_steps(seed, rows=60, groups=6):
    generator = np.random.default_rng(seed)
    keys = keys_of(
        np.sort(np.append(generator.integers(groups, size=rows - groups), range(groups))),
        trajectories=np.sort(generator.integers(groups * 2, size=rows)),
        states=generator.integers(rows // 3, size=rows),
    )
    truth = StepTruth(generator.integers(-3, 4, size=rows) / 4, generator.integers(2, size=rows) / 5, "drawn")
    return generator.integers(-2, 3, size=rows) / 2, truth, keys


def test_the_truth_itself_agrees_perfectly_by_every_measure():
    truth = exact([0.5, -0.25, 0.1, -0.5, 0.2, 0.3])
    keys = keys_of([0, 0, 0, 1, 1, 1], states=[0, 0, 1, 2, 2, 3])
    for name in MEASURES:
        assert value(name, truth.advantages, truth, keys) == pytest.approx(1.0), name


def test_the_opposite_of_the_truth_is_wrong_by_every_measure_of_order():
    truth, keys = exact([0.5, -0.25, -0.5, 0.2]), keys_of([0, 0, 1, 1], states=[0, 0, 1, 1])
    assert value("spearman", -truth.advantages, truth, keys) == pytest.approx(-1.0)
    assert value("kendall", -truth.advantages, truth, keys) == pytest.approx(-1.0)
    for name in ("sign_accuracy", "good_vs_bad_auc", "same_state_auc"):
        assert value(name, -truth.advantages, truth, keys) == 0.0, name
    assert value("deciding_step_auc", -truth.advantages, truth, keys) == 1.0, "only sizes count there"


def test_noise_has_intervals_around_chance():
    generator = np.random.default_rng(3)
    groups = np.repeat(np.arange(32), 40)
    keys = keys_of(groups, trajectories=np.arange(len(groups)) // 8, states=np.arange(len(groups)) // 4)
    truth = exact(generator.normal(size=len(groups)))
    noise = generator.normal(size=len(groups))
    for name, measure in MEASURES.items():
        found = estimate(draws(measure, noise, truth, keys, resamples(32)), len(groups))
        assert found.low < measure.chance < found.high, name
        assert found.high - found.low < 0.2, name


def test_a_constant_credit_has_no_correlation_and_is_at_chance_elsewhere():
    truth, keys = [0.5, -0.25, -0.5, 0.2], keys_of([0, 0, 1, 1], states=[0, 0, 1, 1])
    for credit in ([0.0] * 4, [0.7] * 4):
        assert math.isnan(value("spearman", credit, truth, keys))
        assert math.isnan(value("kendall", credit, truth, keys))
        for name in ("good_vs_bad_auc", "deciding_step_auc", "same_state_auc"):
            assert value(name, credit, truth, keys) == 0.5, name
    assert value("sign_accuracy", [0.0] * 4, truth, keys) == 0.5
    assert value("sign_accuracy", [0.7] * 4, truth, keys) == 0.5, "two of four are good"


def test_signs_count_only_where_the_truth_is_clear():
    truth = StepTruth(np.array([0.3, -0.3, 0.3, 1e-12]), np.array([0.1, 0.1, 0.2, 0.0]), "given")
    assert truth.signs.tolist() == [1, -1, 0, 0]
    keys = keys_of([0, 0, 0, 0])
    assert value("sign_accuracy", [1.0, 1.0, -1.0, -1.0], truth, keys) == 0.5
    assert value("good_vs_bad_auc", [1.0, 2.0, 9.0, 9.0], truth, keys) == 0.0


def test_good_steps_are_compared_with_bad_ones_of_all_groups():
    keys = keys_of([0, 0, 1, 1])
    # good 3 and 1, bad 2 and 0: three of the four comparisons are right
    assert value("good_vs_bad_auc", [3.0, 2.0, 1.0, 0.0], [1.0, -1.0, 1.0, -1.0], keys) == 0.75


def test_the_deciding_step_is_sought_inside_its_trajectory():
    keys = keys_of([0] * 6, trajectories=[0, 0, 0, 1, 1, 1])
    truth = [0.0, -0.9, 0.1, 0.2, 0.2, 0.0]
    # first trajectory: |−4| is larger than |1| and as large as |4|; the second has no single deciding step
    assert value("deciding_step_auc", [1.0, -4.0, 4.0, 5.0, 6.0, 7.0], truth, keys) == 0.75


def test_moves_are_compared_in_the_same_state_only():
    keys = keys_of([0, 0, 0, 0, 0], states=[0, 0, 0, 1, 1])
    truth = [0.3, 0.1, 0.1, -0.5, 0.5]
    # state 0: 2 > 1 right, 2 = 2 half, the tie of truth does not count; state 1: wrong; 3 comparisons
    assert value("same_state_auc", [2.0, 1.0, 2.0, 9.0, 8.0], truth, keys) == pytest.approx(1.5 / 3)


def test_differences_that_are_rounding_are_ties():
    keys = keys_of([0, 0, 0])
    assert math.isnan(value("spearman", [1.0, 1.0 + 1e-9, 1.0 - 1e-9], [1.0, 2.0, 3.0], keys))


def test_correlations_are_those_of_the_definitions():
    credit, truth, keys = random_steps(0)
    assert value("spearman", credit, truth, keys) == pytest.approx(spearman(credit, truth.advantages))
    assert value("kendall", credit, truth, keys) == pytest.approx(tau_b(credit, truth.advantages))


@pytest.mark.property
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_a_resample_measures_what_its_rows_would(seed):
    """Drawing groups by counts equals writing their rows down again, each copy with its own trajectories."""
    credit, truth, keys = random_steps(seed)
    counts = resamples(6, count=1, seed=seed)
    copies = [(g, copy) for g in range(6) for copy in range(int(counts[0, g]))]
    rows = np.concatenate([np.flatnonzero(keys.groups == g) for g, _ in copies])
    labels = np.concatenate([np.full((keys.groups == g).sum(), place) for place, (g, _) in enumerate(copies)])
    _, trajectories = np.unique(np.stack([labels, keys.trajectories[rows]]), axis=1, return_inverse=True)
    _, states = np.unique(np.stack([labels, keys.states[rows]]), axis=1, return_inverse=True)
    again = StepTruth(truth.advantages[rows], truth.errors[rows], "copied")
    # what belongs together must not span groups
    own = keys_of(
        keys.groups,
        np.unique(np.stack([keys.groups, keys.trajectories]), axis=1, return_inverse=True)[1],
        np.unique(np.stack([keys.groups, keys.states]), axis=1, return_inverse=True)[1],
    )
    for name, measure in MEASURES.items():
        drawn = draws(measure, credit, truth, own, counts)[1]
        written = value(name, credit[rows], again, keys_of(labels, trajectories, states))
        assert drawn == pytest.approx(written, nan_ok=True), name


def test_resamples_draw_as_many_groups_as_there_are():
    counts = resamples(5, count=200, seed=1)
    assert (counts.sum(axis=1) == 5).all()
    assert counts.mean() == 1.0
    assert (resamples(5, count=3, seed=1) == counts[:3]).all()


def test_reliability_is_the_share_of_variance_that_is_no_error():
    assert exact([1.0, -1.0]).reliability == 1.0
    assert StepTruth(np.array([1.0, -1.0]), np.array([0.5, 0.5]), "").reliability == 0.75
    assert math.isnan(exact([0.0, 0.0]).reliability)
