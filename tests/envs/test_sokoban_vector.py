from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from sokoban_boards import CORRIDOR, ROOM, TWO_TARGETS, ListSource, level_of

from istar_envs.conformance.play import canonical, row
from istar_envs.errors import EnvError, ResetNeeded
from istar_envs.sokoban.board import DOWN, LEFT, RIGHT, UP
from istar_envs.sokoban.env import SokobanEnv, VisualSokobanEnv
from istar_envs.sokoban.rewards import Rewards
from istar_envs.sokoban.vector import SokobanVectorEnv, VisualSokobanVectorEnv

BOARDS = [ROOM, CORRIDOR, TWO_TARGETS, "######\n#+$$.#\n#-.-$#\n#----#\n######", "#####\n#@*-#\n#.$-#\n#####"]
SOLVED = "#####\n#@*-#\n#####"
SOURCE = ListSource(*(level_of(board, f"board{i}") for i, board in enumerate([*BOARDS, SOLVED])), max_steps=8)


class Endless(ListSource):
    def ids(self) -> None:
        return None


def vector_of(board: str, num_envs: int = 2, max_steps: int = 3, **options: Any) -> SokobanVectorEnv:
    return SokobanVectorEnv(num_envs, ListSource(level_of(board), max_steps=max_steps), **options)


@pytest.mark.property
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    actions=st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), max_size=40),
)
@pytest.mark.parametrize("visual", [False, True])
def test_every_board_equals_a_single_environment_step_by_step(
    visual: bool, seed: int, actions: list[list[int]]
) -> None:
    options: dict[str, Any] = {"tile_size": 4, "rewards": Rewards(step=-0.3)}
    single_class, vector_class = (
        (VisualSokobanEnv, VisualSokobanVectorEnv) if visual else (SokobanEnv, SokobanVectorEnv)
    )
    vector = vector_class(5, SOURCE, analysis=True, **options)
    singles = [single_class(SOURCE, **options) for _ in range(5)]
    observations, infos = vector.reset(seed=seed)
    for i, single in enumerate(singles):
        want = single.reset(options={"level_id": infos["level_id"][i]})
        assert canonical((observations[i], row(infos, i))) == canonical(want)
    has_ended = [False] * 5
    for taken in actions:
        observations, *numbers, infos = vector.step(np.array(taken))
        for i, single in enumerate(singles):
            if has_ended[i]:
                observation, info = single.reset(options={"level_id": infos["level_id"][i]})
                expected: tuple[Any, ...] = (observation, 0.0, False, False, info)
            else:
                expected = single.step(taken[i])
            assert canonical((observations[i], *(n[i] for n in numbers), row(infos, i))) == canonical(
                expected
            )
            has_ended[i] = expected[2] or expected[3]


def test_an_ended_episode_is_replaced_at_the_next_step_whose_action_is_ignored() -> None:
    vector = vector_of(CORRIDOR, num_envs=1)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    first, _ = vector.reset(seed=0)
    vector.step(np.array([RIGHT]))
    last, rewards, terminated, _, infos = vector.step(np.array([RIGHT]))
    assert (rewards[0], terminated[0], infos["success"][0]) == (pytest.approx(10.9), True, True)
    assert last[0, 1].tolist() == [0, 1, 1, 5, 3, 0]
    observation, rewards, terminated, truncated, infos = vector.step(np.array([RIGHT]))
    assert np.array_equal(observation, first)
    assert (rewards[0], terminated[0], truncated[0]) == (0.0, False, False)
    assert (infos["steps"][0], infos["action_names"][0], infos["moved"][0]) == (0, [], False)
    assert vector.step(np.array([RIGHT]))[4]["steps"][0] == 1


def test_running_out_of_steps_truncates() -> None:
    vector = vector_of(CORRIDOR)
    vector.reset(seed=0)
    ends = [vector.step(np.array([UP, LEFT]))[2:4] for _ in range(3)]
    assert [end[1].tolist() for end in ends] == [[False, False], [False, False], [True, True]]
    assert not any(end[0].any() for end in ends)


def test_equal_seeds_give_equal_levels_whatever_was_played_before() -> None:
    vector = SokobanVectorEnv(8, SOURCE)
    first = vector.reset(seed=3)[1]["level_id"].tolist()
    vector.step(np.zeros(8, np.int64))
    second = vector.reset()[1]["level_id"].tolist()
    assert vector.reset(seed=3)[1]["level_id"].tolist() == first
    assert SokobanVectorEnv(8, SOURCE).reset(seed=3)[1]["level_id"].tolist() == first
    assert second != first


def test_an_endless_split_fills_the_bank_with_drawn_levels_and_reports_their_seeds() -> None:
    source = Endless(*(level_of(board, f"board{i}") for i, board in enumerate(BOARDS)))
    _, infos = SokobanVectorEnv(16, source, num_levels=6).reset(seed=0)
    assert 1 < len(set(infos["seed"].tolist())) <= 6
    for level_id, seed in zip(infos["level_id"], infos["seed"].tolist(), strict=True):
        assert source.draw(seed).id == level_id


def test_masks_mark_every_key_of_every_board_as_present() -> None:
    _, infos = vector_of(ROOM).reset(seed=0)
    keys = {key for key in infos if not key.startswith("_")}
    assert {f"_{key}" for key in keys} | keys == set(infos)
    assert all(infos[f"_{key}"].tolist() == [True, True] for key in keys)
    single = set(SokobanEnv(SOURCE).reset(seed=0)[1])
    assert single - keys == {"optimal_left", "deadlocked"}
    assert set(vector_of(ROOM, analysis=True).reset(seed=0)[1]["reward_parts"]) >= {"step", "solved"}


def test_observations_once_given_do_not_change() -> None:
    vector = vector_of(ROOM, max_steps=9)
    observation, infos = vector.reset(seed=0)
    kept = canonical((observation, infos))
    vector.step(np.array([LEFT, DOWN]))
    vector.step(np.array([UP, UP]))
    assert canonical((observation, infos)) == kept


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0, 4], "action 4 is outside"),
        ([-1, 0], "action -1"),
        ([0], "must be 2 integers"),
        ([0.0, 1.0], "float64"),
    ],
)
def test_wrong_actions_raise_and_change_nothing(actions: list[Any], message: str) -> None:
    vector = vector_of(ROOM)
    vector.reset(seed=0)
    with pytest.raises(EnvError, match=message):
        vector.step(np.array(actions))
    assert vector.step(np.array([UP, UP]))[4]["steps"].tolist() == [1, 1]


def test_misuse_says_what_to_do() -> None:
    vector = vector_of(ROOM)
    with pytest.raises(ResetNeeded, match="Call reset"):
        vector.step(np.array([0, 0]))
    with pytest.raises(ResetNeeded, match="Call reset"):
        vector.render()
    with pytest.raises(EnvError, match="unknown option 'level_id'"):
        vector.reset(options={"level_id": "x"})
    with pytest.raises(EnvError, match="num_envs must be at least 1, got 0"):
        vector_of(ROOM, num_envs=0)
    with pytest.raises(EnvError, match="no render_mode 'ansi'"):
        vector_of(ROOM, render_mode="ansi")


def test_render_gives_one_picture_per_board() -> None:
    vector = vector_of(ROOM, render_mode="rgb_array", tile_size=4)
    vector.reset(seed=0)
    pictures = vector.render()
    assert pictures is not None
    assert [picture.shape for picture in pictures] == [(24, 24, 3)] * 2
    quiet = vector_of(ROOM)
    quiet.reset(seed=0)
    assert quiet.render() is None


@pytest.mark.parametrize("env_id", ["istar/Sokoban-v0", "istar/VisualSokoban-v0"])
def test_make_vec_uses_the_in_process_class_and_its_spaces_hold(env_id: str) -> None:
    vector = gym.make_vec(env_id, num_envs=3, num_levels=4)
    assert isinstance(vector.unwrapped, SokobanVectorEnv)
    observations, _ = vector.reset(seed=1)
    assert vector.observation_space.contains(observations)
    observations, rewards, terminated, truncated, _ = vector.step(vector.action_space.sample())
    assert vector.observation_space.contains(observations)
    assert (rewards.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
    vector.close()
    vector.close()
