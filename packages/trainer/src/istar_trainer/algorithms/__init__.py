"""Algorithms by name: the plain table from a configuration to its class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from istar_trainer.algorithms.base import Algorithm, OutcomeAdvantages
from istar_trainer.algorithms.dapo import Dapo
from istar_trainer.algorithms.grpo import Grpo
from istar_trainer.algorithms.ppo import Ppo
from istar_trainer.algorithms.reinforce_pp import ReinforcePp
from istar_trainer.algorithms.rloo import Rloo
from istar_trainer.config import LearnerConfig
from istar_trainer.config_algorithms import (
    AlgorithmConfig,
    CriticConfig,
    DapoConfig,
    GrpoConfig,
    PpoConfig,
    ReinforcePpConfig,
    RlooConfig,
)
from istar_trainer.config_base import Section
from istar_trainer.learner import Learner

__all__ = ["ALGORITHMS", "Algorithm", "AlgorithmParts", "OutcomeAdvantages", "make_algorithm"]


@dataclass(frozen=True, slots=True)
class AlgorithmParts:
    """What algorithms are built from.

    Attributes:
        new_critic: Makes a critic with the start policy's weights and an optimizer.
        learner: Epochs and minibatches of an update.
        max_response_tokens: Limit on a reply's tokens.
        seed: Seed of the run.
    """

    new_critic: Callable[[CriticConfig], Learner]
    learner: LearnerConfig
    max_response_tokens: int
    seed: int


def make_algorithm(config: AlgorithmConfig, parts: AlgorithmParts) -> Algorithm:
    """Return the algorithm that a configuration describes.

    Args:
        config: Any section of ``config_algorithms`` with a ``type``.
        parts: What to build it from.
    """
    return ALGORITHMS[type(config)](config, parts)


ALGORITHMS: Final[Mapping[type[Section], Callable[[Any, AlgorithmParts], Algorithm]]] = MappingProxyType(
    {
        RlooConfig: lambda config, _parts: Rloo(config),
        GrpoConfig: lambda config, _parts: Grpo(config),
        ReinforcePpConfig: lambda config, _parts: ReinforcePp(config),
        PpoConfig: lambda config, parts: Ppo(
            config, parts.new_critic(config.critic), parts.learner, seed=parts.seed
        ),
        DapoConfig: lambda config, parts: Dapo(config, parts.max_response_tokens),
    }
)
"""How each algorithm is made from its configuration."""
