"""What is found out about a judge, and what of it speaks against trusting it.

Records; how the numbers come about is in ``compare.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from istar_judges.agreement.attacks import MAX_RISE
from istar_judges.agreement.raters import Observations
from istar_judges.agreement.statistics import Bin, Estimate, Floats, calibration_error


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two raters agree on what both rated.

    Attributes:
        first: Name of one.
        second: Name of the other.
        spearman: Rank correlation.
        kappa: Quadratic weighted kappa.
        difference: Mean score of the first minus that of the second, in points.
        contradictions: Share of observations that one calls a success and the other does not.
    """

    first: str
    second: str
    spearman: Estimate
    kappa: Estimate
    difference: Estimate
    contradictions: Estimate


@dataclass(frozen=True, slots=True)
class Third:
    """One third of the observations by length.

    Attributes:
        low: Fewest words.
        high: Most words.
        num: How many observations.
        judged: Mean judged score.
        true: Mean score of the reference on the same observations; NaN without one.
    """

    low: int
    high: int
    num: int
    judged: float
    true: float


@dataclass(frozen=True, slots=True)
class Trust:
    """How far one judge can be trusted; every score is in points from 0 to 10.

    Attributes:
        name: Short name.
        source: The judge's own name with version.
        num: Observations with a verdict.
        failures: Observations without one, by status.
        mean: Mean score of the verdicts.
        bounds: What the mean would be if every failure were a 0, and if every one were a 10.
        against: Agreement with each reference (audit, people).
        calibration: Calibration table for each reference, by its name.
        seat_gap: Mean score of seat 0 minus that of seat 1.
        seat_gap_error: The same of judged minus true scores: what the seats do not explain.
        order_gap: What being presented first adds, from votes in both orders.
        length: Rank correlation of score and words said.
        length_given_truth: The same among observations of equal true score; ought to be 0.
        thirds: Scores by length.
        flip_rate: How often a second vote contradicts the first on success.
        noise: Standard deviation of one vote around its observation's mean.
        rises: What each attack adds to the score.
    """

    name: str
    source: str
    num: int
    failures: Mapping[str, int]
    mean: Estimate
    bounds: tuple[float, float]
    against: tuple[Agreement, ...]
    calibration: Mapping[str, tuple[Bin, ...]]
    seat_gap: Estimate
    seat_gap_error: Estimate
    order_gap: Estimate
    length: Estimate
    length_given_truth: Estimate
    thirds: tuple[Third, ...]
    flip_rate: Estimate
    noise: float
    rises: Mapping[str, Estimate]

    def calibration_error(self, reference: str) -> float:
        """Return the mean distance of judged from true scores, in points."""
        return calibration_error(self.calibration[reference])


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that a trust report says.

    Attributes:
        judges: Each judge by itself.
        pairs: Every two judges, and every two references, with each other.
        references: Names of the references, most trusted first.
        num_scenarios: Clusters of the bootstrap.
        scores: Points of every rater, references included, in the order of the observations.
        observations: What was rated.
    """

    judges: tuple[Trust, ...]
    pairs: tuple[Agreement, ...]
    references: tuple[str, ...]
    num_scenarios: int
    scores: Mapping[str, Floats]
    observations: Observations


_LIMITS: Final = {"kappa": 0.6, "flips": 0.1, "order": 0.5, "length": 0.3, "failed": 0.05}
"""Below the first and above the others, a judge gets a warning. Conventions, not laws."""


def warnings_of(judge: Trust) -> tuple[str, ...]:
    """Say in words what speaks against trusting a judge."""
    found = [
        f"agrees little with {row.second}: kappa {row.kappa.value:.2f} (below {_LIMITS['kappa']})"
        for row in judge.against
        if row.kappa.value < _LIMITS["kappa"]
    ]
    num_failed = sum(judge.failures.values())
    if num_failed > _LIMITS["failed"] * (judge.num + num_failed):
        low, high = judge.bounds
        found.append(
            f"{num_failed} of {judge.num + num_failed} have no verdict: the mean lies between "
            f"{low:.2f} and {high:.2f}"
        )
    if judge.flip_rate.value > _LIMITS["flips"]:
        found.append(f"contradicts itself in {judge.flip_rate.value:.0%} of second verdicts")
    if abs(judge.order_gap.value) > _LIMITS["order"]:
        found.append(f"being presented first is worth {judge.order_gap.value:+.2f} points")
    if abs(judge.length_given_truth.value) > _LIMITS["length"]:
        found.append(
            f"depends on length: rank correlation {judge.length_given_truth.value:+.2f} at equal truth"
        )
    found += [
        f"attack {name!r} raises the score by {rise.value:.2f} points (more than {MAX_RISE})"
        for name, rise in judge.rises.items()
        if rise.value > MAX_RISE
    ]
    return tuple(found)
