"""How well two raters agree and what a judge's scores depend on: pure functions on numbers.

NaN stands for what cannot be told, such as a correlation with a rater who always says the same. All
intervals are percentile bootstraps over whole clusters, since episodes of one scenario are alike.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from istar_envs.seeding import CounterRng, derive_seed

Floats = NDArray[np.float64]
Statistic = Callable[[NDArray[np.intp]], float]
"""From the indices of a sample (with repetitions) to a number."""

NUM_RESAMPLES: Final = 1000
_LEVEL: Final = 0.95
_MIN_USABLE: Final = 0.5
"""Share of resamples in which a statistic must exist for its interval to exist."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95% interval; NaN where unknown.

    Attributes:
        value: The number.
        low: Lower end of the interval.
        high: Upper end.
        num: How many observations it comes from.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    num: int = 0


@dataclass(frozen=True, slots=True)
class Bin:
    """One row of a calibration table.

    Attributes:
        low: Lower end of the judged scores in it.
        high: Upper end; part of the last bin only.
        num: How many.
        judged: Mean judged score.
        true: Mean true score.
    """

    low: float
    high: float
    num: int
    judged: float
    true: float


def ranks(values: ArrayLike) -> Floats:
    """Rank values from 1 up; equal values share the mean of their ranks.

    Example:
        >>> ranks([5.0, 1.0, 5.0]).tolist()
        [2.5, 1.0, 2.5]
    """
    array = np.asarray(values, dtype=np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Floats = (last - (counts - 1) / 2.0)[inverse]
    return shared


def pearson(first: ArrayLike, second: ArrayLike) -> float:
    """Return the linear correlation; NaN if one side is constant or there are fewer than two values."""
    x, y = _pair(first, second)
    if len(x) < 2:
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 1e-12 else math.nan


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """Return the rank correlation; NaN if one side is constant or there are fewer than two values."""
    x, y = _pair(first, second)
    return pearson(ranks(x), ranks(y)) if len(x) > 1 else math.nan


def partial_spearman(first: ArrayLike, second: ArrayLike, given: ArrayLike) -> float:
    """Return the rank correlation of two lists among equals in a third; NaN if the third decides one of them.

    That is (ρ₁₂ − ρ₁₃ρ₂₃) / √((1 − ρ₁₃²)(1 − ρ₂₃²)) with Spearman's ρ.
    """
    direct = spearman(first, second)
    left, right = spearman(first, given), spearman(second, given)
    if math.isnan(left) or math.isnan(right):  # the third is the same everywhere, or there is nothing to tell
        return direct
    rest = (1.0 - left**2) * (1.0 - right**2)
    return (direct - left * right) / math.sqrt(rest) if rest > 1e-12 else math.nan


def weighted_kappa(first: ArrayLike, second: ArrayLike) -> float:
    """Return Cohen's kappa with quadratic weights: 1 − observed / expected squared disagreement.

    Needs no categories: for whole numbers it is the usual quadratic kappa, for others its continuation.

    Returns:
        1 for equal scores, 0 for what chance gives; NaN if both always give the same one score.
    """
    x, y = _pair(first, second)
    if not len(x):
        return math.nan
    observed = float(np.mean((x - y) ** 2))
    expected = float(x.var() + y.var() + (x.mean() - y.mean()) ** 2)
    return 1.0 - observed / expected if expected > 1e-12 else math.nan


def mean_of(values: ArrayLike) -> float:
    """Return the mean; NaN of nothing."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()) if array.size else math.nan


def calibration(judged: ArrayLike, true: ArrayLike, edges: Sequence[float]) -> tuple[Bin, ...]:
    """Compare judged with true scores by bins of the judged ones; empty bins are left out.

    Args:
        judged: Scores of the judge.
        true: Scores of the same episodes by somebody to trust.
        edges: Ends of the bins, ascending; a score on an edge is in the bin above, the last edge's below.
    """
    x, y = _pair(judged, true)
    place = np.clip(np.searchsorted(np.asarray(edges), x, side="right") - 1, 0, len(edges) - 2)
    return tuple(
        Bin(edges[i], edges[i + 1], int(chosen.sum()), float(x[chosen].mean()), float(y[chosen].mean()))
        for i in range(len(edges) - 1)
        if (chosen := place == i).any()
    )


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the mean distance of judged from true over the bins, weighted by size; NaN without any."""
    total = sum(row.num for row in bins)
    return sum(row.num * abs(row.judged - row.true) for row in bins) / total if total else math.nan


def flip_rate(votes: Sequence[Sequence[float]], threshold: float) -> float:
    """Return how often a second verdict on the same episode contradicts the first one.

    Args:
        votes: Scores of each episode; those with fewer than two say nothing.
        threshold: Scores above it are successes.

    Returns:
        Mean over episodes of the probability that two different votes fall on both sides of the threshold.
    """
    shares = []
    for scores in votes:
        n, wins = len(scores), sum(score > threshold for score in scores)
        if n > 1:
            shares.append(2.0 * wins * (n - wins) / (n * (n - 1)))
    return mean_of(shares)


def vote_noise(votes: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of one vote around its episode's mean, pooled over all episodes.

    Args:
        votes: Scores of each episode; those with fewer than two say nothing.
    """
    many = [np.asarray(scores, dtype=np.float64) for scores in votes if len(scores) > 1]
    if not many:
        return math.nan
    squares = sum(float(((scores - scores.mean()) ** 2).sum()) for scores in many)
    return math.sqrt(squares / sum(len(scores) - 1 for scores in many))


class ClusterBootstrap:
    """Resamples whole clusters; equal clusters and seeds give equal resamples everywhere.

    Args:
        clusters: Cluster of each observation.
        num_resamples: How many resamples.
        seed: Which ones.
    """

    def __init__(self, clusters: Sequence[str], *, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> None:
        names = sorted(set(clusters))
        places: dict[str, list[int]] = {name: [] for name in names}
        for index, name in enumerate(clusters):
            places[name].append(index)
        members = [np.asarray(places[name], dtype=np.intp) for name in names]
        rng = CounterRng(derive_seed(seed, "cluster bootstrap", len(members)))
        self._samples = [
            np.concatenate([np.empty(0, np.intp), *(members[rng.below(len(members))] for _ in members)])
            for _ in range(num_resamples)
        ]

    def estimate(self, statistic: Statistic, known: NDArray[np.bool_]) -> Estimate:
        """Return a statistic and its percentile interval.

        Args:
            statistic: What is estimated.
            known: Which observations count, True = counts.
        """
        value = statistic(np.flatnonzero(known))
        drawn = np.asarray([statistic(sample[known[sample]]) for sample in self._samples])
        usable = drawn[np.isfinite(drawn)]
        num = int(known.sum())
        if not math.isfinite(value) or usable.size < _MIN_USABLE * max(1, drawn.size):
            return Estimate(value, num=num)
        low, high = np.quantile(usable, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
        return Estimate(value, float(low), float(high), num)


def _pair(first: ArrayLike, second: ArrayLike) -> tuple[Floats, Floats]:
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"two lists of equal length are compared; got shapes {x.shape} and {y.shape}")
    return x, y
