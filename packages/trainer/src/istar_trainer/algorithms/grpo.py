"""Group-relative policy optimization (Shao et al. 2024; spec §4.2)."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_trainer.advantages import grpo_advantages
from istar_trainer.config import GrpoConfig, LossConfig


class Grpo:
    """Outcomes standardized inside their group.

    Args:
        config: Divisor and loss options.
    """

    def __init__(self, config: GrpoConfig) -> None:
        self.loss: LossConfig = config.loss
        self._std = config.std

    def outcome_advantages(
        self,
        outcomes: Float[Tensor, " trajectories"],
        trajectory_groups: Int[Tensor, " trajectories"],
        has_outcome: Bool[Tensor, " trajectories"],
    ) -> Float[Tensor, " trajectories"]:
        """Return A^E of each trajectory, 0 without a verdict."""
        return grpo_advantages(outcomes, trajectory_groups, has_outcome, std=self._std)
