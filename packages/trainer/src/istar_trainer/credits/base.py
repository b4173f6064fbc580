"""What a credit method decides: the part of each token's advantage that belongs to its step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium as gym
from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_envs.episode import Episode, Outcome
from istar_trainer.batch import StepBatch
from istar_trainer.config_credits import PrmConfig
from istar_trainer.learner import LanguageModel, Learner, Optimization
from istar_trainer.prm import Pairs


@dataclass(frozen=True, slots=True)
class BatchOutcomes:
    """Judged outcomes in the order of a batch's trajectories.

    Attributes:
        values: Outcome of each trajectory; 0 where there is none.
        has_outcome: True where the judge gave a verdict.
        groups: Group of each trajectory.
        successes: True where the environment's goal was reached.
        verdicts: What the judge said, before any penalty; pairs are formed of these.
        episodes: What was judged.
    """

    values: Float[Tensor, " trajectories"]
    has_outcome: Bool[Tensor, " trajectories"]
    groups: Int[Tensor, " trajectories"]
    successes: Bool[Tensor, " trajectories"]
    verdicts: tuple[Outcome, ...] = ()
    episodes: tuple[Episode, ...] = ()

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class StepCredit:
    """The step part of the advantages.

    Attributes:
        advantages: A^S of each token, already scaled by its coefficient; 0 where a token gets nothing.
        step_rewards: Reward of each step as the method defines it, for people to look at; zeros if none.
        attributed: What was normalized; equal to ``step_rewards`` where nothing happens in between.
        metrics: Named values for the log.
        replaces_outcome: Whether A^S is the whole advantage, without the outcome part.
    """

    advantages: Float[Tensor, "rows seq"]
    step_rewards: Float[Tensor, " rows"]
    attributed: Float[Tensor, " rows"]
    metrics: dict[str, float] = field(default_factory=dict)
    replaces_outcome: bool = False


class Credit(Protocol):
    """A way to credit steps."""

    @property
    def learners(self) -> Mapping[str, Learner]:
        """Models of its own that learn, by name; checkpoints hold them."""
        ...

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


@dataclass(frozen=True, slots=True)
class CreditParts:
    """What credit methods are built from.

    Attributes:
        policy: Learner of the policy; credit reads it and never changes it.
        prm: Settings of the process reward model.
        new_learner: Makes a model with an optimizer, from the start policy's weights or those in a folder.
        reference: Returns the frozen start policy; every call returns the same model.
        new_env: Makes the environment that is trained on.
    """

    policy: Learner
    prm: PrmConfig
    new_learner: Callable[[Optimization, str | None], Learner]
    reference: Callable[[], LanguageModel]
    new_env: Callable[[], gym.Env[Any, Any]]

    def prm_learner(self) -> Learner:
        """Make a process reward model that starts as ``prm.init`` says, with its own optimizer."""
        optimization = Optimization(self.prm.lr, self.prm.weight_decay, self.prm.grad_clip)
        return self.new_learner(optimization, self.prm.init)

    def follower(self) -> Learner:
        """Make a copy of the start policy that learns nothing and can be pulled along."""
        return self.new_learner(Optimization(lr=0.0, weight_decay=0.0, grad_clip=1.0), None)


def counted_rows(batch: StepBatch, outcomes: BatchOutcomes) -> Bool[Tensor, " rows"]:
    """Say which rows are real and belong to a trajectory with a verdict."""
    return (batch.weights > 0) & outcomes.has_outcome[batch.trajectory_index]


class Stateless:
    """What methods share that remember nothing between iterations.

    Args:
        learners: Models that learn, by name.
    """

    def __init__(self, learners: Mapping[str, Learner] | None = None) -> None:
        self.learners: Mapping[str, Learner] = learners or {}

    def state(self) -> dict[str, list[float]]:
        """Nothing to keep."""
        return {}

    def load_state(self, state: dict[str, list[float]]) -> None:
        """Nothing to restore."""
