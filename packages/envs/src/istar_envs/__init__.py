"""Multi-turn text and vision environments for language-model agents.

Importing the package registers its environments with Gymnasium::

    import gymnasium as gym
    import istar_envs

    env = gym.make("istar/Sokoban-v0")
"""

from istar_envs.registration import env_ids, make, register

__version__ = "0.1.0"

__all__ = ["env_ids", "make", "register"]

register()
