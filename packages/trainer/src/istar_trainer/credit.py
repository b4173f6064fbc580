"""What each step gets on top of its trajectory's outcome advantage.

``IstarCredit`` owns the implicit PRM: it updates it on the batch's pairs and turns its step rewards
into step advantages. ``NoCredit`` is the plain algorithm.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_envs.episode import Outcome
from istar_trainer import config as cfg
from istar_trainer.advantages import is_degenerate, normalize_step_rewards, step_advantage_factors
from istar_trainer.attribution import attribute_credit
from istar_trainer.batch import StepBatch
from istar_trainer.implicit_reward import step_rewards, token_log_ratios
from istar_trainer.learner import Learner
from istar_trainer.prm import ImplicitPrm, Pairs, StepScores
from istar_trainer.summaries import correlation, mean, std


@dataclass(frozen=True, slots=True)
class BatchOutcomes:
    """Judged outcomes in the order of a batch's trajectories.

    Attributes:
        values: Outcome of each trajectory; 0 where there is none.
        has_outcome: True where the judge gave a verdict.
        groups: Group of each trajectory.
        successes: True where the environment's goal was reached.
        verdicts: What the judge said, before any penalty; pairs are formed of these.
    """

    values: Float[Tensor, " trajectories"]
    has_outcome: Bool[Tensor, " trajectories"]
    groups: Int[Tensor, " trajectories"]
    successes: Bool[Tensor, " trajectories"]
    verdicts: tuple[Outcome, ...] = ()

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class StepCredit:
    """The step part of the advantages.

    Attributes:
        advantages: A^S of each row, already scaled by α; 0 where a step gets nothing.
        implicit_rewards: r_φ of each row, for people to look at; zeros without a PRM.
        attributed: What ``advantages`` normalizes, after centring and attribution.
        metrics: Named values for the log.
    """

    advantages: Float[Tensor, " rows"]
    implicit_rewards: Float[Tensor, " rows"]
    attributed: Float[Tensor, " rows"]
    metrics: dict[str, float] = field(default_factory=dict)


class Credit(Protocol):
    """A way to credit steps."""

    def assign(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        pairs: Pairs,
    ) -> StepCredit:
        """Credit every step of a batch; may learn from the batch."""
        ...

    def state(self) -> dict[str, list[float]]:
        """Return what a checkpoint must hold besides the learners."""
        ...

    def load_state(self, state: dict[str, list[float]]) -> None:
        """Restore it."""
        ...


class NoCredit:
    """Outcome advantages only."""

    def assign(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        pairs: Pairs,
    ) -> StepCredit:
        """Give every step nothing."""
        nothing = torch.zeros(len(batch))
        return StepCredit(nothing, nothing, nothing)

    def state(self) -> dict[str, list[float]]:
        """Nothing to keep."""
        return {}

    def load_state(self, state: dict[str, list[float]]) -> None:
        """Nothing to restore."""


class IstarCredit:
    """Implicit step rewards of an online PRM.

    Args:
        prm: The PRM.
        policy: Learner of the policy, for measuring the noise of its own logprobs.
        config: Attribution, normalization, α and its warm-up.
        prm_config: Update order and β.
    """

    def __init__(
        self, prm: ImplicitPrm, policy: Learner, config: cfg.IstarCredit, prm_config: cfg.PrmConfig
    ) -> None:
        self.prm = prm
        self._policy = policy
        self._config = config
        self._prm_config = prm_config
        self._pair_acc: list[float] = []
        self._iterations = 0

    def assign(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        pairs: Pairs,
    ) -> StepCredit:
        """Update the PRM and credit every step of the batch.

        Args:
            batch: Rows sampled by π_old.
            old_logprobs: Their logprobs under π_old; the policy must not have moved since.
            outcomes: Outcomes of the batch's trajectories.
            pairs: Preferences between them.

        Returns:
            Step advantages and metrics.
        """
        self.prm.anchor()
        scores_before = self._prm_config.update_order == "after" or not len(pairs)
        before = self.prm.score(batch, old_logprobs, with_centers=None if scores_before else False)
        metrics = self.prm.update(batch, old_logprobs, pairs, len(outcomes), before)
        scores = before
        if len(pairs):
            after = self.prm.score(batch, old_logprobs, with_centers=None if not scores_before else False)
            metrics["prm/pair_acc_in_sample"] = self.prm.accuracy(after, batch, pairs, len(outcomes))
            scores = before if scores_before else after
            self._pair_acc += [metrics["prm/pair_acc"]] if self._config.warm_up else []
        coefficient = self._coefficient()
        self._iterations += 1
        noise = self._measure_noise(batch, old_logprobs)
        attributed = self._attribute(scores, batch)
        advantages = self._normalize(attributed, batch, outcomes, pairs, noise) * coefficient
        metrics |= {
            "prm/noise_floor": noise,
            "adv/std_floor": self._config.floor_factor * noise,
            "adv/step_coef": coefficient,
            **_reward_metrics(scores, batch, outcomes),
        }
        return StepCredit(advantages, scores.rewards, attributed, metrics)

    def state(self) -> dict[str, list[float]]:
        """Return the warm-up's memory."""
        return {"pair_acc": list(self._pair_acc), "iterations": [float(self._iterations)]}

    def load_state(self, state: dict[str, list[float]]) -> None:
        """Restore the warm-up's memory."""
        self._pair_acc = list(state["pair_acc"])
        self._iterations = int(state["iterations"][0])

    def _coefficient(self) -> float:
        warm_up = self._config.warm_up
        if warm_up is None:
            return self._config.step_adv_coef
        self._pair_acc = self._pair_acc[-warm_up.window :]
        ready = len(self._pair_acc) == warm_up.window and min(self._pair_acc) > warm_up.pair_acc
        return self._config.step_adv_coef if ready and self._iterations >= warm_up.start_at else 0.0

    def _attribute(self, scores: StepScores, batch: StepBatch) -> Float[Tensor, " rows"]:
        return attribute_credit(
            scores.rewards,
            scores.centers,
            batch.trajectory_index,
            batch.step_index,
            batch.weights > 0,
            attribution=self._config.attribution,
            center=self._config.center,
            gamma=self._config.gamma,
        )

    def _normalize(
        self,
        attributed: Float[Tensor, " rows"],
        batch: StepBatch,
        outcomes: BatchOutcomes,
        pairs: Pairs,
        noise: float,
    ) -> Float[Tensor, " rows"]:
        valid = (batch.weights > 0) & outcomes.has_outcome[batch.trajectory_index]
        advantages = normalize_step_rewards(
            attributed,
            batch.group_index,
            valid,
            scope=self._config.scope,
            norm=self._config.norm,
            std_floor=self._config.floor_factor * noise,
        )
        factors = step_advantage_factors(
            outcomes.values,
            outcomes.groups,
            outcomes.has_outcome,
            pairs.preferred,
            groups=self._config.groups,
            degenerate_scale=float(self._config.on_degenerate_groups),
        )
        return (advantages * factors[batch.trajectory_index]).to(attributed.dtype)

    def _measure_noise(self, batch: StepBatch, old_logprobs: Float[Tensor, "rows seq"]) -> float:
        """Standard deviation of the reward that π_old would give itself in another packing (spec §7.4)."""
        rows = torch.arange(0, len(batch), max(1, len(batch) // 16))
        again = torch.cat([self._policy.logprobs(batch.select(some)) for some in torch.split(rows, 3)])
        mask = batch.response_mask[rows]
        ratios = token_log_ratios(again, old_logprobs[rows], mask)
        return float(step_rewards(ratios, mask, beta=self._prm_config.beta).double().std(correction=0))


def _reward_metrics(scores: StepScores, batch: StepBatch, outcomes: BatchOutcomes) -> dict[str, float]:
    real = batch.weights > 0
    won = outcomes.successes[batch.trajectory_index] & real
    lost = ~outcomes.successes[batch.trajectory_index] & real
    rewards, lengths = scores.rewards, batch.response_mask.sum(dim=1)
    metrics = {
        "step_reward/mean": mean(rewards[real]),
        "step_reward/std": std(rewards[real]),
        "step_reward/mean_success": mean(rewards[won]),
        "step_reward/mean_failure": mean(rewards[lost]),
        "step_reward/std_success": std(rewards[won]),
        "step_reward/std_failure": std(rewards[lost]),
        "prm/corr_len": correlation(rewards[real], lengths[real]),
        "prm/corr_step_index": correlation(rewards[real], batch.step_index[real]),
        "prm/kl_to_old": -mean(scores.log_ratios[batch.response_mask & real[:, None]]),
    }
    sums = torch.zeros(len(outcomes), dtype=torch.float64)
    sums.index_add_(0, batch.trajectory_index[real], rewards[real].double())
    metrics["prm/score_abs_mean"] = mean(sums.abs())
    degenerate = is_degenerate(outcomes.values, outcomes.groups, outcomes.has_outcome)
    metrics["adv/degenerate_group_frac"] = len(torch.unique(outcomes.groups[degenerate])) / len(
        torch.unique(outcomes.groups)
    )
    return metrics
