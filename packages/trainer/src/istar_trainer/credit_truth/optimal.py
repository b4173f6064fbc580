"""Advantages of optimal play: how much closer to the goal each step came, whatever the policy."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from istar_trainer.credit_truth.truth import StepTruth, played
from istar_trainer.oracle import true_step_gains
from istar_trainer.records import Group


def optimal_advantages(groups: Sequence[Group], env: gym.Env[Any, Any]) -> StepTruth:
    """Return what each recorded step gained, in moves of the shortest solution.

    Args:
        groups: What was played.
        env: Where episodes are replayed, configured as they were recorded.

    Raises:
        ConfigError: If the environment does not know its optimum.
        EnvError: If an episode takes another course than recorded, or its optimum is not known.
    """
    gains = [gain for _, t in played(groups) for gain in true_step_gains(t.episode, env)]
    source = "optimal play: moves of the shortest solution before minus after, a dead end counting as −3"
    return StepTruth(np.array(gains), np.zeros(len(gains)), source)
