"""Mean goals and successes with their intervals, and what failures leave open.

Episodes of one scenario are alike, so intervals resample scenarios, never episodes. A failure has no
number: it is counted by cause, and the mean is told for the case that all failures had gone as badly, and
as well, as can be.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from istar_envs.episode import Episode, Outcome
from istar_judges.agreement.statistics import ClusterBootstrap, Estimate, Floats, mean_of
from istar_trainer.social.dialogues import Role
from istar_trainer.social.plan import ALL, HARD

MAX_GOAL: Final = 10.0
"""Upper end of the scale of goals; the lower one is 0."""


@dataclass(frozen=True, slots=True)
class Result:
    """One evaluated seat of one dialogue.

    Attributes:
        scenario: Id of the scenario, which intervals resample.
        family: Its family.
        is_hard: Whether it is one of the published hard ones.
        seat: Which seat.
        episode: What happened.
        outcome: What the judge says.
        culprit: Who could not act, if that ended the episode.
    """

    scenario: str
    family: str
    is_hard: bool
    seat: int
    episode: Episode
    outcome: Outcome
    culprit: Role | None = None

    @property
    def goal(self) -> float:
        """Goal from 0 to 10; NaN without a verdict."""
        return math.nan if self.outcome.score is None else MAX_GOAL * self.outcome.score

    @property
    def success(self) -> float:
        """1 for a goal above 6, else 0; NaN without a verdict."""
        return math.nan if self.outcome.success is None else float(self.outcome.success)

    @property
    def num_unreadable(self) -> int:
        """Replies of the seat that were no action."""
        return sum(not transition.valid for transition in self.episode.transitions)

    @property
    def failure(self) -> str | None:
        """Why there is no number: ``policy`` or ``partner`` failed, or the status of the verdict."""
        if self.outcome.status == "ok":
            return None
        return self.culprit or f"verdict {self.outcome.status}"


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean over the episodes that have a number.

    Attributes:
        mean: The mean with its 95% interval; without one if all scenarios have the same mean, since
            resampling them tells nothing then.
        worst: The mean if every failure had the lowest value.
        best: The mean if every failure had the highest value.
    """

    mean: Estimate
    worst: float
    best: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result.

    Attributes:
        group: A set or a family.
        seat: The seat, or ``both``.
        num_scenarios: Scenarios.
        num_episodes: Episodes, failed ones included.
        failures: Episodes without a number, by cause.
        goal: Goal from 0 to 10.
        success: Share of goals above 6.
        num_unreadable: Replies that were no action.
    """

    group: str
    seat: int | Literal["both"]
    num_scenarios: int
    num_episodes: int
    failures: Mapping[str, int]
    goal: Measure
    success: Measure
    num_unreadable: int


def summarize(results: Sequence[Result], scenarios: str, *, seed: int) -> tuple[Row, ...]:
    """Return the rows of a result: sets first, then families; each over both seats, then by seat.

    Args:
        results: What was evaluated; their order does not matter.
        scenarios: Which set or family that is.
        seed: Seed of the intervals.
    """
    groups = {scenarios: list(results)}
    if scenarios == ALL:
        groups[HARD] = [result for result in results if result.is_hard]
    if scenarios in (ALL, HARD):
        families = sorted({result.family for result in results})
        groups |= {family: [r for r in results if r.family == family] for family in families}
    return tuple(row for name, group in groups.items() if group for row in _rows(name, group, seed))


def _rows(name: str, results: Sequence[Result], seed: int) -> list[Row]:
    bootstrap = ClusterBootstrap([result.scenario for result in results], seed=seed)
    seats = sorted({result.seat for result in results})
    by_seat = [_row(name, seat, results, bootstrap) for seat in seats]
    return [_row(name, "both", results, bootstrap), *by_seat] if len(seats) > 1 else by_seat


def _row(
    name: str, seat: int | Literal["both"], results: Sequence[Result], bootstrap: ClusterBootstrap
) -> Row:
    counts = np.asarray([seat in ("both", result.seat) for result in results])
    clusters = np.asarray([result.scenario for result in results])
    own = [result for result, is_counted in zip(results, counts, strict=True) if is_counted]

    def measure(value: Callable[[Result], float], highest: float) -> Measure:
        """Average what results have."""
        values = np.asarray([value(result) for result in results])
        known = counts & np.isfinite(values)
        total, num = float(values[known].sum()), int(known.sum())
        mean = Estimate(mean_of(values[known]), num=num)
        if _differ(clusters[known], values[known]):
            mean = bootstrap.estimate(lambda sample: mean_of(values[sample]), known)
        return Measure(mean, total / len(own), (total + highest * (len(own) - num)) / len(own))

    return Row(
        group=name,
        seat=seat,
        num_scenarios=len({result.scenario for result in own}),
        num_episodes=len(own),
        failures=dict(sorted(Counter(r.failure for r in own if r.failure).items())),
        goal=measure(lambda result: result.goal, MAX_GOAL),
        success=measure(lambda result: result.success, 1.0),
        num_unreadable=sum(result.num_unreadable for result in own),
    )


def _differ(clusters: NDArray[np.str_], values: Floats) -> bool:
    """Whether not all clusters have the same mean; if they have, resampling them tells nothing."""
    return len({round(float(values[clusters == cluster].mean()), 9) for cluster in set(clusters)}) > 1
