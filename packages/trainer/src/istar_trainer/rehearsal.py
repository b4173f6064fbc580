"""Rehearsal: cloning of the demonstrations goes on between the policy's updates.

A small policy forgets between rewards what it was shown, and drifts where no reward comes. Mixing
demonstrations into reinforcement learning keeps it (PPO-ptx, Ouyang et al. 2022; DAPG, Rajeswaran
et al. 2018).
"""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from istar_envs.seeding import CounterRng, derive_seed
from istar_trainer.config import RunConfig
from istar_trainer.learner import Learner
from istar_trainer.records import Step
from istar_trainer.sft import clone, demonstrate


class Rehearsal:
    """Demonstrations and how many updates on them follow each policy update.

    Args:
        steps: Demonstrations; empty if there is no rehearsal.
        num_updates: Updates an iteration.
        batch_size: Steps of an update.
        seed: Seed of the draws.
    """

    def __init__(self, steps: Sequence[Step], num_updates: int, batch_size: int, seed: int) -> None:
        self._steps, self._num_updates, self._batch_size, self._seed = steps, num_updates, batch_size, seed

    def learn(self, learner: Learner, iteration: int) -> dict[str, float]:
        """Take the iteration's cloning updates at the learner's present rate.

        Args:
            learner: The policy.
            iteration: Decides the draws, so that a resumed run makes the same ones.

        Returns:
            ``sft/loss``, mean token cross-entropy in nats; nothing without rehearsal.
        """
        rng = CounterRng(derive_seed(self._seed, "rehearsal", iteration))
        losses = [
            clone([self._steps[rng.next_u64() % len(self._steps)] for _ in range(self._batch_size)], learner)
            for _ in range(self._num_updates)
        ]
        return {"sft/loss": sum(losses) / len(losses)} if losses else {}


def make_rehearsal(config: RunConfig, tokenizer: Any, new_env: Callable[[], gym.Env[Any, Any]]) -> Rehearsal:
    """Let the demonstrator play again what the warm start showed, if the run rehearses."""
    settings = config.warm_start
    steps: list[Step] = []
    if settings.rehearsal_updates:
        env = new_env()
        steps = demonstrate(env, tokenizer, config.env, settings, seed=config.seed)
        env.close()
    return Rehearsal(steps, settings.rehearsal_updates, settings.batch_size, config.seed)
