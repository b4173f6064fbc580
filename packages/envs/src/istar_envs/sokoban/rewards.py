"""What a step is worth: five numbers and the parts they add up to.

Environments take a ``Rewards`` value, so another table needs no other environment. Penalties for
the form of a reply are not here: they belong to whoever reads the reply.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rewards:
    """Reward of each thing that can happen in a step; what happens together adds up.

    With the defaults, one box solved in n moves returns 11 − 0.1·n, and the solving push alone 10.9.

    Attributes:
        step: Paid for every step, also a blocked or invalid one.
        box_on: Paid when a box comes onto a target.
        box_off: Paid when a box leaves a target.
        solved: Paid once more by the step that solves the level.
        invalid: Paid on top of ``step`` when the step was spent on an unreadable action.
    """

    step: float = -0.1
    box_on: float = 1.0
    box_off: float = -1.0
    solved: float = 10.0
    invalid: float = 0.0

    def parts(self, change: int, *, solved: bool, invalid: bool = False) -> dict[str, float]:
        """Return the components of one step's reward, whose sum in this order is the reward.

        Args:
            change: Boxes on targets after the step minus before; −1, 0 or 1.
            solved: Whether the step solved the level.
            invalid: Whether the step was spent on an unreadable action.
        """
        return {
            "step": self.step,
            "box_on": self.box_on if change > 0 else 0.0,
            "box_off": self.box_off if change < 0 else 0.0,
            "solved": self.solved if solved else 0.0,
            "invalid": self.invalid if invalid else 0.0,
        }

    def batch(self, change: NDArray[np.int64], solved: NDArray[np.bool_]) -> dict[str, NDArray[np.float64]]:
        """Return the components of many valid steps at once.

        Args:
            change: int64[envs], as in ``parts``.
            solved: bool[envs].

        Returns:
            The same names as ``parts``, each float64[envs].
        """
        return {
            "step": np.full(len(change), self.step),
            "box_on": np.where(change > 0, self.box_on, 0.0),
            "box_off": np.where(change < 0, self.box_off, 0.0),
            "solved": np.where(solved, self.solved, 0.0),
            "invalid": np.zeros(len(change)),
        }


NO_REWARD = dict.fromkeys(("step", "box_on", "box_off", "solved", "invalid"), 0.0)
"""The components at a reset, where nothing was earned."""
