"""One iteration of a process reward model that learns online: anchor, score, learn, score again.

Every credit method with a PRM goes through here, so that they differ only in what they make of its
scores. The noise of the arithmetic is measured, since credit within it means nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, Self, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from istar_trainer.advantages import is_degenerate
from istar_trainer.batch import StepBatch
from istar_trainer.config_credits import Method, PrmConfig
from istar_trainer.credits.base import BatchOutcomes, CreditParts, Stateless
from istar_trainer.implicit_reward import step_rewards, token_log_ratios
from istar_trainer.learner import Learner
from istar_trainer.prm import ImplicitPrm, Objective, StepScores
from istar_trainer.summaries import correlation, mean, std

_Config = TypeVar("_Config", bound=Method)


@dataclass(frozen=True, slots=True)
class Scored:
    """What one iteration of a PRM yields.

    Attributes:
        scores: What credit is made of, from before or after learning as configured.
        fresh: Scores from before the PRM learnt from this batch.
        step_noise: Standard deviation that arithmetic alone gives step rewards.
        token_noise: The same of token rewards.
        metrics: Named values for the log.
    """

    scores: StepScores
    fresh: StepScores
    step_noise: float
    token_noise: float
    metrics: dict[str, float]


class OnlinePrm:
    """Takes a PRM through its iterations.

    Args:
        prm: The PRM.
        policy: Learner of the policy, for measuring the noise of its own logprobs.
        config: Update order and β.
    """

    def __init__(self, prm: ImplicitPrm, policy: Learner, config: PrmConfig) -> None:
        self.prm = prm
        self.config = config
        self.learners: Mapping[str, Learner] = {"prm": prm.learner}
        if prm.moving_reference is not None:
            self.learners = {**self.learners, "prm_reference": prm.moving_reference}
        self._policy = policy

    @classmethod
    def build(
        cls,
        parts: CreditParts,
        *,
        with_centers: bool = False,
        reference: Literal["rolling", "frozen"] = "rolling",
    ) -> "OnlinePrm":
        """Make a PRM from the start policy's weights.

        Args:
            parts: Models and settings.
            with_centers: Whether scores must come with the state offsets c.
            reference: What rewards are relative to, unless ``prm.reference`` says otherwise.
        """
        wanted = parts.prm.reference or reference
        prm = ImplicitPrm(
            parts.prm_learner(),
            parts.policy,
            parts.prm,
            with_centers=with_centers,
            frozen_reference=parts.reference() if wanted == "frozen" else None,
            moving_reference=parts.follower() if wanted == "ema" else None,
        )
        return cls(prm, parts.policy, parts.prm)

    def run(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        objective: Objective,
        *,
        fresh_centers: bool = False,
    ) -> Scored:
        """Let the PRM learn from a batch and score it.

        Args:
            batch: Rows sampled by π_old.
            old_logprobs: Their logprobs under π_old; the policy must not have moved since.
            outcomes: Outcomes of the batch's trajectories.
            objective: What the PRM learns.
            fresh_centers: Whether fresh scores must have centres even if credit is made of later ones.
        """
        self.prm.anchor()
        reference = self.prm.reference_logprobs(batch, old_logprobs)
        scores_fresh = self.config.update_order == "after" or not len(objective)
        fresh = self.prm.score(
            batch, reference, with_centers=None if scores_fresh or fresh_centers else False
        )
        metrics = self.prm.update(batch, reference, objective, len(outcomes), fresh)
        if not fresh.rewards.any():  # as long as it is its own reference, it ranks nothing
            metrics.pop(objective.accuracy_name, None)
        scores = fresh
        if len(objective):
            later = self.prm.score(batch, reference, with_centers=None if not scores_fresh else False)
            learnt = self.prm.accuracy(later, batch, objective, len(outcomes))
            metrics[f"{objective.accuracy_name}_in_sample"] = learnt
            scores = fresh if scores_fresh else later
        step_noise, token_noise = self._measure_noise(batch, old_logprobs)
        metrics |= {"prm/noise_floor": step_noise, **reward_metrics(scores, batch, outcomes)}
        return Scored(scores, fresh, step_noise, token_noise, metrics)

    def _measure_noise(
        self, batch: StepBatch, old_logprobs: Float[Tensor, "rows seq"]
    ) -> tuple[float, float]:
        """Deviation of the rewards that π_old would give itself in another packing (spec §7.4)."""
        rows = torch.arange(0, len(batch), max(1, len(batch) // 16))
        again = torch.cat([self._policy.logprobs(batch.select(some)) for some in torch.split(rows, 3)])
        mask = batch.response_mask[rows]
        ratios = token_log_ratios(again, old_logprobs[rows], mask)
        rewards = step_rewards(ratios, mask, beta=self.config.beta)
        return std(rewards), std(self.config.beta * ratios[mask])


def reward_metrics(scores: StepScores, batch: StepBatch, outcomes: BatchOutcomes) -> dict[str, float]:
    """Name what the rewards of a batch's steps look like, and what they follow besides quality."""
    real = batch.weights > 0
    won = outcomes.successes[batch.trajectory_index] & real
    lost = ~outcomes.successes[batch.trajectory_index] & real
    rewards, lengths = scores.rewards, batch.response_mask.sum(dim=1)
    sums = torch.zeros(len(outcomes), dtype=torch.float64)
    sums.index_add_(0, batch.trajectory_index[real], rewards[real].double())
    degenerate = is_degenerate(outcomes.values, outcomes.groups, outcomes.has_outcome)
    return {
        "step_reward/mean": mean(rewards[real]),
        "step_reward/std": std(rewards[real]),
        "step_reward/mean_success": mean(rewards[won]),
        "step_reward/mean_failure": mean(rewards[lost]),
        "step_reward/std_success": std(rewards[won]),
        "step_reward/std_failure": std(rewards[lost]),
        "prm/corr_len": correlation(rewards[real], lengths[real]),
        "prm/corr_step_index": correlation(rewards[real], batch.step_index[real]),
        "prm/kl_to_old": -mean(scores.log_ratios[batch.response_mask & real[:, None]]),
        "prm/score_abs_mean": mean(sums.abs()),
        "adv/degenerate_group_frac": len(torch.unique(outcomes.groups[degenerate]))
        / len(torch.unique(outcomes.groups)),
    }


class PrmCredit(Stateless, Generic[_Config]):
    """What methods share that are a PRM of their own and remember nothing else between iterations.

    Args:
        online: The PRM and its iterations.
        config: What the method makes of its scores.
    """

    reference: ClassVar[Literal["rolling", "frozen"]] = "rolling"
    """What the PRM's rewards are relative to by default."""

    def __init__(self, online: OnlinePrm, config: _Config) -> None:
        super().__init__(online.learners)
        self.online = online
        self._config = config

    @classmethod
    def build(cls, config: _Config, parts: CreditParts) -> Self:
        """Make the method with a process reward model of its own."""
        return cls(OnlinePrm.build(parts, reference=cls.reference), config)
