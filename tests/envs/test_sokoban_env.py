import copy
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sokoban_boards import CORRIDOR, ROOM, TWO_TARGETS, ListSource, env_of, level_of

from istar_envs.errors import EnvError, ResetNeeded
from istar_envs.language import InvalidAction
from istar_envs.sokoban.board import DOWN, LEFT, RIGHT, UP, move, to_text
from istar_envs.sokoban.env import SokobanEnv, VisualSokobanEnv
from istar_envs.sokoban.expert import expert_action, expert_plan
from istar_envs.sokoban.rewards import Rewards
from official_data import OFFICIAL_DATA

actions = st.lists(st.integers(0, 3), max_size=40)


def test_observation_holds_the_documented_cell_codes() -> None:
    env = env_of("#####\n#+$.#\n#*$-#\n#####")
    observation, _ = env.reset()
    assert observation.dtype == np.uint8
    assert observation.tolist() == [[0, 0, 0, 0, 0], [0, 6, 4, 2, 0], [0, 3, 4, 1, 0], [0, 0, 0, 0, 0]]
    assert env.observation_space.contains(observation)


def test_one_box_in_n_moves_returns_eleven_minus_a_tenth_per_move() -> None:
    env = env_of("######\n#@$-.#\n######")
    results = [env.step(RIGHT), env.step(RIGHT)]
    assert [r[1] for r in results] == pytest.approx([-0.1, 10.9])
    assert sum(r[1] for r in results) == pytest.approx(11 - 0.1 * 2)
    assert [r[2:4] for r in results] == [(False, False), (True, False)]
    assert results[1][4]["reward_parts"] == {
        "step": -0.1,
        "box_on": 1.0,
        "box_off": 0.0,
        "solved": 10.0,
        "invalid": 0.0,
    }


def test_pushing_a_box_off_a_target_costs_what_pushing_it_on_paid() -> None:
    env = env_of("########\n#@*-.$-#\n########")
    _, reward, *_, info = env.step(RIGHT)
    assert reward == pytest.approx(-1.1)
    assert info["num_boxes_on_target"] == 0
    assert info["reward_parts"]["box_off"] == -1.0


def test_a_push_from_target_to_target_pays_the_step_alone() -> None:
    env = env_of("########\n#@*.-$-#\n########")
    assert env.step(RIGHT)[1] == pytest.approx(-0.1)


def test_a_blocked_move_costs_a_step_and_changes_nothing() -> None:
    env = env_of(CORRIDOR)
    before = env.reset()[1]
    observation, reward, terminated, truncated, info = env.step(UP)
    assert (reward, terminated, truncated) == (-0.1, False, False)
    assert (info["moved"], info["pushed"], info["effective"]) == (False, False, False)
    assert (info["steps"], info["steps_left"]) == (1, 19)
    assert info["state_key"] == before["state_key"]
    assert info["action_names"] == ["up"]
    assert np.array_equal(observation, env.reset()[0])


def test_two_boxes_in_line_block_the_push() -> None:
    env = env_of("#######\n#@$$..#\n#######")
    assert not env.step(RIGHT)[4]["moved"]


def test_a_rewards_table_replaces_the_default_numbers() -> None:
    env = env_of(CORRIDOR, rewards=Rewards(step=-1.0, solved=5.0, invalid=-2.0))
    assert env.step(RIGHT)[1] == -1.0
    assert env.invalid_step("?")[1] == -3.0
    assert env.step(RIGHT)[1] == -1.0 + 1.0 + 5.0


def test_the_step_limit_truncates_and_solving_on_the_last_step_terminates() -> None:
    env = env_of(CORRIDOR, max_steps=2)
    env.step(UP)
    assert env.step(UP)[2:4] == (False, True)
    env.reset()
    env.step(RIGHT)
    assert env.step(RIGHT)[2:4] == (True, False)


def test_max_steps_of_the_environment_overrides_that_of_the_levels() -> None:
    env = SokobanEnv(ListSource(level_of(CORRIDOR), max_steps=9), max_steps=1)
    env.reset(seed=0)
    assert env.step(UP)[3]
    assert SokobanEnv(ListSource(level_of(CORRIDOR), max_steps=9)).max_steps == 9


def test_info_at_reset_is_complete() -> None:
    _, info = env_of(ROOM).reset(options={"level_id": "hand/made#0"})
    assert info == {
        "task": "Push every box onto a target.",
        "success": False,
        "score": 0.0,
        "valid": True,
        "invalid_reason": None,
        "admissible_actions": ["up", "down", "left", "right"],
        "state_key": "6:#######-.--##-$--##--@-##----#######",
        "task_id": "hand/made#0",
        "moved": False,
        "pushed": False,
        "effective": False,
        "num_boxes_on_target": 0,
        "num_boxes": 1,
        "solved": False,
        "deadlocked": False,
        "steps": 0,
        "steps_left": 20,
        "optimal_left": 2,
        "level_id": "hand/made#0",
        "seed": -1,
        "reward_parts": {"step": 0.0, "box_on": 0.0, "box_off": 0.0, "solved": 0.0, "invalid": 0.0},
        "action_names": [],
    }


def test_score_is_the_share_of_filled_targets() -> None:
    env = env_of(TWO_TARGETS)
    info = env.step(RIGHT)[4]
    assert (info["score"], info["success"], info["num_boxes"]) == (0.5, False, 2)


def test_an_invalid_step_says_why_and_changes_nothing() -> None:
    env = env_of(CORRIDOR, max_steps=2)
    before = env.reset()[1]
    _, reward, terminated, truncated, info = env.invalid_step("no action tag")
    assert (reward, terminated, truncated) == (-0.1, False, False)
    assert (info["valid"], info["invalid_reason"], info["action_names"]) == (False, "no action tag", [])
    assert info["state_key"] == before["state_key"]
    assert env.invalid_step("again")[3]


@pytest.mark.parametrize("action", [4, -1, 1.0, "up", None, np.array([1, 2])])
def test_a_native_action_outside_the_space_raises(action: Any) -> None:
    env = env_of(CORRIDOR)
    with pytest.raises(EnvError, match=r"outside Discrete\(4\).*0 up, 1 down, 2 left, 3 right"):
        env.step(action)
    assert env.step(UP)[4]["steps"] == 1


def test_numpy_integers_are_actions() -> None:
    assert env_of(CORRIDOR).step(np.int64(RIGHT))[4]["pushed"]  # type: ignore[arg-type]


def test_using_an_environment_before_reset_says_what_to_do() -> None:
    env = SokobanEnv(ListSource(level_of(CORRIDOR)), render_mode="ansi")
    for use in (
        lambda: env.step(0),
        lambda: env.invalid_step("?"),
        env.render,
        env.clone_state,
        lambda: env.level,
    ):
        with pytest.raises(ResetNeeded, match="Call reset"):
            use()


def test_stepping_a_finished_episode_raises_and_pays_nothing() -> None:
    env = env_of(CORRIDOR)
    env.step(RIGHT)
    env.step(RIGHT)
    snapshot = env.clone_state()
    for use in (lambda: env.step(LEFT), lambda: env.invalid_step("?")):
        with pytest.raises(ResetNeeded, match=r"after the end of the episode.*hand/made#0"):
            use()
    assert env.clone_state() == snapshot


def test_a_level_is_chosen_by_id_by_task_id_or_as_an_object() -> None:
    first, second = level_of(CORRIDOR, "a"), level_of("######\n#@-$.#\n######", "b")
    env = SokobanEnv(ListSource(first, second))
    assert env.reset(options={"level_id": "b"})[1]["level_id"] == "b"
    assert env.reset(options={"task_id": "a"})[1]["task_id"] == "a"
    assert env.reset(options={"level": level_of("#####\n#@$.#\n#####", "c")})[1]["level_id"] == "c"


def test_an_unknown_reset_option_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(EnvError, match=r"unknown option 'level_ids'.*Did you mean \"level_id\""):
        env_of(CORRIDOR).reset(options={"level_ids": "a"})


def test_a_level_larger_than_the_board_is_refused_and_a_smaller_one_padded_with_walls() -> None:
    env = SokobanEnv(ListSource(level_of(CORRIDOR)))
    with pytest.raises(EnvError, match="is 6×6 cells, but this environment's board is 3×6"):
        env.reset(options={"level": level_of(ROOM)})
    env = SokobanEnv(ListSource(level_of(CORRIDOR), size=(5, 8)))
    observation, _ = env.reset()
    assert observation.tolist()[1] == [0, 5, 4, 1, 2, 0, 0, 0]
    assert observation.shape == (5, 8)
    assert not observation[3:].any()
    observation, *_ = env.step(RIGHT)
    assert observation.tolist()[1] == [0, 1, 5, 4, 2, 0, 0, 0]


def test_bounds_on_a_given_source_are_refused() -> None:
    with pytest.raises(EnvError, match="min_moves and max_moves"):
        SokobanEnv(ListSource(level_of(CORRIDOR)), min_moves=3)


def test_options_out_of_range_are_refused_with_advice() -> None:
    source = ListSource(level_of(CORRIDOR))
    with pytest.raises(EnvError, match='Did you mean "ansi"'):
        SokobanEnv(source, render_mode="anis")
    with pytest.raises(EnvError, match="max_steps must be at least 1, got 0"):
        SokobanEnv(source, max_steps=0)
    with pytest.raises(EnvError, match="tile_size must be at least 4 pixels, got 3"):
        SokobanEnv(source, tile_size=3)
    with pytest.raises(EnvError, match="at least 9 pixels with coordinates, got 8"):
        SokobanEnv(source, tile_size=8, coordinates=True)


def test_a_restored_episode_goes_on_exactly_as_before() -> None:
    env = env_of(ROOM)
    env.step(LEFT)
    snapshot = pickle.loads(pickle.dumps(env.clone_state()))
    first = [env.step(UP), env.reset()]
    other = SokobanEnv(ListSource(level_of(ROOM), max_steps=20))
    observation, info = other.restore_state(snapshot)
    assert (info["steps"], info["optimal_left"], info["moved"]) == (1, 1, False)
    assert observation[3, 2] == 5
    second = [other.step(UP), other.reset()]
    assert str(first) == str(second)


def test_restoring_the_same_snapshot_twice_branches_the_episode() -> None:
    env = env_of(ROOM)
    snapshot = env.clone_state()
    for action in (UP, LEFT, DOWN):
        env.restore_state(snapshot)
        assert env.step(action)[4]["steps"] == 1


def test_a_finished_episode_stays_finished_when_restored() -> None:
    env = env_of(CORRIDOR, max_steps=1)
    env.step(UP)
    snapshot = env.clone_state()
    env.reset()
    env.restore_state(snapshot)
    with pytest.raises(ResetNeeded):
        env.step(UP)


@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_are_independent_and_equal(twin_of: Any) -> None:
    env = env_of(ROOM)
    env.step(LEFT)
    twin = twin_of(env)
    assert str(twin.step(UP)) == str(env.step(UP))
    assert twin.reset()[1]["seed"] == env.reset()[1]["seed"]
    twin.step(UP)
    assert env.step(DOWN)[4]["steps"] == 1


def test_optimal_left_counts_down_along_an_optimal_solution_and_deadlocks_are_exact() -> None:
    env = env_of(ROOM)
    assert env.reset()[1]["optimal_left"] == 2
    assert env.step(RIGHT)[4]["optimal_left"] == 3
    env.step(UP)
    env.step(LEFT)
    info = env.step(LEFT)[4]  # the box is now against the left wall, in no target's column
    assert (info["deadlocked"], info["optimal_left"]) == (True, -1)


def test_the_stored_optimum_of_a_drawn_level_answers_for_its_start_only() -> None:
    env = SokobanEnv("istar-6x6-2")
    _, info = env.reset(seed=0)
    assert info["optimal_left"] == env.level.num_moves
    assert env.step(expert_action(env))[4]["optimal_left"] == env.level.num_moves - 1


LARGE = """
##########
#--------#
#-.--.---#
#-$--$---#
#--------#
#----@---#
#-$--$---#
#-.--.---#
#--------#
##########
"""

NEARLY_FROZEN = """
##########
#--------#
#--------#
#--$$----#
#@$-$----#
#--------#
#--------#
#-..--..-#
#--------#
##########
"""


def test_on_a_board_too_large_to_tabulate_a_box_on_a_dead_square_is_a_deadlock() -> None:
    env = env_of(LARGE, max_steps=99)
    _, info = env.reset()
    assert (info["optimal_left"], info["deadlocked"]) == (-1, False)
    assert not env.step(DOWN)[4]["deadlocked"]
    assert env.step(DOWN)[4]["deadlocked"]  # along the lower wall there is no target


def test_on_a_board_too_large_to_tabulate_a_block_of_four_boxes_is_a_deadlock() -> None:
    env = env_of(NEARLY_FROZEN, max_steps=99)
    assert not env.reset()[1]["deadlocked"]
    assert env.step(RIGHT)[4]["deadlocked"]


def test_ansi_render_is_the_board_in_xsb_characters() -> None:
    env = env_of(CORRIDOR, render_mode="ansi")
    assert env.render() == "######\n#@$-.#\n######"
    env.step(RIGHT)
    assert env.render() == "######\n#-@$.#\n######"


def test_rgb_render_equals_the_visual_observation_and_none_renders_nothing() -> None:
    symbolic = env_of(CORRIDOR, render_mode="rgb_array", tile_size=8)
    visual = env_of(CORRIDOR, env_class=VisualSokobanEnv, tile_size=8)
    picture, _ = visual.reset()
    assert picture.shape == (24, 48, 3)
    assert visual.observation_space.contains(picture)
    assert np.array_equal(symbolic.render(), picture)
    assert visual.render() is None


def test_human_mode_without_a_display_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.raises(
        EnvError, match=r'cannot open a window.*render_mode="human".*Use render_mode="rgb_array"'
    ):
        env_of(CORRIDOR, render_mode="human")


def test_human_mode_shows_every_state_in_one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[bytes] = []
    root = types.SimpleNamespace(
        title=lambda _: None, update=lambda: None, destroy=lambda: shown.append(b"closed")
    )
    fake = types.ModuleType("tkinter")
    fake.__dict__.update(
        Tk=lambda: root,
        TclError=RuntimeError,
        Label=lambda *_, **__: types.SimpleNamespace(pack=lambda: None, configure=lambda **_: None),
        PhotoImage=lambda **options: shown.append(options["data"]),
    )
    monkeypatch.setitem(sys.modules, "tkinter", fake)
    env = env_of(CORRIDOR, render_mode="human", tile_size=4)
    env.step(RIGHT)
    assert [data[:12] for data in shown] == [b"P6 24 12 255"] * 2
    assert shown[0] != shown[1]
    pickle.dumps(env)
    env.close()
    env.close()
    assert shown[2:] == [b"closed"]


def test_the_expert_solves_a_level_in_the_optimal_number_of_moves() -> None:
    env = env_of(ROOM)
    _, info = env.reset()
    moves = 0
    while not info["solved"]:
        *_, info = env.step(expert_action(env))
        moves += 1
    assert moves == 2
    with pytest.raises(EnvError, match="is solved already"):
        expert_action(env)


def test_the_expert_of_a_large_board_replays_to_success() -> None:
    env = env_of(LARGE, max_steps=200)
    plan = expert_plan(env.level.layout, env.board_state)
    assert plan is not None
    for action in plan:
        *_, info = env.step(action)
    assert info["success"]


def test_the_expert_of_a_lost_level_says_so() -> None:
    env = env_of("######\n#@$--#\n#---.#\n######")
    with pytest.raises(EnvError, match="cannot be solved any more"):
        expert_action(env)


def test_language_names_and_reads_all_actions_and_their_synonyms() -> None:
    language = env_of(CORRIDOR).language
    for code, words in enumerate((("up", "U", "North"), ("DOWN", "d"), (" left\n", "west"), ("right", "r"))):
        assert language.action(language.name(code), {}) == code
        assert all(language.action(word, {}) == code for word in words)
    with pytest.raises(ValueError, match=r"0\.\.3, got 4"):
        language.name(4)


@pytest.mark.parametrize(
    "text", ["", "  ", "upright", "setup", "up down", "still", "0", "left then up", "do not go down"]
)
def test_anything_but_one_whole_action_word_is_invalid_with_a_reason(text: str) -> None:
    answer = env_of(CORRIDOR).language.action(text, {})
    assert isinstance(answer, InvalidAction)
    assert "write one of up, down, left, right" in answer.reason


def test_text_is_the_board_and_pictures_have_no_text() -> None:
    env = env_of(TWO_TARGETS)
    observation, info = env.reset()
    assert env.language.text(observation, info) == to_text(env.level.layout, env.board_state)
    assert env.language.image(observation, info) is None
    visual = env_of(TWO_TARGETS, env_class=VisualSokobanEnv)
    picture, info = visual.reset()
    assert visual.language.text(picture, info) == ""
    assert visual.language.image(picture, info) is picture
    assert "ring" in visual.language.role
    assert "numbers" not in visual.language.role
    assert "numbers" in env_of(ROOM, env_class=VisualSokobanEnv, coordinates=True).language.role
    assert "$ box" in env.language.role


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(plays=st.tuples(actions, actions), board=st.sampled_from([ROOM, TWO_TARGETS, CORRIDOR]))
def test_facts_of_info_agree_with_the_rules_in_any_play(plays: tuple[list[int], ...], board: str) -> None:
    keys: dict[str, Any] = {}
    for play in plays:
        env = env_of(board, max_steps=50)
        _, info = env.reset()
        for action in play:
            layout, before, old = env.level.layout, env.board_state, info
            observation, reward, terminated, _, info = env.step(action)
            state = env.board_state
            assert state == move(layout, before, action)
            assert state.boxes.bit_count() == before.boxes.bit_count()
            assert info["effective"] == (env.language.name(action) in old["admissible_actions"])
            assert reward == pytest.approx(sum(info["reward_parts"].values()), abs=1e-12)
            assert env.language.text(observation, info) == to_text(layout, state)
            assert keys.setdefault(info["state_key"], state) == state
            if old["optimal_left"] >= 0 and info["optimal_left"] >= 0:
                farther = info["optimal_left"] - old["optimal_left"]  # only a push cannot be taken back
                assert farther >= -1
                assert farther <= 1 or info["pushed"]
            if terminated:
                break
    assert len(set(keys.values())) == len(keys)


def boxoban_file() -> Path:
    path = OFFICIAL_DATA / "boxoban" / "unfiltered_valid_000.txt"
    if not path.exists():
        pytest.skip(f"Boxoban levels are not at {path}; set ISTAR_SHARED_DATA to their folder")
    return path


def test_the_expert_replays_boxoban_levels_through_the_environment() -> None:
    env = SokobanEnv(boxoban_file(), split="all")
    ids = env.task_ids()
    assert ids is not None
    assert len(ids) == 1000
    for level_id in ids[:10]:
        _, info = env.reset(options={"level_id": level_id})
        plan = expert_plan(env.level.layout, env.board_state)
        assert plan is not None
        for action in plan:
            *_, info = env.step(action)
        assert info["success"], level_id


def test_the_documentation_lists_every_key_of_info_and_every_reward() -> None:
    page = (Path(__file__).parents[2] / "docs" / "envs" / "sokoban.md").read_text("utf-8")
    _, info = env_of(ROOM).reset()
    assert not [key for key in (*info, *info["reward_parts"]) if f"`{key}`" not in page]


def test_equal_seeds_draw_equal_levels_and_later_resets_go_on_from_there() -> None:
    env = SokobanEnv(ListSource(level_of(CORRIDOR)))
    first = [env.reset(seed=5)[1]["seed"], env.reset()[1]["seed"]]
    again = [env.reset(seed=5)[1]["seed"], env.reset()[1]["seed"]]
    assert first == again
    assert first[0] != first[1]
    assert isinstance(env, gym.Env)
