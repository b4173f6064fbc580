"""REINFORCE++ and its form with a group baseline (Hu et al. 2025; spec §4.4)."""

import torch
from jaxtyping import Float
from torch import Tensor

from istar_trainer.algorithms.base import (
    OutcomeAdvantages,
    WithoutModels,
    at_trajectory_ends,
    trajectory_means,
)
from istar_trainer.batch import StepBatch
from istar_trainer.config_algorithms import ReinforcePpConfig
from istar_trainer.credits import BatchOutcomes, counted_rows
from istar_trainer.gae import token_gae
from istar_trainer.masked import group_deviation
from istar_trainer.step_credit import whiten_tokens


class ReinforcePp(WithoutModels):
    """Rewards to go of each token of a trajectory, whitened over the batch.

    Args:
        config: Baseline, discount and loss options.
    """

    def __init__(self, config: ReinforcePpConfig) -> None:
        super().__init__(config.loss, config.dynamic_sampling)
        self._has_baseline = config.baseline == "group"
        self._gamma = config.gamma

    def advantages(
        self, batch: StepBatch, outcomes: BatchOutcomes, token_rewards: Float[Tensor, "rows seq"]
    ) -> OutcomeAdvantages:
        """Return A^E of each token, 0 without a verdict."""
        values = outcomes.values
        if self._has_baseline:
            values = group_deviation(values, outcomes.groups, outcomes.has_outcome)
        mask = batch.response_mask & counted_rows(batch, outcomes)[:, None]
        to_go = token_gae(
            token_rewards + at_trajectory_ends(values, batch, mask),
            torch.zeros_like(token_rewards),
            mask,
            batch.trajectory_index,
            batch.step_index,
            gamma=self._gamma,
            lam=1.0,
        )
        tokens = whiten_tokens(to_go, mask)
        return OutcomeAdvantages(tokens, trajectory_means(tokens, mask, batch, len(outcomes)))
