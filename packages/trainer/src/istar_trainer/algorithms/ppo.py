"""Proximal policy optimization with a critic (Schulman et al. 2017; spec §4.1)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from istar_envs.seeding import derive_seed
from istar_trainer.advantages import spread_over_tokens
from istar_trainer.algorithms.base import (
    OutcomeAdvantages,
    at_trajectory_ends,
    trajectory_means,
)
from istar_trainer.batch import StepBatch
from istar_trainer.config import LearnerConfig
from istar_trainer.config_algorithms import DynamicSampling, LossConfig, PpoConfig
from istar_trainer.credits import BatchOutcomes, counted_rows
from istar_trainer.critic import fit_critic, state_values
from istar_trainer.gae import first_token, last_token, token_gae
from istar_trainer.learner import Learner
from istar_trainer.step_credit import whiten_tokens


@dataclass(frozen=True, slots=True)
class _Lesson:
    """What the critic said of a batch, what it should have said, and where it is asked."""

    values: Float[Tensor, "rows seq"]
    returns: Float[Tensor, "rows seq"]
    mask: Bool[Tensor, "rows seq"]


class Ppo:
    """Advantages over what a learned critic expected.

    Args:
        config: Scope, discounts, clipping and loss options.
        critic: Model and optimizer of the critic.
        learner: Epochs and minibatches of the critic's update, which are those of the policy.
        seed: Seed of the dealing of groups to minibatches.
    """

    def __init__(self, config: PpoConfig, critic: Learner, learner: LearnerConfig, *, seed: int) -> None:
        self.loss: LossConfig = config.loss
        self.dynamic_sampling: DynamicSampling | None = config.dynamic_sampling
        self.learners: Mapping[str, Learner] = {"critic": critic}
        self._config = config
        self._critic = critic
        self._learner = learner
        self._seed = seed
        self._lesson: _Lesson | None = None

    def advantages(
        self, batch: StepBatch, outcomes: BatchOutcomes, token_rewards: Float[Tensor, "rows seq"]
    ) -> OutcomeAdvantages:
        """Return A^E of each token, 0 without a verdict; the critic's lesson is kept for ``learn``."""
        mask = batch.response_mask & counted_rows(batch, outcomes)[:, None]
        values = torch.where(mask, state_values(self._critic, batch), 0.0)
        rewards = token_rewards + self._outcome_rewards(batch, outcomes, mask)
        advantages, asked = self._estimate(rewards, values, batch, mask)
        self._lesson = _Lesson(values, advantages + values, asked)
        if self._config.whiten:
            advantages = whiten_tokens(advantages, asked)
        tokens = spread_over_tokens(advantages.sum(dim=1), mask) if self._by_step else advantages
        return OutcomeAdvantages(tokens, trajectory_means(tokens, mask, batch, len(outcomes)))

    def learn(self, batch: StepBatch) -> dict[str, float]:
        """Fit the critic to the returns of the batch that ``advantages`` saw last."""
        lesson, self._lesson = self._lesson, None
        assert lesson is not None, "advantages() comes before learn()"
        return fit_critic(
            self._critic,
            batch,
            lesson.values,
            lesson.returns,
            lesson.mask,
            clip=self._config.value_clip,
            config=self._learner,
            seed=derive_seed(self._seed, "critic", batch.snapshot_id),
        )

    @property
    def _by_step(self) -> bool:
        return self._config.gae_scope == "step"

    def _outcome_rewards(
        self, batch: StepBatch, outcomes: BatchOutcomes, mask: Bool[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows seq"]:
        """The outcome at the end of the trajectory, or of every step if steps do not know each other."""
        if self._config.gae_scope != "row":
            return at_trajectory_ends(outcomes.values, batch, mask)
        return torch.where(last_token(mask), outcomes.values[batch.trajectory_index, None], 0.0)

    def _estimate(
        self,
        rewards: Float[Tensor, "rows seq"],
        values: Float[Tensor, "rows seq"],
        batch: StepBatch,
        mask: Bool[Tensor, "rows seq"],
    ) -> tuple[Float[Tensor, "rows seq"], Bool[Tensor, "rows seq"]]:
        """Advantages, and the tokens that have one: all, or the first of each step for all of it."""
        config, sequences = self._config, batch.trajectory_index
        asked = mask
        if self._by_step:
            asked = first_token(mask)
            rewards = torch.where(asked, rewards.sum(dim=1, keepdim=True), 0.0)
        if config.gae_scope == "row":
            sequences = torch.arange(len(batch))
        bilevel = config.gae_scope == "bilevel"
        advantages = token_gae(
            rewards,
            values,
            asked,
            sequences,
            batch.step_index,
            gamma=config.gamma,
            lam=config.lam,
            gamma_turn=config.gamma_turn if bilevel else None,
            lam_turn=config.lam_turn if bilevel else None,
        )
        return advantages, asked
