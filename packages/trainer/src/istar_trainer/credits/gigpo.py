"""GiGPO (Feng et al. 2025): steps are compared with what followed from the same state in their group."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from istar_envs.errors import ConfigError
from istar_trainer.advantages import spread_over_tokens
from istar_trainer.attribution import discounted_to_go
from istar_trainer.batch import StepBatch
from istar_trainer.config_credits import GigpoCredit as GigpoConfig
from istar_trainer.credits.base import BatchOutcomes, Stateless, StepCredit, counted_rows
from istar_trainer.gae import last_step
from istar_trainer.masked import group_count
from istar_trainer.prm import Pairs
from istar_trainer.step_credit import anchor_advantages, exact_anchors, similar_anchors


class GigpoCredit(Stateless):
    """Discounted returns against the mean return from the same anchor state.

    Args:
        config: Anchors, returns, normalization and ω.
    """

    def __init__(self, config: GigpoConfig) -> None:
        super().__init__()
        self._config = config

    def assign(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        pairs: Pairs,
    ) -> StepCredit:
        """Credit every step whose state was visited more than once in its group."""
        config, valid = self._config, counted_rows(batch, outcomes)
        rewards = batch.env_rewards if config.rewards == "env" else _outcome_at_the_end(batch, outcomes)
        returns = discounted_to_go(
            rewards, batch.trajectory_index, batch.step_index, valid, gamma=config.gamma
        )
        anchors = self._anchors(batch, outcomes)
        advantages = anchor_advantages(returns, anchors, valid, std=config.std) * config.step_adv_coef
        sizes = group_count(anchors, valid)[valid].double()
        metrics = {
            "adv/step_coef": config.step_adv_coef,
            "adv/singleton_anchor_frac": float((sizes == 1).double().mean()),
            "adv/anchor_steps_mean": float(sizes.mean()),
        }
        return StepCredit(spread_over_tokens(advantages, batch.response_mask), rewards, returns, metrics)

    def _anchors(self, batch: StepBatch, outcomes: BatchOutcomes) -> Int[Tensor, " rows"]:
        if self._config.similarity is None:
            return exact_anchors(batch.group_index, batch.observation_ids)
        texts = [
            outcomes.episodes[trajectory].transitions[step].observation
            for trajectory, step in zip(
                batch.trajectory_index.tolist(), batch.step_index.tolist(), strict=True
            )
        ]
        if not all(texts):
            raise ConfigError(
                "credit.similarity compares what is seen as text, but this environment shows pictures only. "
                "Set it to null, which compares states exactly."
            )
        return similar_anchors(texts, batch.group_index, batch.step_index, threshold=self._config.similarity)


def _outcome_at_the_end(batch: StepBatch, outcomes: BatchOutcomes) -> Float[Tensor, " rows"]:
    """Give the last step of each trajectory its outcome and the others nothing."""
    last = last_step(batch.trajectory_index, batch.step_index, batch.weights > 0)
    return torch.where(last, outcomes.values[batch.trajectory_index], 0.0)
