"""Advantages of a policy in any environment, estimated by playing on from recorded situations.

A recorded step takes one situation to the next, so its advantage is the expected outcome after it
minus the one before. Both are estimated with the same draws (common random numbers): continuations
that happen to make the recorded move are the same on both sides and cancel.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Final

import numpy as np
from torch import Tensor

from istar_envs.seeding import derive_seed
from istar_trainer.attempts import Task
from istar_trainer.credit_truth.truth import Floats, StepTruth, played, situation
from istar_trainer.errors import RolloutError
from istar_trainer.records import Group, Step, Trajectory
from istar_trainer.rollout import Player
from istar_trainer.sampler import Completion, Request, Sampler

PER_ROUND: Final = 16
"""Continuations of a situation before it is decided whether it needs more."""
_TOGETHER: Final = 256
"""Continuations played at once."""


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop.

    Attributes:
        max_error: Standard error of an advantage that is small enough.
        continuations: Most continuations of one situation.
    """

    max_error: float
    continuations: int


@dataclass(slots=True)
class _Situation:
    """A place that episodes were recorded to pass, and the outcomes of continuations from there."""

    task: Task
    trajectory: Trajectory
    number: int
    outcomes: list[float] = field(default_factory=list)

    @property
    def opening(self) -> tuple[Step, ...]:
        return self.trajectory.steps[: self.number]

    def is_on_the_way_of(self, continuation: Trajectory) -> bool:
        """Whether an episode passed the same states up to here."""
        ways = zip(self.trajectory.episode.transitions, continuation.episode.transitions, strict=False)
        return all(a.state_key == b.state_key for a, b in islice(ways, self.number + 1))


@dataclass(frozen=True, slots=True)
class _Row:
    """A recorded step: the situation before it and, unless it was the last, the one after it."""

    before: _Situation
    after: _Situation | None
    outcome: float

    def gains(self) -> Floats:
        """Return outcome after minus outcome before, for every pair of continuations with equal draws."""
        before = np.array(self.before.outcomes)
        after = np.full(len(before), self.outcome) if self.after is None else np.array(self.after.outcomes)
        num = min(len(before), len(after))
        return np.asarray(after[:num] - before[:num], dtype=np.float64)

    def error(self) -> float:
        """Return the standard error of the mean gain; infinite before there are two."""
        gains = self.gains()
        return float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else np.inf


class OpeningSampler:
    """Gives the first replies of every trajectory from a list, then draws.

    Args:
        sampler: Draws the later replies.
        openings: First replies of each task, all equally many.
        group_size: Trajectories per task.
    """

    def __init__(self, sampler: Sampler, openings: Sequence[Sequence[Step]], group_size: int) -> None:
        self._sampler = sampler
        self._replies = [
            [Completion(tuple(s.response_ids), tuple(s.sampler_logprobs)) for s in opening]
            for opening in openings
        ]
        self._group_size = group_size
        self._calls = 0

    @property
    def snapshot_id(self) -> int:
        """Version of the weights in use."""
        return self._sampler.snapshot_id

    def generate(self, requests: Sequence[Request], *, temperature: float) -> list[Completion]:
        """Answer the requests of one step of all trajectories.

        Raises:
            RolloutError: If a trajectory ended inside its opening.
        """
        step, self._calls = self._calls, self._calls + 1
        if step >= len(self._replies[0]):
            return self._sampler.generate(requests, temperature=temperature)
        if len(requests) != len(self._replies) * self._group_size:
            raise _not_repeatable(
                f"an episode ended before step {step + 1}, although it was recorded to go on"
            )
        return [replies[step] for replies in self._replies for _ in range(self._group_size)]

    def load(self, weights: dict[str, Tensor], snapshot_id: int) -> None:
        """Hand new weights on."""
        self._sampler.load(weights, snapshot_id)


class SampledValues:
    """Expected outcomes by playing on.

    Args:
        player: Played the recorded groups, and plays their continuations.
        sampler: The policy.
        judge: Outcome of every trajectory of some groups, as the run judges them; NaN without verdict.
        temperature: Sampling temperature of the recorded groups.
        seed: Seed of the continuations.
        note: Told how far it is.
    """

    def __init__(
        self,
        player: Player,
        sampler: Sampler,
        judge: Callable[[Sequence[Group]], Floats],
        *,
        temperature: float,
        seed: int,
        note: Callable[[str], None],
    ) -> None:
        self._player, self._sampler, self._judge = player, sampler, judge
        self._temperature, self._seed, self._note = temperature, seed, note

    def advantages(self, groups: Sequence[Group], budget: Budget) -> StepTruth:
        """Estimate Q − V of every recorded step.

        Args:
            groups: What was played with the policy.
            budget: When to stop; each step goes on until its own error is small enough.

        Raises:
            RolloutError: If the environment does not repeat itself, or a continuation has no verdict.
        """
        rows = self._rows(groups)
        for number in range(-(-budget.continuations // PER_ROUND)):
            wanted = [row for row in rows if not row.error() <= budget.max_error]
            if not wanted:
                break
            self._note(f"round {number + 1}: playing on for {len(wanted)} of {len(rows)} steps")
            self._play_on([s for row in wanted for s in (row.before, row.after) if s is not None], number)
        gains = np.round([row.gains().mean() for row in rows], 9)
        errors = np.array([row.error() for row in rows])
        num = [len(row.gains()) for row in rows]
        return StepTruth(
            gains,
            errors,
            f"estimated: {min(num)} to {max(num)} continuations of each step, "
            f"root mean square error {np.sqrt(np.square(errors).mean()):.3f}",
        )

    def _rows(self, groups: Sequence[Group]) -> list[_Row]:
        """Find the distinct situations and which steps lie between them."""
        recorded = [t.id for group in groups for t in group.trajectories]
        outcomes = dict(zip(recorded, self._outcomes(groups), strict=True))
        found: dict[Hashable, _Situation] = {}
        rows = []
        for group, trajectory in played(groups):
            path = [
                found.setdefault(
                    (*situation(trajectory, number), _past(trajectory, number)),
                    _Situation(Task(group.id, group.task_seed), trajectory, number),
                )
                for number in range(len(trajectory.steps))
            ]
            afters: list[_Situation | None] = [*path[1:], None]
            outcome = float(outcomes[trajectory.id])
            rows += [_Row(before, after, outcome) for before, after in zip(path, afters, strict=True)]
        return rows

    def _play_on(self, situations: Sequence[_Situation], number: int) -> None:
        """Give each distinct situation another round of continuations."""
        distinct = {id(s): s for s in situations if len(s.outcomes) == number * PER_ROUND}
        in_order = sorted(distinct.values(), key=lambda s: s.number)
        for _, group in groupby(in_order, key=lambda s: s.number):
            equal = list(group)
            for start in range(0, len(equal), _TOGETHER // PER_ROUND):
                self._play_some(equal[start : start + _TOGETHER // PER_ROUND], number)

    def _play_some(self, situations: Sequence[_Situation], number: int) -> None:
        """Play on from situations after equally many steps."""
        groups = self._player.play(
            [s.task for s in situations],
            OpeningSampler(self._sampler, [s.opening for s in situations], PER_ROUND),
            group_size=PER_ROUND,
            seed=derive_seed(self._seed, "continuations", number),
            temperature=self._temperature,
        )
        outcomes = self._outcomes(groups).reshape(len(situations), PER_ROUND)
        for origin, group, found in zip(situations, groups, outcomes, strict=True):
            if not origin.is_on_the_way_of(group.trajectories[0]):
                raise _not_repeatable(f"task {origin.task.id} went another way with its recorded replies")
            origin.outcomes += found.tolist()

    def _outcomes(self, groups: Sequence[Group]) -> Floats:
        outcomes = self._judge(groups)
        if not np.isfinite(outcomes).all():
            lost = int((~np.isfinite(outcomes)).sum())
            raise RolloutError(
                f"{lost} of {len(outcomes)} episodes have no verdict, so the value of what led to them is "
                "unknown. Look at why the judge could not tell."
            )
        return outcomes


def _past(trajectory: Trajectory, number: int) -> tuple[float, int]:
    """Return what counts in the outcome and happened already: rewards and invalid steps."""
    past = trajectory.episode.transitions[:number]
    return round(sum(t.reward for t in past), 9), sum(not t.valid for t in past)


def _not_repeatable(what: str) -> RolloutError:
    return RolloutError(
        f"{what}: the environment does not repeat itself, so nothing can be played on from a recorded step."
    )
