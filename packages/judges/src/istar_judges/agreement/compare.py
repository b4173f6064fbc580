"""What the ratings say about the judges: agreement, calibration, biases, stability, resistance.

Numbers only; how they look on a terminal or a page is ``report.py``'s.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from istar_judges.agreement.raters import POINTS, JudgeFile, Observations
from istar_judges.agreement.statistics import (
    Bin,
    ClusterBootstrap,
    Estimate,
    Floats,
    calibration,
    flip_rate,
    mean_of,
    partial_spearman,
    spearman,
    vote_noise,
    weighted_kappa,
)
from istar_judges.agreement.trust import Agreement, Comparison, Third, Trust
from istar_judges.sotopia import GOAL_THRESHOLD

BIN_EDGES: Final = (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
"""Ends of the bins of calibration tables, in points."""

_Indices = NDArray[np.intp]


def compare(
    judges: Sequence[JudgeFile],
    references: Mapping[str, Floats],
    observations: Observations,
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Compare judges with each other and with references.

    Args:
        judges: What each judge said.
        references: Points of each reference in the order of the observations, most trusted first.
        observations: What was rated.
        num_resamples: Resamples of each interval.
        seed: Seed of the resamples.
    """
    bootstrap = ClusterBootstrap(observations.clusters, num_resamples=num_resamples, seed=seed)
    scores = {judge.name: observations.aligned(judge.scores) for judge in judges}
    agree = partial(_agreement, bootstrap)
    return Comparison(
        tuple(_trust(judge, scores[judge.name], references, observations, bootstrap) for judge in judges),
        tuple(agree(a, b) for part in (scores, references) for a, b in combinations(part.items(), 2)),
        tuple(references),
        len(set(observations.clusters)),
        {**scores, **references},
        observations,
    )


def _agreement(
    bootstrap: ClusterBootstrap, first: tuple[str, Floats], second: tuple[str, Floats]
) -> Agreement:
    (name, x), (other, y) = first, second
    known = np.isfinite(x) & np.isfinite(y)
    contradict = (x > GOAL_THRESHOLD) != (y > GOAL_THRESHOLD)
    return Agreement(
        name,
        other,
        bootstrap.estimate(lambda i: spearman(x[i], y[i]), known),
        bootstrap.estimate(lambda i: weighted_kappa(x[i], y[i]), known),
        bootstrap.estimate(lambda i: mean_of(x[i] - y[i]), known),
        bootstrap.estimate(lambda i: mean_of(contradict[i]), known),
    )


def _trust(
    judge: JudgeFile,
    scores: Floats,
    references: Mapping[str, Floats],
    observations: Observations,
    bootstrap: ClusterBootstrap,
) -> Trust:
    truth = next(iter(references.values()), np.full_like(scores, np.nan))
    errors = scores - truth
    votes = [[score for score, _ in judge.votes.get(key, ())] for key in observations.keys]
    flips = np.asarray([flip_rate([scores], GOAL_THRESHOLD) for scores in votes])
    orders = observations.aligned({key: _order_gap(key[1], given) for key, given in judge.votes.items()})
    mean = _mean(bootstrap, scores)
    return Trust(
        name=judge.name,
        source=judge.source,
        num=mean.num,
        failures=Counter(judge.failed.values()),
        mean=mean,
        bounds=_bounds(mean, len(judge.failed)),
        against=tuple(_agreement(bootstrap, (judge.name, scores), (n, t)) for n, t in references.items()),
        calibration={name: _calibration(scores, true) for name, true in references.items()},
        seat_gap=_seat_gap(bootstrap, scores, observations.seats),
        seat_gap_error=_seat_gap(bootstrap, errors, observations.seats),
        order_gap=_mean(bootstrap, orders),
        length=_correlation(bootstrap, scores, observations.words),
        length_given_truth=_correlation(bootstrap, scores, observations.words, truth),
        thirds=_thirds(scores, truth, observations.words),
        flip_rate=_mean(bootstrap, flips),
        noise=vote_noise(votes),
        rises={n: _mean(bootstrap, observations.aligned(a) - scores) for n, a in judge.attacked.items()},
    )


def _mean(bootstrap: ClusterBootstrap, values: Floats) -> Estimate:
    return bootstrap.estimate(lambda i: mean_of(values[i]), np.isfinite(values))


def _correlation(
    bootstrap: ClusterBootstrap, values: Floats, others: Floats, given: Floats | None = None
) -> Estimate:
    known = np.isfinite(values) & np.isfinite(others)
    if given is None:
        return bootstrap.estimate(lambda i: spearman(values[i], others[i]), known)
    known &= np.isfinite(given)
    return bootstrap.estimate(lambda i: partial_spearman(values[i], others[i], given[i]), known)


def _seat_gap(bootstrap: ClusterBootstrap, values: Floats, seats: Floats) -> Estimate:
    def gap(i: _Indices) -> float:
        return mean_of(values[i][seats[i] == 0]) - mean_of(values[i][seats[i] == 1])

    return bootstrap.estimate(gap, np.isfinite(values) & np.isfinite(seats))


def _order_gap(seat: int | None, votes: Sequence[tuple[float, bool]]) -> float:
    """Return the mean vote when the seat came first minus that when it came last; NaN without both."""
    first = [score for score, swapped in votes if (seat == 0) != swapped]
    last = [score for score, swapped in votes if (seat == 0) == swapped]
    return mean_of(first) - mean_of(last)


def _bounds(mean: Estimate, num_failed: int) -> tuple[float, float]:
    total = mean.num + num_failed
    if not total:
        return math.nan, math.nan
    judged = mean.value * mean.num if mean.num else 0.0
    return judged / total, (judged + POINTS * num_failed) / total


def _calibration(scores: Floats, true: Floats) -> tuple[Bin, ...]:
    known = np.isfinite(scores) & np.isfinite(true)
    return calibration(scores[known], true[known], BIN_EDGES)


def _thirds(scores: Floats, true: Floats, words: Floats) -> tuple[Third, ...]:
    """Cut the observations in three by length; those with a reference alone, if there is one."""
    known = np.isfinite(scores) & np.isfinite(words)
    if (known & np.isfinite(true)).any():
        known &= np.isfinite(true)
    order = np.flatnonzero(known)[np.argsort(words[known], kind="stable")]
    parts = [part for part in np.array_split(order, 3) if len(part)]
    return tuple(
        Third(*_ends(words[part]), len(part), mean_of(scores[part]), mean_of(true[part])) for part in parts
    )


def _ends(words: Floats) -> tuple[int, int]:
    return int(words.min()), int(words.max())
