"""Intervals, paired differences and sample sizes of a comparison, on plain arrays.

Values are ``[seeds, tasks]``: each seed is a run of its own, all runs face the same tasks, so seeds and
tasks are crossed. What has no value per task (time, an area) has one column.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np
from jaxtyping import Float

NUM_DRAWS: Final = 4000
"""Bootstrap draws; the ends of an interval then vary by a few percent of its length."""
_SEED: Final = 20_250


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95% interval.

    Attributes:
        value: The mean over seeds and tasks.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Signs:
    """Tasks on which a method did better, worse or equally well, over the seeds together.

    Attributes:
        better: Tasks solved more often.
        worse: Tasks solved less often.
        equal: Tasks solved equally often.
    """

    better: int
    worse: int
    equal: int


def bootstrap_mean(values: Float[np.ndarray, "seeds tasks"]) -> Estimate:
    """Estimate a mean by the hierarchical bootstrap: over seeds, then over the tasks they share.

    Resampling n seeds shows only (n − 1)/n of their variance, which matters for few seeds, so draws are
    spread around the mean by √(n/(n − 1)). With a single seed the interval speaks of tasks alone.

    Args:
        values: One value per seed and task; at least one of each.

    Returns:
        The mean and its 2.5% and 97.5% percentiles.
    """
    mean = float(values.mean())
    low, high = np.quantile(_spread(_draws_of(values), mean, len(values)), (0.025, 0.975))
    return Estimate(mean, float(low), float(high))


def bootstrap_share(
    part: Float[np.ndarray, "seeds tasks"], whole: Float[np.ndarray, "seeds tasks"]
) -> Estimate | None:
    """Estimate what share of one mean another one is, both drawn together.

    Args:
        part: Paired differences of a method.
        whole: Paired differences of the method that bounds it, of the same shape.

    Returns:
        mean(part) / mean(whole), or None if the interval of ``whole`` reaches down to 0.
    """
    if bootstrap_mean(whole).low <= 0:
        return None
    num_seeds = len(whole)
    tops = _spread(_draws_of(part), float(part.mean()), num_seeds)
    bottoms = _spread(_draws_of(whole), float(whole.mean()), num_seeds)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanquantile(np.where(bottoms > 0, tops / bottoms, np.nan), (0.025, 0.975))
    return Estimate(float(part.mean() / whole.mean()), float(low), float(high))


def student_interval(values: Float[np.ndarray, "seeds tasks"]) -> Estimate | None:
    """Estimate a mean by Student's t for crossed seeds and tasks, both drawn at random.

    The variance of the mean is (MS_seeds + MS_tasks − MS_residual) / (seeds · tasks), at least that of the
    seeds alone; the degrees of freedom are Satterthwaite's. Closer to 95% than the bootstrap for few seeds,
    as long as means of seeds and of tasks are roughly normal.

    Args:
        values: One value per seed and task; at least two tasks.

    Returns:
        The mean and its 95% interval, or None for a single seed.
    """
    num_seeds, num_tasks = values.shape
    if num_seeds < 2:
        return None
    mean = float(values.mean())
    of_seeds, of_tasks = values.mean(axis=1), values.mean(axis=0)
    residual = values - of_seeds[:, None] - of_tasks + mean
    by_seed = num_tasks * float(of_seeds.var(ddof=1))
    by_task = num_seeds * float(of_tasks.var(ddof=1))
    rest_freedom = (num_seeds - 1) * (num_tasks - 1)
    rest = float((residual**2).sum()) / rest_freedom
    total, freedom = by_seed, float(num_seeds - 1)
    if by_task > rest:
        total = by_seed + by_task - rest
        freedom = total**2 / (
            by_seed**2 / (num_seeds - 1) + by_task**2 / (num_tasks - 1) + rest**2 / rest_freedom
        )
    half = student_quantile(max(1, int(freedom))) * math.sqrt(total / values.size)
    return Estimate(mean, mean - half, mean + half)


def sign_counts(differences: Float[np.ndarray, "seeds tasks"]) -> Signs:
    """Count tasks by the sign of their mean difference."""
    signs = np.sign(differences.sum(axis=0))
    return Signs(int((signs > 0).sum()), int((signs < 0).sum()), int((signs == 0).sum()))


def seeds_needed(differences: Float[np.ndarray, " seeds"], *, power: float = 0.8) -> int | None:
    """Say how many seeds would show a difference of the observed size, roughly.

    Args:
        differences: Mean difference of each seed.
        power: Chance of an interval that excludes 0.

    Returns:
        ((z_0.975 + z_power) · std / mean)², at least 2; None for a single seed or a difference of 0.
    """
    if len(differences) < 2 or differences.mean() == 0:
        return None
    normal = NormalDist()
    sizes = normal.inv_cdf(0.975) + normal.inv_cdf(power)
    return max(2, math.ceil((sizes * float(differences.std(ddof=1) / differences.mean())) ** 2))


def area_under(iterations: Float[np.ndarray, " points"], values: Float[np.ndarray, " points"]) -> float:
    """Mean height of a curve between its first and last point (trapezoids); a single point is its own."""
    if len(iterations) == 1:
        return float(values[0])
    areas = np.diff(iterations) * (values[1:] + values[:-1]) / 2
    return float(areas.sum() / (iterations[-1] - iterations[0]))


def first_reaching(
    iterations: Float[np.ndarray, " points"], values: Float[np.ndarray, " points"], threshold: float
) -> int | None:
    """Return the first iteration whose value is at least the threshold; None if none is."""
    reached = np.flatnonzero(values >= threshold)
    return int(iterations[reached[0]]) if len(reached) else None


def student_quantile(degrees: int) -> float:
    """97.5% quantile of Student's t with a whole number of degrees of freedom, at least 1.

    Example:
        >>> round(student_quantile(4), 3)
        2.776
    """
    low, high = 0.0, 13.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _central_probability(middle, degrees) < 0.95 else (low, middle)
    return high


def _central_probability(t: float, degrees: int) -> float:
    """P(|T| ≤ t) by the finite series in the angle whose tangent is t/√degrees."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2
    total, term = 0.0, cosine**is_odd
    for power in range(is_odd, degrees - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return (angle + sine * total) * 2 / math.pi if is_odd else sine * total


def _spread(draws: Float[np.ndarray, " draws"], mean: float, num_seeds: int) -> Float[np.ndarray, " draws"]:
    """Undo the variance that resampling few seeds loses."""
    factor = math.sqrt(num_seeds / (num_seeds - 1)) if num_seeds > 1 else 1.0
    return mean + factor * (draws - mean)


def _draws_of(values: Float[np.ndarray, "seeds tasks"]) -> Float[np.ndarray, " draws"]:
    """Return the mean of each draw; arrays of one shape see the same draws, so they stay paired."""
    seed_counts, task_counts = _draws(*values.shape)
    sums: Float[np.ndarray, " draws"] = ((seed_counts @ values) * task_counts).sum(axis=1)
    return sums / values.size


@lru_cache(maxsize=8)
def _draws(
    num_seeds: int, num_tasks: int
) -> tuple[Float[np.ndarray, "draws seeds"], Float[np.ndarray, "draws tasks"]]:
    """Draw how often each seed and each task counts."""
    generator = np.random.default_rng(_SEED)
    counts = [
        generator.multinomial(num, np.full(num, 1 / num), size=NUM_DRAWS).astype(np.float64)
        for num in (num_seeds, num_tasks)
    ]
    return counts[0], counts[1]
