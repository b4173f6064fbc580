"""What an algorithm decides: the outcome advantage of a trajectory, and the loss of its tokens."""

from typing import Protocol

from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_trainer.config import LossConfig


class Algorithm(Protocol):
    """One published way to turn outcomes into an update; step credit is added by ``credit``."""

    @property
    def loss(self) -> LossConfig:
        """Form and constants of the policy loss."""
        ...

    def outcome_advantages(
        self,
        outcomes: Float[Tensor, " trajectories"],
        trajectory_groups: Int[Tensor, " trajectories"],
        has_outcome: Bool[Tensor, " trajectories"],
    ) -> Float[Tensor, " trajectories"]:
        """Return A^E of each trajectory, 0 without a verdict."""
        ...
