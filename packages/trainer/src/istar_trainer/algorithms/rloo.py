"""REINFORCE leave-one-out (Ahmadian et al. 2024; spec §4.3)."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_trainer.advantages import rloo_advantages
from istar_trainer.config import LossConfig, RlooConfig


class Rloo:
    """Own outcome minus the mean of the group's others.

    Args:
        config: Loss options.
    """

    def __init__(self, config: RlooConfig) -> None:
        self.loss: LossConfig = config.loss

    def outcome_advantages(
        self,
        outcomes: Float[Tensor, " trajectories"],
        trajectory_groups: Int[Tensor, " trajectories"],
        has_outcome: Bool[Tensor, " trajectories"],
    ) -> Float[Tensor, " trajectories"]:
        """Return A^E of each trajectory, 0 without a verdict."""
        return rloo_advantages(outcomes, trajectory_groups, has_outcome)
