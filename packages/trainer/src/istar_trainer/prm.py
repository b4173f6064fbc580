"""The implicit process reward model π_φ: a second learner, trained on pairs of the policy's own rollouts.

The pair loss is exact at constant memory: pass A scores every trajectory without gradient, pass B
sends each step its share of the loss, micro-batch by micro-batch (spec §3.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_judges.pairs import PreferencePair
from istar_trainer.attribution import center_step_rewards, step_centers
from istar_trainer.batch import StepBatch
from istar_trainer.config import PrmConfig
from istar_trainer.implicit_reward import (
    PairLoss,
    pair_accuracy,
    pair_loss,
    score_weights,
    step_rewards,
    token_log_ratios,
    trajectory_scores,
    two_pass_surrogate,
)
from istar_trainer.learner import Learner
from istar_trainer.model import Forward, divergence


@dataclass(frozen=True, slots=True)
class Pairs:
    """Preference pairs as tensors.

    Attributes:
        preferred: Trajectory index of the better side.
        rejected: Trajectory index of the worse side.
        weights: Share of each pair in the loss; they sum to 1.
        targets: Probability that the preferred side is better.
    """

    preferred: Int[Tensor, " pairs"]
    rejected: Int[Tensor, " pairs"]
    weights: Float[Tensor, " pairs"]
    targets: Float[Tensor, " pairs"]

    @classmethod
    def of(cls, pairs: Sequence[PreferencePair], trajectory_ids: Sequence[str]) -> "Pairs":
        """Look pairs of trajectory ids up in the order of a batch."""
        index = {key: place for place, key in enumerate(trajectory_ids)}
        return cls(
            torch.tensor([index[pair.preferred] for pair in pairs], dtype=torch.int64),
            torch.tensor([index[pair.rejected] for pair in pairs], dtype=torch.int64),
            torch.tensor([pair.weight for pair in pairs], dtype=torch.float64),
            torch.tensor([pair.target for pair in pairs], dtype=torch.float64),
        )

    def __len__(self) -> int:
        return len(self.preferred)


@dataclass(frozen=True, slots=True)
class StepScores:
    """What the PRM says of every step; no gradient.

    Attributes:
        rewards: Implicit reward r, in β-scaled nats.
        centers: Expected reward c under π_old in the step's state, or None if not asked for.
        log_ratios: Token log-ratios ℓ, nats; 0 outside responses.
    """

    rewards: Float[Tensor, " rows"]
    centers: Float[Tensor, " rows"] | None
    log_ratios: Float[Tensor, "rows seq"]


class ImplicitPrm:
    """Owns π_φ; π_old is the policy as long as it has not been updated.

    Args:
        learner: Model and optimizer of π_φ.
        policy: Learner of the policy, read for KL divergences only.
        config: β, score, updates, anchor.
        with_centers: Whether scores must come with the state offsets c.
    """

    def __init__(self, learner: Learner, policy: Learner, config: PrmConfig, *, with_centers: bool) -> None:
        self.learner = learner
        self._policy = policy
        self._config = config
        self._with_centers = with_centers

    def anchor(self) -> None:
        """Pull π_φ to π_old as configured; call once per iteration, before scoring."""
        if self._config.anchor == "persistent":
            return
        keep = self._config.ema if self._config.anchor == "ema" else 0.0
        old = self._policy.snapshot()
        self.learner.load({k: keep * v + (1 - keep) * old[k] for k, v in self.learner.snapshot().items()})

    def score(
        self, batch: StepBatch, old_logprobs: Float[Tensor, "rows seq"], *, with_centers: bool | None = None
    ) -> StepScores:
        """Score every step with the present π_φ.

        Args:
            batch: Rows sampled by π_old.
            old_logprobs: Their logprobs under π_old.
            with_centers: Whether centres are wanted, which cost a forward pass of the policy; as this
                PRM was built by default. ``score: centered_sum`` always needs them.

        Returns:
            Rewards, and centres if this PRM was built with them.
        """
        wanted = self._with_centers if with_centers is None else with_centers
        needs_kl = wanted or self._config.score == "centered_sum"
        kl = torch.zeros_like(old_logprobs)

        def both(out: Forward, rows: Int[Tensor, " some"]) -> Float[Tensor, "some seq"]:
            if needs_kl:
                kl[rows] = divergence(self._policy.forward(batch, rows), out)
            return out.logprobs()

        logprobs = self.learner.token_values(batch, both)
        ratios = token_log_ratios(logprobs, old_logprobs, batch.response_mask)
        rewards = step_rewards(ratios, batch.response_mask, beta=self._config.beta)
        centers = step_centers(kl, batch.response_mask, beta=self._config.beta) if needs_kl else None
        return StepScores(rewards, centers, ratios)

    def update(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        pairs: Pairs,
        num_trajectories: int,
        scores: StepScores,
    ) -> dict[str, float]:
        """Fit the pairs of one batch; without pairs nothing is touched, weight decay included.

        Args:
            batch: Rows sampled by π_old.
            old_logprobs: Their logprobs under π_old.
            pairs: Preferences between trajectories of the batch.
            num_trajectories: Trajectories of the batch.
            scores: Step scores of the present π_φ, from ``score``.

        Returns:
            Metrics ``prm/…``; those of the scores are prequential, from before the update.
        """
        if not len(pairs):
            return {"prm/skipped": 1.0}
        weights = self._score_weights(batch, num_trajectories)
        first = self._pair_loss(scores, batch, weights, pairs, num_trajectories)
        metrics = {"prm/skipped": 0.0, "prm/loss": float(first.loss), **_margin_metrics(first, pairs)}
        result, norm = first, 0.0
        for repeat in range(self._config.updates_per_iteration):
            if repeat:
                again = self.score(batch, old_logprobs, with_centers=False)
                result = self._pair_loss(again, batch, weights, pairs, num_trajectories)
            norm = self._second_pass(batch, old_logprobs, weights, result.coefficients)
        return {**metrics, "prm/grad_norm": norm}

    def accuracy(self, scores: StepScores, batch: StepBatch, pairs: Pairs, num_trajectories: int) -> float:
        """Weighted share of pairs that given step scores rank right; NaN without pairs."""
        weights = self._score_weights(batch, num_trajectories)
        result = self._pair_loss(scores, batch, weights, pairs, num_trajectories)
        return float(pair_accuracy(result.margins, pairs.weights))

    def _score_weights(self, batch: StepBatch, num_trajectories: int) -> Float[Tensor, " rows"]:
        return score_weights(
            batch.trajectory_index,
            batch.response_mask,
            batch.weights > 0,
            num_trajectories=num_trajectories,
            score=self._config.score,
        )

    def _pair_loss(
        self,
        scores: StepScores,
        batch: StepBatch,
        weights: Float[Tensor, " rows"],
        pairs: Pairs,
        num_trajectories: int,
    ) -> PairLoss:
        values = scores.rewards
        if self._config.score == "centered_sum" and scores.centers is not None:
            values = center_step_rewards(values, scores.centers)
        totals = trajectory_scores(values, batch.trajectory_index, weights, num_trajectories=num_trajectories)
        return pair_loss(totals, pairs.preferred, pairs.rejected, pairs.weights, pairs.targets)

    def _second_pass(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        weights: Float[Tensor, " rows"],
        coefficients: Float[Tensor, " trajectories"],
    ) -> float:
        relevant = (coefficients[batch.trajectory_index] * weights != 0).nonzero().squeeze(1)

        def share(out: Forward, rows: Int[Tensor, " some"]) -> Float[Tensor, ""]:
            values = self._step_values(out, batch, old_logprobs, rows)
            return two_pass_surrogate(values, batch.trajectory_index[rows], weights[rows], coefficients)

        self.learner.backward(batch, share, relevant)
        return self.learner.step()

    def _step_values(
        self,
        out: Forward,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        rows: Int[Tensor, " some"],
    ) -> Float[Tensor, " some"]:
        """Step values of some rows with gradient: what ``_pair_loss`` scored in pass A."""
        mask: Bool[Tensor, "some seq"] = batch.response_mask[rows]
        ratios = token_log_ratios(out.logprobs(), old_logprobs[rows], mask)
        values = step_rewards(ratios, mask, beta=self._config.beta)
        if self._config.score != "centered_sum":
            return values
        with torch.no_grad():
            old = self._policy.forward(batch, rows)
        centers = step_centers(divergence(old, out), mask, beta=self._config.beta)
        return center_step_rewards(values, centers)


def _margin_metrics(result: PairLoss, pairs: Pairs) -> dict[str, float]:
    return {
        "prm/pair_acc": float(pair_accuracy(result.margins, pairs.weights)),
        "prm/margin": float((result.margins.double() * pairs.weights).sum()),
        "prm/saturation": float(((-result.margins.double()).sigmoid() * pairs.weights).sum()),
    }
