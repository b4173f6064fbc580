import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import istar_envs
from istar_envs.conformance import CHECKS, Check, check_env, checks
from istar_envs.errors import ResetNeeded
from istar_envs.sokoban.env import SokobanEnv

BROWSER = "istar/WebShopBrowser-v0"
HAS_BROWSER = all(map(shutil.which, ("chromium", "chromedriver")))
needs_browser = pytest.mark.skipif(not HAS_BROWSER, reason="chromium and chromedriver are not on the PATH")
ENV_IDS = [
    pytest.param(env_id, marks=[pytest.mark.slow, needs_browser] if env_id == BROWSER else [])
    for env_id in istar_envs.env_ids()
    if env_id != "istar/Remote-v0"  # it plays the others, and test_remote_env.py checks it on each
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("env_id", ENV_IDS)
def test_every_registered_environment_conforms(env_id: str, check: Check) -> None:
    check(env_id)


def test_check_env_runs_every_check_with_the_given_options() -> None:
    check_env("istar/Sokoban-v0", levels="istar-6x6-2", split="dev", max_steps=12)


class GlobalRandom(SokobanEnv):
    def reset(self, **options: Any) -> Any:
        return super().reset(**options, options={"level_id": f"istar-6x6-1/train#{np.random.randint(99)}"})


class LateKeys(SokobanEnv):
    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info | ({"extra": 1} if truncated else {})


class NumpySuccess(SokobanEnv):
    def step(self, action: int) -> Any:
        *rest, info = super().step(action)
        return (*rest, info | {"success": np.bool_(False)})


class MovingInvalidStep(SokobanEnv):
    def invalid_step(self, reason: str) -> Any:
        *rest, info = super().step(next(i for i in range(4) if self.language.name(i) in self._admissible()))
        return (*rest, info | {"valid": False, "invalid_reason": reason})

    def _admissible(self) -> list[str]:
        return self._running().info()["admissible_actions"]


class Forgiving(SokobanEnv):
    def step(self, action: Any) -> Any:
        return super().step(action if isinstance(action, int) and 0 <= action < 4 else 0)


class ClosesOnce(SokobanEnv):
    def close(self) -> None:
        del self.language


class SharedCounter(SokobanEnv):
    calls = [0]  # noqa: RUF012

    def step(self, action: int) -> Any:
        self.calls[0] += 1
        observation, reward, *rest = super().step(action)
        return observation, reward + self.calls[0] % 2, *rest

    def reset(self, **options: Any) -> Any:
        self.calls[0] = 0
        return super().reset(**options)


class ForgetfulCopy(SokobanEnv):
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_np_random": None}


class PlaysOn(SokobanEnv):
    def step(self, action: int) -> Any:
        try:
            return super().step(action)
        except ResetNeeded:
            self.reset()
            return super().step(action)


class Mumbling(SokobanEnv):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.language.name = lambda action: "up"  # type: ignore[method-assign]


class Warns(SokobanEnv):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observation_space = gym.spaces.Box(0, 3, (self.height, self.width), np.uint8)


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> Iterator[str]:
    gym.register("broken/Env-v0", entry_point=request.param, order_enforce=False, disable_env_checker=True)
    yield "broken/Env-v0"
    del gym.registry["broken/Env-v0"]


@pytest.mark.parametrize(
    ("registered", "check", "problem"),
    [
        (Warns, checks.check_gymnasium_api, "."),
        (LateKeys, checks.check_info, "keys change in play.*extra"),
        (NumpySuccess, checks.check_info, "success.*not bool"),
        (MovingInvalidStep, checks.check_invalid_step, "changes state_key"),
        (Forgiving, checks.check_action_outside_space, "step accepts <object"),
        (SharedCounter, checks.check_instances_apart, "influence each other"),
        (GlobalRandom, checks.check_global_random_untouched, "global random generator"),
        (ForgetfulCopy, checks.check_copies, "pickled environment goes on otherwise"),
        (PlaysOn, checks.check_reset_needed, "before the first reset does not raise"),
        (Mumbling, checks.check_language, r"action\('up'\) is 0, not 1"),
    ],
    indirect=["registered"],
)
def test_each_check_catches_an_environment_that_breaks_its_promise(
    registered: str, check: Check, problem: str
) -> None:
    with pytest.raises(AssertionError, match=problem):
        check(registered)


@pytest.mark.parametrize("registered", [ClosesOnce], indirect=True)
def test_closing_twice_is_checked(registered: str) -> None:
    with pytest.raises(AttributeError):
        checks.check_close_twice(registered)


def test_a_seed_that_depends_on_the_hash_salt_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = """
        import gymnasium as gym
        from istar_envs.sokoban.env import SokobanEnv

        class Salted(SokobanEnv):
            def reset(self, *, seed=None, options=None):
                return super().reset(seed=hash(str(seed)) % 2**32, options=options)

        gym.register("broken/Salted-v0", entry_point=Salted)
        """
    (tmp_path / "salted_env.py").write_text(textwrap.dedent(module))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(AssertionError, match=r"PYTHONHASHSEED=\d plays otherwise"):
        checks.check_same_seed_same_episode("salted_env:broken/Salted-v0")
    del gym.registry["broken/Salted-v0"]
