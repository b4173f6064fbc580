"""Algorithms by name: the plain table from a configuration to its class."""

from istar_trainer.algorithms.base import Algorithm
from istar_trainer.algorithms.grpo import Grpo
from istar_trainer.algorithms.rloo import Rloo
from istar_trainer.config import GrpoConfig, RlooConfig

__all__ = ["Algorithm", "make_algorithm"]


def make_algorithm(config: RlooConfig | GrpoConfig) -> Algorithm:
    """Return the algorithm that a configuration describes."""
    if isinstance(config, GrpoConfig):
        return Grpo(config)
    return Rloo(config)
