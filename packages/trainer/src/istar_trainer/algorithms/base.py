"""What an algorithm decides: the outcome's part of each token's advantage, and the loss."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from istar_trainer.advantages import spread_over_tokens
from istar_trainer.batch import StepBatch
from istar_trainer.config_algorithms import DynamicSampling, LossConfig
from istar_trainer.credits import BatchOutcomes
from istar_trainer.gae import last_step, last_token
from istar_trainer.learner import Learner
from istar_trainer.masked import sum_by_index


@dataclass(frozen=True, slots=True)
class OutcomeAdvantages:
    """The outcome's part of the advantages.

    Attributes:
        tokens: A^E of each token, 0 outside responses.
        trajectories: A^E of each trajectory; the mean over its tokens where they differ.
        metrics: Named values for the log.
    """

    tokens: Float[Tensor, "rows seq"]
    trajectories: Float[Tensor, " trajectories"]
    metrics: dict[str, float] = field(default_factory=dict)


class Algorithm(Protocol):
    """One published way to turn outcomes into an update; step credit is added by ``credits``."""

    @property
    def loss(self) -> LossConfig:
        """Form and constants of the policy loss."""
        ...

    @property
    def dynamic_sampling(self) -> DynamicSampling | None:
        """Which groups are replaced by newly played ones; None for none."""
        ...

    @property
    def learners(self) -> Mapping[str, Learner]:
        """Models of its own that learn, by name; checkpoints hold them."""
        ...

    def advantages(
        self, batch: StepBatch, outcomes: BatchOutcomes, token_rewards: Float[Tensor, "rows seq"]
    ) -> OutcomeAdvantages:
        """Return A^E of each token, 0 where the trajectory has no verdict.

        Args:
            batch: Rows sampled by π_old.
            outcomes: Outcomes of the batch's trajectories.
            token_rewards: What each token earns besides, such as a KL penalty; 0 outside responses.
        """
        ...

    def learn(self, batch: StepBatch) -> dict[str, float]:
        """Update the algorithm's own models on the batch that ``advantages`` saw last."""
        ...


def trajectory_rewards(
    batch: StepBatch, outcomes: BatchOutcomes, token_rewards: Float[Tensor, "rows seq"]
) -> Float[Tensor, " trajectories"]:
    """Add what a trajectory's tokens earn to its outcome."""
    earned = token_rewards.double().sum(dim=1) * batch.weights
    return outcomes.values + sum_by_index(earned, batch.trajectory_index, len(outcomes)).to(
        outcomes.values.dtype
    )


def same_for_all_tokens(trajectories: Float[Tensor, " trajectories"], batch: StepBatch) -> OutcomeAdvantages:
    """Give every token of a trajectory the trajectory's advantage."""
    tokens = spread_over_tokens(trajectories[batch.trajectory_index], batch.response_mask)
    return OutcomeAdvantages(tokens, trajectories)


def at_trajectory_ends(
    values: Float[Tensor, " trajectories"], batch: StepBatch, mask: Bool[Tensor, "rows seq"]
) -> Float[Tensor, "rows seq"]:
    """Put each trajectory's value on the last counted token of its last step."""
    last = last_step(batch.trajectory_index, batch.step_index, mask.any(dim=1))
    return torch.where(last_token(mask) & last[:, None], values[batch.trajectory_index, None], 0.0)


def trajectory_means(
    tokens: Float[Tensor, "rows seq"], mask: Bool[Tensor, "rows seq"], batch: StepBatch, size: int
) -> Float[Tensor, " trajectories"]:
    """Average over the counted tokens of each trajectory; 0 where there are none."""
    totals = sum_by_index((tokens * mask).sum(dim=1), batch.trajectory_index, size)
    counts = sum_by_index(mask.sum(dim=1).double(), batch.trajectory_index, size)
    return totals / counts.clamp_min(1).to(totals.dtype)


class WithoutModels:
    """What algorithms without models of their own share.

    Args:
        loss: Form and constants of the policy loss.
        dynamic_sampling: Which groups are replaced.
    """

    def __init__(self, loss: LossConfig, dynamic_sampling: DynamicSampling | None) -> None:
        self.loss = loss
        self.dynamic_sampling = dynamic_sampling
        self.learners: Mapping[str, Learner] = {}

    def learn(self, batch: StepBatch) -> dict[str, float]:
        """Nothing to learn."""
        return {}
