"""Which environments are served, and which of their arguments clients may choose.

Arguments that name files, programs or addresses, or that could take up much memory, are the operator's. So
is everything that is not listed here.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import gymnasium as gym

from istar_envs.errors import EnvError, UnknownEnv, suggest
from istar_envs.registration import env_ids, make
from istar_envs.sokoban.presets import PRESETS
from istar_envs.sotopia.book import FAMILIES
from istar_envs.wire.descriptions import describe

REMOTE: Final = "istar/Remote-v0"
BROWSER: Final = "istar/WebShopBrowser-v0"
INSTANT: Final = frozenset({"istar/Sokoban-v0"})
"""Environments whose every step takes microseconds, whatever the arguments, and waits for nothing."""

Choices = Mapping[str, tuple[Any, ...] | range]
_FLAG: Final = (False, True)
_SPLIT: Final = ("train", "dev", "test")
_STEPS: Final = range(1, 1001)
_MOVES: Final = (None, *range(1, 101))

_BOARD: Final[Choices] = {
    "levels": tuple(PRESETS),
    "split": _SPLIT,
    "min_moves": _MOVES,
    "max_moves": _MOVES,
    "max_steps": (None, *_STEPS),
    "tile_size": range(4, 65),
    "coordinates": _FLAG,
    "render_mode": (None, "ansi", "rgb_array"),
}
_SHOP: Final[Choices] = {
    "goals": ("synthetic", "human"),
    "split": _SPLIT,
    "split_scheme": ("webshop-original", "istar", "strict"),
    "scoring": ("compat", "strict"),
    "observation": ("text", "text_rich", "html", "url", "structured"),
    "max_steps": _STEPS,
    "show_chosen": _FLAG,
    "show_attributes": _FLAG,
    "sampling": ("uniform", "weighted"),
    "render_mode": (None, "ansi"),
}
CHOICES: Final[Mapping[str, Choices]] = MappingProxyType(
    {
        "istar/Sokoban-v0": _BOARD,
        "istar/VisualSokoban-v0": _BOARD,
        "istar/Sotopia-v0": {
            "scenarios": ("families", *FAMILIES),
            "split": _SPLIT,
            "subset": ("all", "hard", "drafts"),
            "partner": ("scripted", "expert", "naive"),
            "seat": ("both", 0, 1),
            "protocol": ("plain", "react", "json", "speech"),
            "history": ("all", "new"),
            "max_turns": _STEPS,
            "order": ("round_robin", "simultaneous", "random"),
            "stale_limit": _STEPS,
            "legacy_stale": _FLAG,
            "legacy_leave": _FLAG,
            "visibility": ("strict", "leaky_ampo"),
            "render_mode": (None, "ansi"),
        },
        "istar/WebShop-v0": _SHOP,
        "istar/WebShop-v1": _SHOP,
        BROWSER: {
            **{name: choices for name, choices in _SHOP.items() if name != "show_chosen"},
            "observation": ("text", "html", "screenshot"),
            "render_mode": (None, "ansi", "rgb_array"),
        },
    }
)
"""Values that clients may give to the arguments of each environment."""


class Worlds:
    """The environments of a server.

    Args:
        names: Ids to serve.
        options: The operator's arguments of each; clients cannot change them.

    Raises:
        UnknownEnv: If an id is not one that can be served.
    """

    def __init__(self, names: Iterable[str], options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._options = {name: dict((options or {}).get(name, {})) for name in names}
        for name in (*self._options, *(options or {})):
            if name not in servable_ids():
                raise UnknownEnv(f"no environment {name!r} can be served.{suggest(name, servable_ids())}")

    @property
    def names(self) -> list[str]:
        """Ids that are served, sorted."""
        return sorted(self._options)

    def make(self, name: str, options: Mapping[str, Any]) -> gym.Env[Any, Any]:
        """Make an environment for a client.

        Args:
            name: Its id.
            options: What the client chose.

        Raises:
            UnknownEnv: If the id is not served.
            EnvError: If the client may not choose so, or the environment cannot be made.
        """
        if name not in self._options:
            raise UnknownEnv(f"no environment {name!r} is served here.{suggest(name, self._options)}")
        fixed = self._options[name]
        for option, value in options.items():
            _check_choice(name, option, value, fixed)
        return make(name, disable_env_checker=True, **{**options, **fixed})


def servable_ids() -> tuple[str, ...]:
    """Return the ids of all environments that can be served, sorted."""
    return tuple(name for name in env_ids() if name != REMOTE)


def describe_env(name: str, env: gym.Env[Any, Any]) -> dict[str, Any]:
    """Return the members of ``messages.Description`` for an environment."""
    world: Any = env.unwrapped
    ids = world.task_ids() if hasattr(world, "task_ids") else None
    return {
        "env": name,
        "observation_space": describe(env.observation_space),
        "action_space": describe(env.action_space),
        "language": describe(world.language),
        "metadata": {key: env.metadata[key] for key in ("render_modes", "render_fps") if key in env.metadata},
        "render_mode": env.render_mode,
        "offers": [offer for offer in ("truncate", "expert_action", "task_ids") if hasattr(world, offer)],
        "num_tasks": None if ids is None else len(ids),
    }


def _check_choice(name: str, option: str, value: Any, fixed: Mapping[str, Any]) -> None:
    choices = CHOICES[name]
    if option in fixed and (type(value), value) == (type(fixed[option]), fixed[option]):
        return
    if option in fixed or option not in choices:
        open_options = choices.keys() - fixed.keys()
        raise EnvError(
            f"option {option!r} cannot be chosen by clients of this server ({name})."
            f"{suggest(option, open_options)}"
        )
    allowed = choices[option]
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        shown = (
            f"{allowed[0]} to {allowed[-1]}"
            if isinstance(allowed, range)
            else ", ".join(map(repr, allowed[:9]))
        )
        raise EnvError(f"option {option}={value!r:.80} is not served ({name}). Known: {shown}.")
