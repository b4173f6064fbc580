"""The true worth of each step (upper bound): what the environment itself knows, normalized as A^S."""

from typing import Any

import gymnasium as gym
import torch
from jaxtyping import Float
from torch import Tensor

from istar_trainer.batch import StepBatch
from istar_trainer.config_credits import OracleCredit as OracleConfig
from istar_trainer.credits.base import BatchOutcomes, CreditParts, Stateless, StepCredit
from istar_trainer.credits.env_steps import normalized_credit
from istar_trainer.oracle import require_optimum, true_step_gains
from istar_trainer.prm import Pairs


class OracleCredit(Stateless):
    """Credits each step with how much closer to the goal it came.

    Args:
        config: α.
        env: Where episodes are replayed.

    Raises:
        ConfigError: If the environment does not know its optimum.
    """

    def __init__(self, config: OracleConfig, env: gym.Env[Any, Any]) -> None:
        super().__init__()
        require_optimum(env)
        self._config = config
        self._env = env

    @classmethod
    def build(cls, config: OracleConfig, parts: CreditParts) -> "OracleCredit":
        """Make the method with an environment of its own."""
        return cls(config, parts.new_env())

    def assign(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        pairs: Pairs,
    ) -> StepCredit:
        """Replay the episodes and credit every step.

        Raises:
            EnvError: If an episode cannot be replayed or its optimum is not known.
        """
        trajectories = batch.trajectory_index.tolist()
        gains = {index: true_step_gains(outcomes.episodes[index], self._env) for index in set(trajectories)}
        values = [
            gains[index][step] for index, step in zip(trajectories, batch.step_index.tolist(), strict=True)
        ]
        return normalized_credit(torch.tensor(values), batch, outcomes, coef=self._config.step_adv_coef)
