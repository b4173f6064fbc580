"""What is known of recorded steps: who they belong to, and what each was really worth.

Rows are the steps of the trajectories that did not break, in the order of ``batch.collate``.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from istar_trainer.records import Group, Step, Trajectory

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SURE: Final = 2.0
"""Standard errors that an advantage must be away from zero before its sign counts."""
_ROUNDING: Final = 1e-9
"""Advantages below this are rounding, not value."""


@dataclass(frozen=True, slots=True)
class StepTruth:
    """The true advantage of every row.

    Attributes:
        advantages: Q − V of each step in units of the outcome, float64[rows].
        errors: Standard error of each; where it was computed, half of a bound on its error.
        source: How they were found, in words.
    """

    advantages: Floats
    errors: Floats
    source: str

    @property
    def signs(self) -> Ints:
        """1 for good steps, −1 for bad ones, 0 where the advantage may as well be zero."""
        is_sure = np.abs(self.advantages) > np.maximum(_SURE * self.errors, _ROUNDING)
        return np.where(is_sure, np.sign(self.advantages), 0.0).astype(np.int64)

    @property
    def reliability(self) -> float:
        """Share of the variance of ``advantages`` that is not error; 1 where exact, NaN if nothing varies."""
        variance = float(self.advantages.var()) if self.advantages.size else 0.0
        if variance <= _ROUNDING**2:
            return float("nan")
        return max(0.0, 1.0 - float(np.square(self.errors).mean()) / variance)


@dataclass(frozen=True, slots=True)
class StepKeys:
    """Which rows belong together; int64[rows] each.

    Attributes:
        groups: Group of each row.
        trajectories: Trajectory of each row.
        states: Equal iff two steps chose in the same situation: task, step number, state and prompt.
    """

    groups: Ints
    trajectories: Ints
    states: Ints

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "StepKeys":
        """Read the keys of every row."""
        rows = [
            (group.id, trajectory.id, situation(trajectory, number))
            for group, trajectory in played(groups)
            for number in range(len(trajectory.steps))
        ]
        return cls(*(_numbered(column) for column in zip(*rows, strict=True)))


def played(groups: Sequence[Group]) -> Iterator[tuple[Group, Trajectory]]:
    """Yield every trajectory that did not break, with its group, in the order of rows."""
    for group in groups:
        for trajectory in group.trajectories:
            if not trajectory.failed:
                yield group, trajectory


def situation(trajectory: Trajectory, number: int) -> tuple[Any, ...]:
    """Return what decides how an episode goes on from before a step, for the same policy."""
    step: Step = trajectory.steps[number]
    state_key = trajectory.episode.transitions[number].state_key
    return trajectory.group_id, number, state_key, tuple(step.prompt_ids)


def _numbered(values: Iterable[Any]) -> Ints:
    """Replace values by numbers in order of appearance."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)
