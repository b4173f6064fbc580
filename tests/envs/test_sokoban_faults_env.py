"""Faults of earlier Sokoban environments (numbered as in the specification) that must not come back here."""

import copy
import dataclasses
import importlib.resources
import inspect
import multiprocessing
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from sokoban_boards import CORRIDOR, ROOM, ListSource, env_of, level_of

from istar_envs.errors import ResetNeeded
from istar_envs.language import InvalidAction
from istar_envs.sokoban import sprites
from istar_envs.sokoban.board import ACTION_NAMES, DOWN, LEFT, RIGHT, UP
from istar_envs.sokoban.env import SokobanEnv, VisualSokobanEnv
from istar_envs.sokoban.presets import PRESETS
from istar_envs.sokoban.render import Renderer, image_of_text
from istar_envs.sokoban.vector import SokobanVectorEnv


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the boards drawn during a test."""
    drawn: list[int] = []
    draw = Renderer.draw

    def counting(self: Renderer, codes: bytes, width: int) -> Any:
        drawn.append(len(codes))
        return draw(self, codes, width)

    monkeypatch.setattr(Renderer, "draw", counting)
    return drawn


def test_f07_f34_the_symbolic_environment_draws_nothing_unless_asked(frames: list[int]) -> None:
    env = env_of(ROOM, render_mode="rgb_array")
    env.step(LEFT)
    assert frames == []
    env.render()
    assert frames == [36]


def test_f08_tiles_are_not_made_again_for_every_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    image_of_text("#@$.", 11)
    monkeypatch.delattr(sprites, "_Canvas")
    assert image_of_text("#.$@", 11).shape == (11, 44, 3)


def test_f09_the_visual_environment_draws_once_per_step(frames: list[int]) -> None:
    env = env_of(ROOM, env_class=VisualSokobanEnv)
    observation, _, _, _, info = env.step(LEFT)
    env.language.text(observation, info)
    env.language.image(observation, info)
    assert len(frames) == 2  # reset and step


def test_f10_many_boards_need_no_process_of_their_own() -> None:
    vector = gym.make_vec("istar/Sokoban-v0", num_envs=64, num_levels=8)
    vector.reset(seed=0)
    vector.step(np.zeros(64, np.int64))
    assert multiprocessing.active_children() == []


def test_f12_a_box_that_starts_on_a_target_pays_nothing_at_the_first_step() -> None:
    env = env_of("########\n#*-@-$.#\n########")
    assert env.reset()[1]["num_boxes_on_target"] == 1
    assert env.step(RIGHT)[1] == pytest.approx(-0.1)


def test_f13_f25_the_seed_decides_the_levels_and_neighbouring_seeds_share_none() -> None:
    env = SokobanEnv()
    assert not hasattr(env, "seed")
    first = [env.reset(seed=7)[1]["task_id"]] + [env.reset()[1]["task_id"] for _ in range(5)]
    again = [env.reset(seed=7)[1]["task_id"]] + [env.reset()[1]["task_id"] for _ in range(5)]
    other = [env.reset(seed=8)[1]["task_id"]] + [env.reset()[1]["task_id"] for _ in range(5)]
    assert first == again
    assert not set(first) & set(other)


def test_f14_the_api_is_gymnasiums_and_old_gym_is_never_imported() -> None:
    code = (
        "import sys, gymnasium, istar_envs; e = gymnasium.make('istar/VisualSokoban-v0');"
        "assert len(e.reset(seed=0)) == 2; assert len(e.step(0)) == 5;"
        "assert not {'gym', 'pkg_resources', 'imageio'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_f15_pictures_come_from_no_file_that_a_package_could_lack() -> None:
    names = [item.name for item in importlib.resources.files("istar_envs.sokoban").iterdir()]
    assert not [name for name in names if name.endswith((".png", ".gif", ".jpg"))]


def test_f16_f36_a_time_limit_truncates_and_cannot_be_stepped_past() -> None:
    env = env_of(CORRIDOR, max_steps=3)
    late = dataclasses.replace(env.clone_state(), steps=10)
    env.restore_state(late)
    assert env.step(UP)[2:4] == (False, True)


def test_f17_nothing_can_be_played_or_earned_after_the_end() -> None:
    env = env_of(CORRIDOR)
    env.step(RIGHT)
    assert env.step(RIGHT)[2]
    with pytest.raises(ResetNeeded):
        env.step(RIGHT)


@pytest.mark.parametrize(
    ("text", "wrong"), [("setup", UP), ("left then up", UP), ("upright", UP), ("do not go down", DOWN)]
)
def test_f18_an_action_word_inside_other_text_is_not_an_action(text: str, wrong: int) -> None:
    answer = env_of(CORRIDOR).language.action(text, {})
    assert isinstance(answer, InvalidAction)
    assert env_of(CORRIDOR).language.name(wrong) in text


def test_f19_a_push_has_an_effect_even_when_the_player_comes_back_to_his_cell() -> None:
    env = env_of("#######\n#-@$-.#\n#######")
    before = env.reset()[1]
    infos = [env.step(RIGHT)[4], env.step(LEFT)[4]]
    assert [info["effective"] for info in infos] == [True, True]
    assert env.board_state.player == env.level.start.player
    assert infos[1]["state_key"] != before["state_key"]


def test_f20_the_surface_is_whole() -> None:
    env = env_of(ROOM)
    assert copy.copy(env).step(LEFT)[4]["moved"]
    assert (
        env.action_space == gym.spaces.Discrete(len(ACTION_NAMES)) == SokobanVectorEnv(2).single_action_space
    )
    for mode in env.metadata["render_modes"][:2]:
        played = env_of(ROOM, render_mode=mode)
        played.step(LEFT)
        assert played.render() is not None


def test_f21_the_dev_levels_are_a_fixed_list_whatever_was_played_before() -> None:
    train, dev = SokobanEnv(), SokobanEnv(split="dev")
    listed = dev.source.ids()
    assert listed is not None
    train.reset(seed=3)
    drawn = {dev.reset(seed=seed)[1]["task_id"] for seed in range(20)}
    assert drawn <= set(listed)
    assert SokobanEnv(split="dev").source.ids() == listed


def test_f22_min_moves_is_a_minimum_max_moves_a_maximum_and_max_steps_a_limit() -> None:
    env = SokobanEnv(min_moves=4, max_moves=6, max_steps=9)
    for seed in range(20):
        _, info = env.reset(seed=seed)
        assert 4 <= info["optimal_left"] <= 6
        assert info["steps_left"] == 9


def test_f23_aimless_moves_earn_less_than_nothing() -> None:
    env = env_of(ROOM)
    assert sum(env.step(action)[1] for action in (DOWN, UP, DOWN, UP, DOWN)) == pytest.approx(-0.5)


def test_f24_an_unreadable_reply_is_a_turn_with_a_reason_not_an_error() -> None:
    env = env_of(ROOM)
    answer = env.language.action("I would rather not", {})
    assert isinstance(answer, InvalidAction)
    *_, truncated, info = env.invalid_step(answer.reason)
    assert (truncated, info["valid"]) == (False, False)
    assert "i would rather not" in info["invalid_reason"]


@pytest.mark.parametrize("env_id", ["istar/Sokoban-v0", "istar/VisualSokoban-v0"])
def test_f31_every_id_names_classes_that_exist(env_id: str) -> None:
    assert isinstance(gym.make(env_id).unwrapped, SokobanEnv)
    assert isinstance(gym.make_vec(env_id, num_envs=1, num_levels=1).unwrapped, SokobanVectorEnv)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_f31_levels_have_the_size_and_boxes_that_their_preset_says(preset: str) -> None:
    recipe = PRESETS[preset].recipe
    env = SokobanEnv(preset)
    observation, info = env.reset(seed=0)
    assert observation.shape == (recipe.height, recipe.width)
    assert info["num_boxes"] == recipe.num_boxes == int(np.isin(observation, (3, 4)).sum())


class Untouchable(ListSource):
    def draw(self, seed: int) -> Any:
        raise AssertionError("a level was drawn")

    get = draw  # type: ignore[assignment]


def test_f32_making_an_environment_makes_no_level() -> None:
    source = Untouchable(level_of(CORRIDOR))
    SokobanEnv(source)
    VisualSokobanEnv(source)
    SokobanVectorEnv(4, source)


def test_f37_the_last_observation_of_an_episode_is_its_own() -> None:
    vector = SokobanVectorEnv(1, ListSource(level_of(CORRIDOR), max_steps=1))
    first, _ = vector.reset(seed=0)
    last, _, _, truncated, _ = vector.step(np.array([RIGHT]))
    assert truncated[0]
    assert last[0, 1].tolist() == [0, 1, 5, 4, 2, 0]
    assert np.array_equal(vector.step(np.array([RIGHT]))[0], first)


@pytest.mark.parametrize(
    ("action", "offset"), [(UP, (-1, 0)), (DOWN, (1, 0)), (LEFT, (0, -1)), (RIGHT, (0, 1))]
)
def test_f38_one_action_table_holds_for_single_and_vector_environments_and_their_docs(
    action: int, offset: tuple[int, int]
) -> None:
    board = "#######\n#.$---#\n#--@--#\n#-----#\n#######"
    single, vector = env_of(board), SokobanVectorEnv(1, ListSource(level_of(board)))
    vector.reset(seed=0)
    where = (2 + offset[0], 3 + offset[1])
    assert single.step(action)[0][where] == 5
    assert vector.step(np.array([action]))[0][0][where] == 5
    assert f"{action} {ACTION_NAMES[action]}" in (inspect.getdoc(SokobanEnv) or "")


def test_f40_the_score_is_the_share_of_targets_and_no_scaled_reward() -> None:
    env = env_of(CORRIDOR)
    assert env.step(RIGHT)[4]["score"] == 0.0
    assert env.step(RIGHT)[4]["score"] == 1.0


def test_f42_a_cell_is_one_whole_tile_and_every_tile_is_explained() -> None:
    env = VisualSokobanEnv()
    picture, _ = env.reset(seed=0)
    assert picture.shape == (6 * 28, 6 * 28, 3)
    for word in ("walls", "floor", "target", "crate is a box", "green crate", "blue figure", "ring around"):
        assert word in env.language.role


def test_f43_the_player_is_followed_onto_targets_and_shown_there() -> None:
    env = env_of("######\n#@.$-#\n#---.#\n######".replace("#---.#", "#-.$-#"))
    observation, *_ = env.step(RIGHT)
    assert observation[1, 2] == 6
    observation, *_ = env.step(LEFT)
    assert observation[1].tolist() == [0, 5, 2, 4, 1, 0]
