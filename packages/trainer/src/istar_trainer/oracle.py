"""The true worth of recorded steps, in environments that know their optimum.

An environment knows it if its ``info`` holds ``optimal_left``, the moves of a shortest solution, and
``deadlocked``. An episode is replayed action by action in a fresh environment; no policy is involved.
"""

from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym

import istar_envs
from istar_envs.episode import Episode, Transition
from istar_envs.errors import ConfigError, EnvError

DEAD_END_GAIN: Final = -3.0
"""Worth of a step after which the task cannot be solved any more, in moves."""
_NEEDED: Final = ("optimal_left", "deadlocked")
_KNOWN: Final = ("istar/Sokoban-v0", "istar/VisualSokoban-v0")


def require_optimum(env: gym.Env[Any, Any]) -> None:
    """Check that an environment knows its optimum.

    Raises:
        ConfigError: If it does not; names those that do.
    """
    _, info = env.reset(seed=0)
    if not all(name in info for name in _NEEDED):
        raise ConfigError(
            f"{type(env.unwrapped).__name__} does not know its optimum (info lacks {' and '.join(_NEEDED)}), "
            f"so there is no true credit. Environments that do: {', '.join(_KNOWN)}."
        )


def true_step_gains(episode: Episode, env: gym.Env[Any, Any] | None = None) -> list[float]:
    """Say how much closer to the goal each step of an episode came (spec §10, item 7).

    Args:
        episode: A recorded episode whose ``task_id`` the environment can play again.
        env: Where it is replayed, configured as it was when recording; by default the registered
            environment with its default options.

    Returns:
        For each step the fall of the optimal number of moves: 1 for an optimal move, 0 for a step that
        changes nothing, ``DEAD_END_GAIN`` for one into a dead end, 0 after that.

    Raises:
        ConfigError: If the environment does not know its optimum.
        EnvError: If the replay takes another course than the record, or the task is too large to know
            its optimum.
    """
    world = istar_envs.make(episode.env_id) if env is None else env
    _, info = world.reset(options={"task_id": episode.task_id})
    if not all(name in info for name in _NEEDED):
        require_optimum(world)
    gains = []
    for number, transition in enumerate(episode.transitions):
        if str(info["state_key"]) != transition.state_key:
            raise EnvError(
                f"step {number} of an episode of task {episode.task_id} ({episode.env_id}) does not replay: "
                "the environment is in another state than recorded. Give it the options it was recorded with."
            )
        before, info = info, _replay(world, transition)
        gains.append(_gain(before, info, episode.task_id))
    return gains


def _replay(env: gym.Env[Any, Any], transition: Transition) -> dict[str, Any]:
    """Take the recorded step again and return the ``info`` after it."""
    world: Any = env.unwrapped
    if transition.action is None:
        info: dict[str, Any] = world.invalid_step(transition.invalid_reason or "invalid")[-1]
        return info
    for name in transition.action.split("||"):
        *_, info = env.step(world.language.action(name, {}))
    return info


def _gain(before: Mapping[str, Any], after: Mapping[str, Any], task_id: str) -> float:
    if before["deadlocked"]:
        return 0.0
    if after["deadlocked"]:
        return DEAD_END_GAIN
    if min(before["optimal_left"], after["optimal_left"]) < 0:
        raise EnvError(
            f"the optimum of task {task_id} is not known: it has too many states to be tabulated. "
            "Choose smaller levels."
        )
    return float(before["optimal_left"] - after["optimal_left"])
