"""The promises of every environment, one check each.

A check takes an environment id and the arguments of ``gymnasium.make``, returns nothing, and raises
``AssertionError`` naming the id and what was wrong.
"""

import copy
import itertools
import json
import os
import pickle
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env as check_gymnasium_env

from istar_envs.conformance.play import (
    MAX_STEPS,
    SEED,
    AnyEnv,
    canonical,
    episode_digest,
    play,
    row,
    sampler,
    tail,
    trace,
)
from istar_envs.errors import EnvError, ResetNeeded
from istar_envs.language import InvalidAction

Check = Callable[..., None]

INFO_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "task": (str,),
    "success": (bool,),
    "score": (float,),
    "valid": (bool,),
    "invalid_reason": (str, type(None)),
    "admissible_actions": (list,),
    "state_key": (str,),
    "task_id": (str,),
}
"""Keys that ``info`` always has, and their types."""

_JUNK: Final = (
    "",
    " ",
    "\n",
    "do a barrel roll",
    "up and down",
    "<action>",
    "√\u0000\U0001f600",
    "a" * 10_000,
)


def check_env(env_id: str, **options: Any) -> None:
    """Run every check on one environment.

    Args:
        env_id: Registered id; for another package's environment in the form ``module:id``, so that a
            fresh process can import it.
        options: Arguments of ``gymnasium.make``; must be JSON-ready, as one check starts a process.

    Raises:
        AssertionError: At the first promise that is not kept.
    """
    for check in CHECKS:
        check(env_id, **options)


def check_gymnasium_api(env_id: str, **options: Any) -> None:
    """Gymnasium's own checker passes without a warning."""
    env = gym.make(env_id, **options).unwrapped
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_gymnasium_env(env, skip_render_check=True)
    _require(not caught, env_id, f"gymnasium's checker warns: {[str(w.message) for w in caught]}")
    env.close()


def check_same_seed_same_episode(env_id: str, **options: Any) -> None:
    """Equal seeds and actions give equal episodes, in this and in another process with other hashes."""
    here = episode_digest(env_id, **options)
    _require(here == episode_digest(env_id, **options), env_id, "a second run with the same seed differs")
    code = (
        "import json, sys; from istar_envs.conformance import episode_digest; "
        "print(episode_digest(sys.argv[1], **json.loads(sys.argv[2])))"
    )
    for salt in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, env_id, json.dumps(options)],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=False,
        )
        _require(done.returncode == 0, env_id, f"a fresh process fails: {done.stderr.strip()[-500:]}")
        _require(done.stdout.strip() == here, env_id, f"a process with PYTHONHASHSEED={salt} plays otherwise")


def check_info(env_id: str, **options: Any) -> None:
    """``info`` has the promised keys and types, and the same keys at reset, in play and at the end."""
    env = gym.make(env_id, **options)
    _, info = env.reset(seed=SEED)
    keys = set(info)
    missing = set(INFO_TYPES) - keys
    _require(not missing, env_id, f"info lacks {sorted(missing)}")
    _check_info_values(env_id, info)
    for *_, info in play(env):
        _require(set(info) == keys, env_id, f"info keys change in play: {sorted(set(info) ^ keys)}")
        _check_info_values(env_id, info)
    env.close()


def check_invalid_step(env_id: str, **options: Any) -> None:
    """An invalid step counts and says why, but changes nothing."""
    env = gym.make(env_id, **options)
    observation, before = env.reset(seed=SEED)
    after_observation, reward, _, _, after = env.unwrapped.invalid_step("no such action")  # type: ignore[attr-defined]
    _require(after["valid"] is False, env_id, 'info["valid"] is not False after an invalid step')
    _require(
        after["invalid_reason"] == "no such action", env_id, "the reason of an invalid step is not reported"
    )
    _require(after["state_key"] == before["state_key"], env_id, "an invalid step changes state_key")
    _require(
        canonical(observation) == canonical(after_observation),
        env_id,
        "an invalid step changes the observation",
    )
    _require(np.isfinite(reward), env_id, f"an invalid step has reward {reward}")
    steps = 1
    while steps < MAX_STEPS:
        _, _, terminated, truncated, _ = env.unwrapped.invalid_step("again")  # type: ignore[attr-defined]
        steps += 1
        if terminated or truncated:
            break
    _require(truncated and not terminated, env_id, "invalid steps alone never truncate the episode")
    env.close()


def check_action_outside_space(env_id: str, **options: Any) -> None:
    """A native action outside the action space raises and leaves the episode as it was."""
    env = gym.make(env_id, disable_env_checker=True, **options)
    _, before = env.reset(seed=SEED)
    wrong: list[Any] = [object(), None]
    if isinstance(env.action_space, gym.spaces.Discrete):
        first, count = int(env.action_space.start), int(env.action_space.n)
        wrong += [first + count, first - 1, str(first), float(first) + 0.5]
    for action in wrong:
        try:
            env.step(action)
        except (EnvError, ValueError, TypeError):
            continue
        _require(False, env_id, f"step accepts {action!r}, which is outside {env.action_space}")
    _, _, _, _, after = env.unwrapped.invalid_step("probe")  # type: ignore[attr-defined]
    _require(after["state_key"] == before["state_key"], env_id, "a refused action changes the state")
    env.close()


def check_close_twice(env_id: str, **options: Any) -> None:
    """``close`` may be called again, also before the first reset."""
    fresh = gym.make(env_id, **options)
    fresh.close()
    fresh.close()
    used = gym.make(env_id, **options)
    used.reset(seed=SEED)
    used.close()
    used.close()


def check_instances_apart(env_id: str, **options: Any) -> None:
    """Two instances played in turn do what each would do alone."""
    seeds = (SEED, SEED + 1)
    alone = [trace(gym.make(env_id, **options), seed) for seed in seeds]
    envs = [gym.make(env_id, **options) for _ in seeds]
    together = [[canonical(env.reset(seed=seed))] for env, seed in zip(envs, seeds, strict=True)]
    plays = [play(env, seed) for env, seed in zip(envs, seeds, strict=True)]
    for results in itertools.zip_longest(*plays):
        for texts, result in zip(together, results, strict=True):
            if result is not None:
                texts.append(canonical(result))
    _require(together == alone, env_id, "two instances played in turn influence each other")


def check_global_random_untouched(env_id: str, **options: Any) -> None:
    """Global random generators are neither read nor moved."""
    random.seed(0)
    np.random.seed(0)
    before = random.getstate(), repr(np.random.get_state())
    first = episode_digest(env_id, **options)
    after = random.getstate(), repr(np.random.get_state())
    _require(before == after, env_id, "playing moves a global random generator")
    random.seed(1)
    np.random.seed(1)
    _require(first == episode_digest(env_id, **options), env_id, "play depends on a global random generator")


def check_copies(env_id: str, **options: Any) -> None:
    """A pickled, deep-copied or (where offered) restored episode goes on exactly as the original."""
    env = gym.make(env_id, **options)
    env.reset(seed=SEED)
    _, _, terminated, truncated, _ = env.step(sampler(env, SEED)())
    if terminated or truncated:
        env.reset()
    twins = {"pickled": pickle.loads(pickle.dumps(env)), "deep-copied": copy.deepcopy(env)}
    if hasattr(env.unwrapped, "clone_state"):
        restored = gym.make(env_id, **options)
        restored.reset(seed=SEED + 1)
        restored.unwrapped.restore_state(env.unwrapped.clone_state())  # type: ignore[attr-defined]
        twins["restored"] = restored
    original = tail(env)
    for name, twin in twins.items():
        _require(tail(twin) == original, env_id, f"a {name} environment goes on otherwise than the original")


def check_reset_needed(env_id: str, **options: Any) -> None:
    """``step`` before the first reset and after the end raises ``ResetNeeded``."""
    env = gym.make(env_id, disable_env_checker=True, **options)
    _require_reset_needed(env, env_id, "before the first reset")
    env.reset(seed=SEED)
    list(play(env))
    _require_reset_needed(env, env_id, "after the end of the episode")
    env.reset()
    env.step(sampler(env, SEED)())
    env.close()


def check_vectorised_equals_single(env_id: str, **options: Any) -> None:
    """``make_vec`` plays, board by board, what single environments play at the same tasks."""
    num_envs, num_steps = 3, 60
    vector = gym.make_vec(env_id, num_envs=num_envs, **options)
    singles = [gym.make(env_id, **options) for _ in range(num_envs)]
    samplers = [sampler(single, seed) for seed, single in enumerate(singles)]
    observations, infos = vector.reset(seed=SEED)
    has_ended = [True] * num_envs
    got = [(observations[i], 0.0, False, False, row(infos, i)) for i in range(num_envs)]
    actions: list[Any] = [None] * num_envs
    for _ in range(num_steps):
        for i, single in enumerate(singles):
            if has_ended[i]:
                observation, info = single.reset(options={"task_id": got[i][-1]["task_id"]})
                want: tuple[Any, ...] = (observation, 0.0, False, False, info)
            else:
                want = single.step(actions[i])
            _compare_rows(env_id, i, got[i], want)
            has_ended[i] = bool(want[2] or want[3])
        actions = [sample() for sample in samplers]
        observations, *ends, infos = vector.step(np.array(actions))
        got = [(observations[i], *(end[i] for end in ends), row(infos, i)) for i in range(num_envs)]
    vector.close()


def check_async_vector(env_id: str, **options: Any) -> None:
    """Gymnasium's process-based vector environment, without shared memory, equals its in-process one."""
    traces = []
    for mode, extra in (("sync", {}), ("async", {"shared_memory": False})):
        vector = gym.make_vec(env_id, 2, vectorization_mode=mode, vector_kwargs=extra, **options)
        vector.action_space.seed(SEED)
        texts = [canonical(vector.reset(seed=SEED))]
        texts += [canonical(vector.step(vector.action_space.sample())) for _ in range(20)]
        vector.close()
        traces.append(texts)
    _require(traces[0] == traces[1], env_id, "AsyncVectorEnv(shared_memory=False) and SyncVectorEnv differ")


def check_language(env_id: str, **options: Any) -> None:
    """Action texts are read back as the action they name, and no text ever raises."""
    env = gym.make(env_id, **options)
    language: Any = getattr(env.unwrapped, "language", None)
    _require(language is not None, env_id, "the environment has no language attribute")
    _require(bool(language.role.strip()), env_id, "language.role is empty")
    observation, info = env.reset(seed=SEED)
    shown = language.text(observation, info), language.image(observation, info)
    _require(isinstance(shown[0], str), env_id, "language.text does not return a string")
    _require(bool(shown[0]) or shown[1] is not None, env_id, "the observation has neither text nor picture")
    if isinstance(env.action_space, gym.spaces.Discrete):
        first = int(env.action_space.start)
        for action in range(first, first + int(env.action_space.n)):
            back = language.action(language.name(action), info)
            _require(back == action, env_id, f"action({language.name(action)!r}) is {back!r}, not {action}")
    for text in info["admissible_actions"]:
        action = language.action(text, info)
        _require(
            not isinstance(action, InvalidAction), env_id, f"admissible action {text!r} is read as invalid"
        )
        _require(
            env.action_space.contains(action), env_id, f"{text!r} is read as {action!r}, outside the space"
        )
    for text in _JUNK:
        action = language.action(text, info)
        legal = isinstance(action, InvalidAction) or env.action_space.contains(action)
        _require(legal, env_id, f"text {text[:30]!r} is read as {action!r}, outside the space")
    env.close()


CHECKS: Final[tuple[Check, ...]] = (
    check_gymnasium_api,
    check_same_seed_same_episode,
    check_info,
    check_invalid_step,
    check_action_outside_space,
    check_close_twice,
    check_instances_apart,
    check_global_random_untouched,
    check_copies,
    check_reset_needed,
    check_vectorised_equals_single,
    check_async_vector,
    check_language,
)
"""Every check, in the order in which ``check_env`` runs them."""


def _require(condition: bool, env_id: str, problem: str) -> None:
    if not condition:
        raise AssertionError(f"{env_id}: {problem}")


def _check_info_values(env_id: str, info: dict[str, Any]) -> None:
    for key, types in INFO_TYPES.items():
        wanted = " or ".join(kind.__name__ for kind in types)
        _require(type(info[key]) in types, env_id, f"info[{key!r}] is {info[key]!r}, not {wanted}")
    _require(0.0 <= info["score"] <= 1.0, env_id, f"score {info['score']} is outside [0, 1]")
    _require(info["valid"] == (info["invalid_reason"] is None), env_id, "valid and invalid_reason contradict")
    names = info["admissible_actions"]
    _require(
        all(isinstance(name, str) for name in names), env_id, f"admissible_actions holds no texts: {names}"
    )


def _require_reset_needed(env: AnyEnv, env_id: str, when: str) -> None:
    action = sampler(env, SEED)()
    try:
        env.step(action)
    except ResetNeeded:
        return
    _require(False, env_id, f"step {when} does not raise ResetNeeded")


def _compare_rows(env_id: str, index: int, got: tuple[Any, ...], want: tuple[Any, ...]) -> None:
    """Compare a step of one board; ``seed`` says how a task was drawn and may differ."""
    names = ("observation", "reward", "terminated", "truncated")
    for name, here, there in zip(names, got, want, strict=False):
        same = canonical(here) == canonical(there)
        _require(
            same, env_id, f"{name} of vector board {index} is {here!r}, a single environment has {there!r}"
        )
    info, expected = got[-1], want[-1]
    missing = set(INFO_TYPES) - set(info)
    _require(not missing, env_id, f"infos of the vector environment lack {sorted(missing)}")
    for key in (info.keys() & expected.keys()) - {"seed"}:
        same = canonical(info[key]) == canonical(expected[key])
        _require(
            same, env_id, f"info[{key!r}] of vector board {index} is {info[key]!r}, not {expected[key]!r}"
        )
