"""REINFORCE leave-one-out (Ahmadian et al. 2024; spec §4.3)."""

from jaxtyping import Float
from torch import Tensor

from istar_trainer.advantages import rloo_advantages
from istar_trainer.algorithms.base import (
    OutcomeAdvantages,
    WithoutModels,
    same_for_all_tokens,
    trajectory_rewards,
)
from istar_trainer.batch import StepBatch
from istar_trainer.config_algorithms import RlooConfig
from istar_trainer.credits import BatchOutcomes


class Rloo(WithoutModels):
    """Own outcome minus the mean of the group's others.

    Args:
        config: Loss options.
    """

    def __init__(self, config: RlooConfig) -> None:
        super().__init__(config.loss, config.dynamic_sampling)

    def advantages(
        self, batch: StepBatch, outcomes: BatchOutcomes, token_rewards: Float[Tensor, "rows seq"]
    ) -> OutcomeAdvantages:
        """Return A^E of each token, 0 without a verdict."""
        rewards = trajectory_rewards(batch, outcomes, token_rewards)
        return same_for_all_tokens(rloo_advantages(rewards, outcomes.groups, outcomes.has_outcome), batch)
