"""Rehearsal: cloning of the demonstrations goes on between the policy's updates.

A small policy forgets between rewards what it was shown, and drifts where no reward comes. Mixing
demonstrations into reinforcement learning keeps it (PPO-ptx, Ouyang et al. 2022; DAPG, Rajeswaran
et al. 2018).
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import gymnasium as gym

from istar_envs.errors import ConfigError
from istar_envs.seeding import CounterRng, derive_seed
from istar_trainer.config import RunConfig
from istar_trainer.learner import Learner
from istar_trainer.records import Step
from istar_trainer.sft import clone, demonstrate


class Rehearsal:
    """Demonstrations and how many updates on them follow each policy update.

    Args:
        demonstrate: Makes the demonstrations; called once, when they are first needed.
        num_updates: Updates an iteration; 0 for no rehearsal.
        batch_size: Steps of an update.
        seed: Seed of the draws.
    """

    def __init__(
        self, demonstrate: Callable[[], Sequence[Step]], num_updates: int, batch_size: int, seed: int
    ) -> None:
        self._steps = cache(demonstrate)
        self._num_updates, self._batch_size, self._seed = num_updates, batch_size, seed

    def learn(self, learner: Learner, iteration: int) -> dict[str, float]:
        """Take the iteration's cloning updates at the learner's present rate.

        Args:
            learner: The policy.
            iteration: Decides the draws, so that a resumed run makes the same ones.

        Returns:
            ``sft/loss``, mean token cross-entropy in nats; nothing without rehearsal.

        Raises:
            ConfigError: If no demonstration succeeded.
        """
        if not self._num_updates:
            return {}
        steps = self._steps()
        if not steps:
            raise ConfigError(
                "rehearsal has nothing to show: no demonstration succeeded. Raise warm_start.episodes, or "
                "set warm_start.rehearsal_updates to 0."
            )
        rng = CounterRng(derive_seed(self._seed, "rehearsal", iteration))
        losses = [
            clone([steps[rng.below(len(steps))] for _ in range(self._batch_size)], learner)
            for _ in range(self._num_updates)
        ]
        return {"sft/loss": sum(losses) / len(losses)}


def make_rehearsal(config: RunConfig, tokenizer: Any, new_env: Callable[[], gym.Env[Any, Any]]) -> Rehearsal:
    """Make a run's rehearsal; the demonstrator shows again what the warm start showed."""
    settings = config.warm_start

    def show() -> list[Step]:
        env = new_env()
        steps = demonstrate(env, tokenizer, config.env, settings, seed=config.seed)
        env.close()
        return steps

    return Rehearsal(show, settings.rehearsal_updates, settings.batch_size, config.seed)
