"""How well a credit agrees with the truth, with intervals over groups: pure functions on numbers.

Every measure is written as sums over groups or over pairs of groups. A resample of groups is then
a row of counts, and thousands of resamples cost a few matrix products (exactly what recomputing the
measure on every resample would give). NaN stands for what cannot be told, such as a constant credit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from istar_judges.agreement.statistics import Estimate
from istar_trainer.credit_truth.truth import Floats, Ints, StepKeys, StepTruth

NUM_RESAMPLES: Final = 1000
_ENDS: Final = (0.025, 0.975)
_MIN_USABLE: Final = 0.5
"""Share of resamples in which a measure must exist for its interval to exist."""
_DIGITS: Final = 6
"""Decimal digits of a credit, relative to the largest, below which differences are rounding."""

OfCounts = Callable[[Floats], Floats]
"""From how often each group is drawn, float64[draws, groups], to the measure of each draw."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One way to compare a credit with the truth.

    Attributes:
        title: Its name, short.
        meaning: What it is, in one sentence.
        chance: The value of a credit that knows nothing.
        of: Makes the measure from credit, truth and keys.
    """

    title: str
    meaning: str
    chance: float
    of: Callable[[Floats, StepTruth, StepKeys], OfCounts]


def draws(measure: Measure, credit: Floats, truth: StepTruth, keys: StepKeys, counts: Floats) -> Floats:
    """Return a measure on the recorded groups, then on each resample; float64[1 + resamples]."""
    everything = np.ones((1, counts.shape[1]))
    return measure.of(_rounded(credit), truth, keys)(np.concatenate([everything, counts]))


def estimate(drawn: Floats, num: int) -> Estimate:
    """Return the first value with the percentile interval of the others."""
    value, others = float(drawn[0]), drawn[1:]
    usable = others[np.isfinite(others)]
    if not np.isfinite(value) or usable.size < max(1.0, _MIN_USABLE * others.size):
        return Estimate(value, num=num)
    low, high = np.quantile(usable, _ENDS)
    return Estimate(value, float(low), float(high), num)


def resamples(num_groups: int, *, count: int = NUM_RESAMPLES, seed: int = 0) -> Floats:
    """Draw groups with replacement.

    Returns:
        How often each group is in each resample, float64[count, groups].
    """
    generator = np.random.default_rng(seed)
    return generator.multinomial(num_groups, [1 / num_groups] * num_groups, size=count).astype(np.float64)


def _spearman(credit: Floats, truth: StepTruth, keys: StepKeys) -> OfCounts:
    first, second = _places(credit), _places(truth.advantages)

    def of_counts(counts: Floats) -> Floats:
        weights = counts[:, keys.groups]
        return np.array([_pearson(_ranks(first, w), _ranks(second, w), w) for w in weights])

    return of_counts


def _kendall(credit: Floats, truth: StepTruth, keys: StepKeys) -> OfCounts:
    return _tau(credit, truth.advantages, keys.groups)


def _good_vs_bad(credit: Floats, truth: StepTruth, keys: StepKeys) -> OfCounts:
    clear = truth.signs != 0
    signs = truth.signs[clear].astype(np.float64)
    where = keys.groups[clear], int(keys.groups.max()) + 1
    agreed, pairs = _concordance(credit[clear], signs, *where), _concordance(signs, signs, *where)
    return lambda drawn: 0.5 + 0.5 * _quotient(_both(drawn, agreed), _both(drawn, pairs))


def _sign_accuracy(credit: Floats, truth: StepTruth, keys: StepKeys) -> OfCounts:
    signs = truth.signs
    agrees = np.where(signs != 0, 0.5 + 0.5 * np.sign(credit) * signs, 0.0)
    return _share(agrees, (signs != 0).astype(np.float64), keys.groups)


def _same_state(credit: Floats, truth: StepTruth, keys: StepKeys) -> OfCounts:
    agreed, pairs = np.zeros_like(credit), np.zeros_like(credit)
    for rows in _classes(keys.states):
        if len(rows) > 1:
            order = np.sign(truth.advantages[rows][:, None] - truth.advantages[rows])
            ranked = np.sign(credit[rows][:, None] - credit[rows])
            pairs[rows] = np.abs(order).sum(axis=1)
            agreed[rows] = 0.5 * pairs[rows] + 0.5 * (order * ranked).sum(axis=1)
    return _share(agreed, pairs, keys.groups)


def _deciding_step(credit: Floats, truth: StepTruth, keys: StepKeys) -> OfCounts:
    found, sought = np.zeros_like(credit), np.zeros_like(credit)
    weight, size = np.abs(truth.advantages), np.abs(credit)
    for rows in _classes(keys.trajectories):
        decider = rows[int(weight[rows].argmax())]
        others = rows[rows != decider]
        is_clear = len(others) and truth.signs[decider] and weight[decider] > weight[others].max()
        if is_clear:
            sought[decider] = 1.0
            found[decider] = np.mean(0.5 + 0.5 * np.sign(size[decider] - size[others]))
    return _share(found, sought, keys.groups)


MEASURES: Final[Mapping[str, Measure]] = {
    "spearman": Measure("Spearman ρ", "Rank correlation of credit and true advantage.", 0.0, _spearman),
    "kendall": Measure(
        "Kendall τ", "Ordered pairs of steps minus disordered ones, ties discounted (τ-b).", 0.0, _kendall
    ),
    "sign_accuracy": Measure(
        "sign right",
        "Share of steps with a clear advantage whose credit has its sign; zero credit counts half.",
        0.5,
        _sign_accuracy,
    ),
    "good_vs_bad_auc": Measure(
        "good vs bad",
        "How often a clearly positive advantage is credited above a clearly negative one.",
        0.5,
        _good_vs_bad,
    ),
    "deciding_step_auc": Measure(
        "deciding step",
        "How often a trajectory's step with the largest |advantage| has a larger |credit| than another.",
        0.5,
        _deciding_step,
    ),
    "same_state_auc": Measure(
        "same state",
        "Of two different moves made in the same situation, how often the better one is credited more.",
        0.5,
        _same_state,
    ),
}
"""Every measure by the name that JSON uses, in the order of tables."""


def _tau(first: Floats, second: Floats, groups: Ints) -> OfCounts:
    """Kendall's τ-b: concordance over the root of the pairs untied in either."""
    where = groups, int(groups.max()) + 1
    agreed = _concordance(first, second, *where)
    untied = _concordance(first, first, *where), _concordance(second, second, *where)
    return lambda drawn: _quotient(
        _both(drawn, agreed), np.sqrt(_both(drawn, untied[0]) * _both(drawn, untied[1]))
    )


def _concordance(first: Floats, second: Floats, groups: Ints, num_groups: int) -> Floats:
    """Sum sign(Δfirst)·sign(Δsecond) over the pairs of rows of every two groups, float64[groups, groups]."""
    result = np.zeros((num_groups, num_groups))
    for group in range(num_groups):
        own = groups == group
        signs = np.sign(first[own][:, None] - first) * np.sign(second[own][:, None] - second)
        result[group] = np.bincount(groups, weights=signs.sum(axis=0), minlength=num_groups)
    return result


def _both(counts: Floats, pairs: Floats) -> Floats:
    """Weigh a value of every two groups by how often both are drawn; float64[draws]."""
    return np.asarray(((counts @ pairs) * counts).sum(axis=1), dtype=np.float64)


def _share(part: Floats, whole: Floats, groups: Ints) -> OfCounts:
    """Divide two sums over rows."""
    parts, wholes = (np.bincount(groups, weights=values) for values in (part, whole))
    return lambda drawn: _quotient(drawn @ parts, drawn @ wholes)


def _quotient(above: Floats, below: Floats) -> Floats:
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def _classes(keys: Ints) -> list[Ints]:
    """Return the rows of each key."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)


def _places(values: Floats) -> Ints:
    """Number the distinct values in ascending order."""
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def _ranks(places: Ints, weights: Floats) -> Floats:
    """Rank rows that occur ``weights`` times each; equal values share the mean of their ranks."""
    counts = np.bincount(places, weights=weights)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places], dtype=np.float64)


def _pearson(x: Floats, y: Floats, weights: Floats) -> float:
    total = weights.sum()
    x, y = x - weights @ x / total, y - weights @ y / total
    scale = float(np.sqrt((weights @ x**2) * (weights @ y**2)))
    return float(weights @ (x * y)) / scale if scale > 1e-12 else float("nan")


def _rounded(credit: Floats) -> Floats:
    """Make credits equal that differ by rounding only."""
    largest = float(np.abs(credit).max(initial=0.0))
    return np.round(credit / largest, _DIGITS) + 0.0 if largest > 0 else credit
