"""Group-relative policy optimization (Shao et al. 2024) and Dr. GRPO (Liu et al. 2025; spec §4.2)."""

from jaxtyping import Float
from torch import Tensor

from istar_trainer.advantages import grpo_advantages
from istar_trainer.algorithms.base import (
    OutcomeAdvantages,
    WithoutModels,
    same_for_all_tokens,
    trajectory_rewards,
)
from istar_trainer.batch import StepBatch
from istar_trainer.config_algorithms import DapoConfig, GrpoConfig
from istar_trainer.credits import BatchOutcomes, counted_rows


class Grpo(WithoutModels):
    """Outcomes standardized inside their group.

    Args:
        config: Divisor, what is counted, and loss options.
    """

    def __init__(self, config: GrpoConfig | DapoConfig) -> None:
        super().__init__(config.loss, config.dynamic_sampling)
        self._std = config.std
        self._counts_steps = config.episode_stat == "steps"

    def advantages(
        self, batch: StepBatch, outcomes: BatchOutcomes, token_rewards: Float[Tensor, "rows seq"]
    ) -> OutcomeAdvantages:
        """Return A^E of each token, 0 without a verdict."""
        rewards = trajectory_rewards(batch, outcomes, token_rewards)
        if not self._counts_steps:
            values = grpo_advantages(rewards, outcomes.groups, outcomes.has_outcome, std=self._std)
            return same_for_all_tokens(values, batch)
        index, counted = batch.trajectory_index, counted_rows(batch, outcomes)
        by_step = grpo_advantages(rewards[index], batch.group_index, counted, std=self._std)
        values = rewards.new_zeros(len(rewards))
        values[index[counted]] = by_step[counted]
        return same_for_all_tokens(values, batch)
