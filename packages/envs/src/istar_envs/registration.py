"""Ids of the environments and how they reach Gymnasium's registry.

Gymnasium 1.x loads no plug-ins by itself: ``import istar_envs`` registers, as does the
``"istar_envs:istar/Sokoban-v0"`` form of ``gymnasium.make``.
"""

import inspect
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from istar_envs.errors import EnvError, UnknownEnv, suggest

ENTRY_POINTS = {
    "istar/Sokoban-v0": (
        "istar_envs.sokoban.env:SokobanEnv",
        "istar_envs.sokoban.vector:SokobanVectorEnv",
    ),
    "istar/VisualSokoban-v0": (
        "istar_envs.sokoban.env:VisualSokobanEnv",
        "istar_envs.sokoban.vector:VisualSokobanVectorEnv",
    ),
}
"""Single and vectorised class of each environment id."""

_GYM_OPTIONS = ("max_episode_steps", "disable_env_checker")


def env_ids() -> tuple[str, ...]:
    """Return the ids of all environments of this package, sorted."""
    return tuple(sorted(ENTRY_POINTS))


def register() -> None:
    """Register every environment with Gymnasium; calling it again does nothing.

    The environments refuse ``step`` before ``reset`` themselves, with their own error, so Gymnasium's
    order-enforcing wrapper is left out.
    """
    for env_id, (entry_point, vector_entry_point) in ENTRY_POINTS.items():
        if env_id not in gym.registry:
            gym.register(
                env_id,
                entry_point=entry_point,
                vector_entry_point=vector_entry_point,
                order_enforce=False,
            )


def make(env_id: str, **options: Any) -> gym.Env[Any, Any]:
    """Make an environment, as ``gymnasium.make`` does, with errors that help with a misspelt name.

    Args:
        env_id: An id of this package, with or without ``istar_envs:`` in front.
        options: Arguments of the environment and of ``gymnasium.make``.

    Raises:
        UnknownEnv: If there is no such id.
        EnvError: If there is no such option, or the environment does not accept its value.
    """
    name = env_id.removeprefix("istar_envs:")
    if name not in ENTRY_POINTS:
        raise UnknownEnv(f"no environment {env_id!r} (istar_envs.make).{suggest(name, ENTRY_POINTS)}")
    accepted = {*inspect.signature(load_env_creator(ENTRY_POINTS[name][0])).parameters, *_GYM_OPTIONS}
    for option in options:
        if option not in accepted:
            raise EnvError(f"no option {option!r} ({name}).{suggest(option, accepted)}")
    return gym.make(name, **options)
