import contextlib
import subprocess
import sys

import gymnasium as gym
import pytest

import istar_envs
from istar_envs.errors import EnvError, UnknownEnv
from istar_envs.sokoban.env import SokobanEnv, VisualSokobanEnv


def fresh_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_registers_its_ids() -> None:
    code = "import gymnasium as gym, istar_envs; print(gym.make('istar/Sokoban-v0').spec.id)"
    assert fresh_process(code) == "istar/Sokoban-v0"


def test_the_module_prefix_form_needs_no_import() -> None:
    code = "import gymnasium as gym; print(gym.make('istar_envs:istar/VisualSokoban-v0').spec.id)"
    assert fresh_process(code) == "istar/VisualSokoban-v0"


def test_register_envs_keeps_the_import_for_linters() -> None:
    code = "import gymnasium as gym, istar_envs as e; gym.register_envs(e); gym.make('istar/Sokoban-v0')"
    assert fresh_process(code) == ""


def test_registering_again_changes_nothing_and_does_not_warn() -> None:
    before = dict(gym.registry)
    istar_envs.register()
    assert gym.registry == before


def test_make_gives_the_right_classes_and_passes_options() -> None:
    assert type(istar_envs.make("istar/Sokoban-v0").unwrapped) is SokobanEnv
    env = istar_envs.make("istar_envs:istar/VisualSokoban-v0", tile_size=8, levels="ragen-larger")
    assert type(env.unwrapped) is VisualSokobanEnv
    assert env.observation_space.shape == (64, 64, 3)


@pytest.mark.parametrize("env_id", [name for name in istar_envs.env_ids() if name != "istar/Remote-v0"])
def test_a_misspelt_option_is_answered_with_the_nearest_one(env_id: str) -> None:
    option = "max_turns" if "Sotopia" in env_id else "max_steps"
    wrong = option[:-1]
    with pytest.raises(EnvError, match=f"no option '{wrong}' \\({env_id}\\).*Did you mean \"{option}\""):
        istar_envs.make(env_id, **{wrong: 3})
    with contextlib.closing(istar_envs.make(env_id, disable_env_checker=True, **{option: 3})) as env:
        assert getattr(env.unwrapped, option) == 3


def test_a_misspelt_id_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UnknownEnv, match='Did you mean "istar/Sokoban-v0"'):
        istar_envs.make("istar/Sokoban-v1")
    assert issubclass(UnknownEnv, EnvError)
    assert istar_envs.env_ids() == (
        "istar/Remote-v0",
        "istar/Sokoban-v0",
        "istar/Sotopia-v0",
        "istar/VisualSokoban-v0",
        "istar/WebShop-v0",
        "istar/WebShop-v1",
        "istar/WebShopBrowser-v0",
    )
