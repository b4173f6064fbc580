"""The true worth of steps, by hand on one board: two moves right of the wall, one dead end."""

from dataclasses import replace
from pathlib import Path

import pytest

import istar_envs
from bandit_chain import BanditChain
from istar_envs.actions import format_reply
from istar_envs.agent import Conversation
from istar_envs.episode import Episode
from istar_envs.errors import ConfigError, EnvError
from istar_trainer.oracle import DEAD_END_GAIN, require_optimum, true_step_gains

BOARD = """######
#-@--#
#-$--#
#----#
#--.-#
######
"""
SOLUTION = ["down", "down", "left", "down", "right"]


@pytest.fixture
def env(tmp_path: Path):
    path = tmp_path / "level.txt"
    path.write_text(BOARD)
    made = istar_envs.make("istar/Sokoban-v0", levels=str(path), split="all", max_steps=8)
    yield made
    made.close()


def play(env, actions: list[str], **options) -> Episode:
    conversation = Conversation(env, template="bare-v1", window=0, **options)
    conversation.reset(seed=0)
    for action in actions:
        conversation.respond(format_reply(tuple(action.split("||"))))
    if not conversation.done:
        conversation.truncate()
    return conversation.episode()


def test_every_step_of_a_shortest_solution_is_worth_one_move(env):
    episode = play(env, SOLUTION)
    assert episode.success
    assert true_step_gains(episode, env) == [1.0] * 5


def test_blocked_and_unreadable_steps_are_worth_nothing_and_detours_cost(env):
    episode = play(env, ["up", "jump", "left", "right", *SOLUTION[:2]])
    assert [t.valid for t in episode.transitions] == [True, False, True, True, True, True]
    assert true_step_gains(episode, env) == [0.0, 0.0, -1.0, 1.0, 1.0, 1.0]


def test_a_push_into_a_dead_end_costs_its_price_once(env):
    episode = play(env, ["right", "down", "left", "up", "right"])
    assert true_step_gains(episode, env) == [-1.0, -1.0, DEAD_END_GAIN, 0.0, 0.0]


def test_several_actions_in_one_reply_are_worth_their_sum(env):
    episode = play(env, ["down||down", "left||down||right"], actions_per_turn=3)
    assert true_step_gains(episode, env) == [2.0, 3.0]


def test_a_record_of_the_shipped_levels_needs_no_environment_of_its_own():
    env = istar_envs.make("istar/Sokoban-v0", split="dev")
    conversation = Conversation(env, template="bare-v1", window=0)
    conversation.reset(options={"task_id": env.unwrapped.task_ids()[3]})
    while not conversation.done:
        name = env.unwrapped.language.name(env.unwrapped.expert_action())
        conversation.respond(format_reply((name,)))
    episode = conversation.episode()
    assert true_step_gains(episode) == [1.0] * len(episode.transitions)


def test_a_training_task_is_found_again_by_its_id():
    env = istar_envs.make("istar/Sokoban-v0", max_moves=4)
    episode = play(env, ["up", "down", "left", "right"])
    again = istar_envs.make("istar/Sokoban-v0", max_moves=4)
    assert len(true_step_gains(episode, again)) == len(episode.transitions)


def test_a_record_that_does_not_replay_is_refused(env):
    episode = play(env, SOLUTION)
    first, second, *rest = episode.transitions
    forged = replace(episode, transitions=(replace(first, action="left"), second, *rest))
    with pytest.raises(EnvError, match=r"step 1 of an episode of task level#0 .* does not replay"):
        true_step_gains(forged, env)


def test_an_environment_without_an_optimum_says_which_have_one():
    with pytest.raises(ConfigError, match=r"BanditChain does not know its optimum .* istar/Sokoban-v0"):
        require_optimum(BanditChain())


def test_a_task_that_is_too_large_to_tabulate_is_named(tmp_path):
    row = "#" + "-" * 14 + "#\n"
    board = "#" * 16 + "\n#@" + "-" * 13 + "#\n#-$-$-$-$------#\n" + row + "#-.-.-.-.------#\n" + row * 9
    path = tmp_path / "large.txt"
    path.write_text(board + "#" * 16 + "\n")
    env = istar_envs.make("istar/Sokoban-v0", levels=str(path), split="all")
    with pytest.raises(EnvError, match="optimum of task large#0 is not known"):
        true_step_gains(play(env, ["right"]), env)
