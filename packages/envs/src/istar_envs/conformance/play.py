"""How the checks play and compare: seeded random play and one canonical text for any value."""

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np

SEED: Final = 20
MAX_STEPS: Final = 2_000
"""Steps after which an episode that has not ended is given up."""

AnyEnv = gym.Env[Any, Any]


def canonical(value: Any) -> str:
    """Write a value so that two texts are equal iff the values are, numpy or plain.

    Dictionaries lose their order, arrays keep shape and type, numpy scalars become plain ones.
    """
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OU":
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, list | tuple | np.ndarray):
        return "[" + ",".join(canonical(item) for item in value) + "]"
    return repr(value.item() if isinstance(value, np.generic) else value)


def sampler(env: AnyEnv, seed: int) -> Callable[[], Any]:
    """Return a seeded source of random native actions that leaves the environment's own space alone."""
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    return space.sample


def play(env: AnyEnv, seed: int = SEED) -> Iterator[tuple[Any, ...]]:
    """Take random actions from the present state to the end of the episode.

    Yields:
        What each ``step`` returned.
    """
    sample = sampler(env, seed)
    for _ in range(MAX_STEPS):
        result = env.step(sample())
        yield result
        if result[2] or result[3]:
            return


def trace(env: AnyEnv, seed: int) -> list[str]:
    """Return the canonical texts of a whole seeded episode, reset included."""
    return [canonical(env.reset(seed=seed)), *map(canonical, play(env, seed))]


def tail(env: AnyEnv) -> list[str]:
    """Return the canonical texts of the rest of the episode and of the next one's start."""
    return [*map(canonical, play(env)), canonical(env.reset())]


def row(infos: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the ``info`` of one sub-environment of a vector environment."""
    return {
        key: row(value, index) if isinstance(value, Mapping) else value[index]
        for key, value in infos.items()
        if not key.startswith("_") and infos[f"_{key}"][index]
    }


def episode_digest(env_id: str, **options: Any) -> str:
    """Return a SHA-256 of three seeded random episodes: observations, rewards, ends and infos."""
    env = gym.make(env_id, **options)
    traces = [trace(env, seed) for seed in (SEED, SEED + 1, SEED + 2)]
    env.close()
    return hashlib.sha256(repr(traces).encode()).hexdigest()
