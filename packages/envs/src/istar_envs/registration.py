"""Ids of the environments and how they reach Gymnasium's registry.

Gymnasium 1.x loads no plug-ins by itself: ``import istar_envs`` registers, as does the
``"istar_envs:istar/Sokoban-v0"`` form of ``gymnasium.make``.
"""

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from istar_envs.errors import EnvError, UnknownEnv, suggest


@dataclass(frozen=True, slots=True)
class Entry:
    """How an environment is made.

    Attributes:
        entry_point: Its class.
        vector_entry_point: Its own vectorised class, if it has one.
        options: Keyword arguments that its id stands for.
    """

    entry_point: str
    vector_entry_point: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


ENTRIES: Final[Mapping[str, Entry]] = {
    "istar/Remote-v0": Entry("istar_envs.remote.env:RemoteEnv", "istar_envs.remote.vector:RemoteVectorEnv"),
    "istar/Sokoban-v0": Entry(
        "istar_envs.sokoban.env:SokobanEnv", "istar_envs.sokoban.vector:SokobanVectorEnv"
    ),
    "istar/VisualSokoban-v0": Entry(
        "istar_envs.sokoban.env:VisualSokobanEnv", "istar_envs.sokoban.vector:VisualSokobanVectorEnv"
    ),
    "istar/Sotopia-v0": Entry(
        "istar_envs.sotopia.env:SotopiaEnv", "istar_envs.sotopia.vector:SotopiaVectorEnv"
    ),
    "istar/WebShop-v0": Entry(
        "istar_envs.webshop.env:WebShopEnv",
        options={"scoring": "compat", "split_scheme": "webshop-original"},
    ),
    "istar/WebShop-v1": Entry(
        "istar_envs.webshop.env:WebShopEnv", options={"scoring": "strict", "split_scheme": "strict"}
    ),
    "istar/WebShopBrowser-v0": Entry("istar_envs.webshop.browser:WebShopBrowserEnv"),
}
"""The environments by id."""

_GYM_OPTIONS = ("max_episode_steps", "disable_env_checker")


def env_ids() -> tuple[str, ...]:
    """Return the ids of all environments of this package, sorted."""
    return tuple(sorted(ENTRIES))


def register() -> None:
    """Register every environment with Gymnasium; calling it again does nothing.

    The environments refuse ``step`` before ``reset`` themselves, with their own error, so Gymnasium's
    order-enforcing wrapper is left out.
    """
    for env_id, entry in ENTRIES.items():
        if env_id not in gym.registry:
            gym.register(
                env_id,
                entry_point=entry.entry_point,
                vector_entry_point=entry.vector_entry_point,
                order_enforce=False,
                kwargs=dict(entry.options),
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
    if name not in ENTRIES:
        raise UnknownEnv(f"no environment {env_id!r} (istar_envs.make).{suggest(name, ENTRIES)}")
    accepted = {*inspect.signature(load_env_creator(ENTRIES[name].entry_point)).parameters, *_GYM_OPTIONS}
    for option in options:
        if option not in accepted:
            raise EnvError(f"no option {option!r} ({name}).{suggest(option, accepted)}")
    with warnings.catch_warnings():  # v0 is not out of date: it is scored as published, and stays
        warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
        return gym.make(name, **options)
