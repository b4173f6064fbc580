"""The implicit process reward model π_φ: a second learner, trained on the policy's own rollouts.

It fits pairs of trajectories, or success labels. Either loss is exact at constant memory: pass A scores
every trajectory without gradient, pass B sends each step its share, micro-batch by micro-batch (spec §3.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_judges.pairs import PreferencePair
from istar_trainer.attribution import center_step_rewards, step_centers
from istar_trainer.batch import StepBatch
from istar_trainer.config_credits import PrmConfig
from istar_trainer.implicit_reward import (
    ScoreLoss,
    label_loss,
    pair_accuracy,
    pair_loss,
    score_weights,
    step_rewards,
    token_log_ratios,
    trajectory_scores,
    two_pass_surrogate,
)
from istar_trainer.learner import LanguageModel, Learner
from istar_trainer.model import Forward, divergence


class Objective(Protocol):
    """What trajectory scores are fitted to; its length is the number of examples."""

    @property
    def accuracy_name(self) -> str:
        """Metric that ``accuracy`` is logged as."""
        ...

    def __len__(self) -> int: ...

    def loss(self, scores: Float[Tensor, " trajectories"]) -> ScoreLoss:
        """Return the loss of trajectory scores, with its coefficients."""
        ...

    def accuracy(self, result: ScoreLoss) -> float:
        """Return the share of examples that the scores get right."""
        ...

    def metrics(self, result: ScoreLoss) -> dict[str, float]:
        """Name what the scores say of the examples."""
        ...


@dataclass(frozen=True, slots=True)
class Pairs:
    """Preference pairs as tensors.

    Attributes:
        preferred: Trajectory index of the better side.
        rejected: Trajectory index of the worse side.
        weights: Share of each pair in the loss; they sum to 1.
        targets: Probability that the preferred side is better.
    """

    accuracy_name: ClassVar[str] = "prm/pair_acc"

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

    def loss(self, scores: Float[Tensor, " trajectories"]) -> ScoreLoss:
        """Return the Bradley–Terry loss of trajectory scores."""
        return pair_loss(scores, self.preferred, self.rejected, self.weights, self.targets)

    def accuracy(self, result: ScoreLoss) -> float:
        """Return the weighted share of pairs that are ranked right; NaN without pairs."""
        return float(pair_accuracy(result.margins, self.weights))

    def metrics(self, result: ScoreLoss) -> dict[str, float]:
        """Name accuracy, margin, saturation, and how much surer than right the scores are."""
        margins, right = result.margins.double(), self.accuracy(result)
        surety = float((margins.abs().sigmoid() * self.weights).sum())
        return {
            self.accuracy_name: right,
            "prm/margin": float((margins * self.weights).sum()),
            "prm/saturation": float(((-margins).sigmoid() * self.weights).sum()),
            "prm/overconfidence": surety - right,
        }


@dataclass(frozen=True, slots=True)
class Labels:
    """Success labels of trajectories.

    Attributes:
        values: 1 for success, 0 for failure.
        counted: True where there is a verdict.
    """

    accuracy_name: ClassVar[str] = "prm/label_acc"

    values: Float[Tensor, " trajectories"]
    counted: Bool[Tensor, " trajectories"]

    def __len__(self) -> int:
        return int(self.counted.sum())

    def loss(self, scores: Float[Tensor, " trajectories"]) -> ScoreLoss:
        """Return the cross-entropy of trajectory scores."""
        return label_loss(scores, self.values, self.counted)

    def accuracy(self, result: ScoreLoss) -> float:
        """Return the share of trajectories on the right side of 0; NaN without labels."""
        return float(pair_accuracy(result.margins, torch.ones_like(result.margins)))

    def metrics(self, result: ScoreLoss) -> dict[str, float]:
        """Name the accuracy."""
        return {self.accuracy_name: self.accuracy(result)}


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
    """Owns π_φ and its reference; π_old is the policy as long as it has not been updated.

    Args:
        learner: Model and optimizer of π_φ.
        policy: Learner of the policy, read for KL divergences and a moving reference only.
        config: β, score, updates, anchor.
        with_centers: Whether scores must come with the state offsets c.
        frozen_reference: Model that rewards are relative to instead of π_old.
        moving_reference: The same, but it follows π_old as ``prm.reference: ema`` says.
    """

    def __init__(
        self,
        learner: Learner,
        policy: Learner,
        config: PrmConfig,
        *,
        with_centers: bool = False,
        frozen_reference: LanguageModel | None = None,
        moving_reference: Learner | None = None,
    ) -> None:
        self.learner = learner
        self.moving_reference = moving_reference
        self._reference = frozen_reference or moving_reference
        self._policy = policy
        self._config = config
        self._with_centers = with_centers

    def anchor(self) -> None:
        """Pull π_φ and a moving reference to π_old as configured; once per iteration, before scoring."""
        if self._config.anchor != "persistent":
            self._pull(self.learner, self._config.ema if self._config.anchor == "ema" else 0.0)
        if self.moving_reference is not None:
            self._pull(self.moving_reference, self._config.reference_ema)

    def _pull(self, learner: Learner, keep: float) -> None:
        old = self._policy.snapshot()
        learner.load({k: keep * v + (1 - keep) * old[k] for k, v in learner.snapshot().items()})

    def reference_logprobs(
        self, batch: StepBatch, old_logprobs: Float[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows seq"]:
        """Return the logprobs that rewards are relative to: π_old's unless there is a reference."""
        return old_logprobs if self._reference is None else self._reference.logprobs(batch)

    def score(
        self, batch: StepBatch, old_logprobs: Float[Tensor, "rows seq"], *, with_centers: bool | None = None
    ) -> StepScores:
        """Score every step with the present π_φ.

        Args:
            batch: Rows sampled by π_old.
            old_logprobs: Their ``reference_logprobs``, which are π_old's by default.
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
                kl[rows] = self._divergence(batch, rows, out)
            return out.logprobs()

        logprobs = self.learner.token_values(batch, both)
        ratios = token_log_ratios(logprobs, old_logprobs, batch.response_mask)
        rewards = step_rewards(ratios, batch.response_mask, beta=self._config.beta)
        kl = self.learner.complete(kl) if needs_kl else kl
        centers = step_centers(kl, batch.response_mask, beta=self._config.beta) if needs_kl else None
        return StepScores(rewards, centers, ratios)

    def update(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        objective: Objective,
        num_trajectories: int,
        scores: StepScores,
    ) -> dict[str, float]:
        """Fit the pairs or labels of one batch; without any, nothing is touched, weight decay included.

        Args:
            batch: Rows sampled by π_old.
            old_logprobs: Their ``reference_logprobs``.
            objective: Preferences between trajectories of the batch, or their labels.
            num_trajectories: Trajectories of the batch.
            scores: Step scores of the present π_φ, from ``score``.

        Returns:
            Metrics ``prm/…``; those of the scores are prequential, from before the update.
        """
        if not len(objective):
            return {"prm/skipped": 1.0}
        weights = self._score_weights(batch, num_trajectories)
        first = self._loss(scores, batch, weights, objective, num_trajectories)
        metrics = {"prm/skipped": 0.0, "prm/loss": float(first.loss), **objective.metrics(first)}
        result, norm = first, 0.0
        for repeat in range(self._config.updates_per_iteration):
            if repeat:
                again = self.score(batch, old_logprobs, with_centers=False)
                result = self._loss(again, batch, weights, objective, num_trajectories)
            norm = self._second_pass(batch, old_logprobs, weights, result.coefficients)
        return {**metrics, "prm/grad_norm": norm}

    def accuracy(
        self, scores: StepScores, batch: StepBatch, objective: Objective, num_trajectories: int
    ) -> float:
        """Share of pairs or labels that given step scores get right; NaN without any."""
        weights = self._score_weights(batch, num_trajectories)
        return objective.accuracy(self._loss(scores, batch, weights, objective, num_trajectories))

    def _score_weights(self, batch: StepBatch, num_trajectories: int) -> Float[Tensor, " rows"]:
        return score_weights(
            batch.trajectory_index,
            batch.response_mask,
            batch.weights > 0,
            num_trajectories=num_trajectories,
            score=self._config.score,
        )

    def _loss(
        self,
        scores: StepScores,
        batch: StepBatch,
        weights: Float[Tensor, " rows"],
        objective: Objective,
        num_trajectories: int,
    ) -> ScoreLoss:
        values = scores.rewards
        if self._config.score == "centered_sum" and scores.centers is not None:
            values = center_step_rewards(values, scores.centers)
        return objective.loss(
            trajectory_scores(values, batch.trajectory_index, weights, num_trajectories=num_trajectories)
        )

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
        centers = step_centers(self._divergence(batch, rows, out), mask, beta=self._config.beta)
        return center_step_rewards(values, centers)

    def _divergence(
        self, batch: StepBatch, rows: Int[Tensor, " some"], out: Forward
    ) -> Float[Tensor, "some seq"]:
        """KL(π_old‖π_φ) − KL(π_old‖reference) at each token: minus the mean log-ratio under π_old."""
        with torch.no_grad():
            old = self._policy.forward(batch, rows)
            offset = 0.0 if self._reference is None else divergence(old, self._reference.forward(batch, rows))
        return divergence(old, out) - offset
