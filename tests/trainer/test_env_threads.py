"""Environments that have to be waited for: nobody else waits for them, and nothing depends on how long."""

import logging
import random
import threading

import pytest
from slow_envs import Waiting, doze, make_player, random_mover

from builders import FLOAT32, ScriptedSampler
from istar_trainer.attempts import Task
from istar_trainer.env_calls import EnvCalls
from istar_trainer.sampler import LocalSampler
from istar_trainer.weights import load_model

TASKS = [Task(f"t{n}", 10 + n) for n in range(4)]


def play(player, sampler, *, group_size: int = 3):
    groups = player.play(TASKS, sampler, group_size=group_size, seed=0, temperature=1.0)
    player.close()
    return groups


@pytest.mark.parametrize("min_ready_frac", [0.01, 0.25, 1.0])
def test_trajectories_do_not_depend_on_how_long_their_environments_take(tiny_tokenizer, min_ready_frac):
    expected = play(make_player(tiny_tokenizer), ScriptedSampler(tiny_tokenizer, random_mover))
    options = {"env_threads": 4, "min_ready_frac": min_ready_frac}
    for number in range(3):
        player = make_player(tiny_tokenizer, doze(random.Random(number)), **options)
        assert play(player, ScriptedSampler(tiny_tokenizer, random_mover)) == expected


def test_waiting_for_all_keeps_every_batch_and_so_every_bit(tiny_folder):
    model, tokenizer = load_model(tiny_folder)
    sampler = LocalSampler(model, eos_token_id=tokenizer.eos_token_id, max_new_tokens=4)
    expected = play(make_player(tokenizer), sampler)
    player = make_player(tokenizer, doze(random.Random(0)), env_threads=4, min_ready_frac=1.0)
    assert play(player, sampler) == expected


def test_batches_of_those_that_are_ready_change_nothing_beyond_rounding(tiny_folder):
    model, tokenizer = load_model(tiny_folder)
    sampler = LocalSampler(model, eos_token_id=tokenizer.eos_token_id, max_new_tokens=4)
    expected = [t for group in play(make_player(tokenizer), sampler) for t in group.trajectories]
    player = make_player(tokenizer, doze(random.Random(0)), env_threads=4, min_ready_frac=0.01)
    found = [t for group in play(player, sampler) for t in group.trajectories]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.episode == theirs.episode
        for step, other in zip(ours.steps, theirs.steps, strict=True):
            assert step.response_ids == other.response_ids
            assert step.sampler_logprobs == pytest.approx(other.sampler_logprobs, abs=FLOAT32)


def test_those_that_are_ready_are_asked_while_a_slow_one_is_waited_for(tiny_tokenizer):
    others_ended = threading.Event()
    sampler = ScriptedSampler(tiny_tokenizer, lambda _request: "<action>nonsense</action>")

    def wait(level: int, position: int) -> None:
        if level == 10 and position == 0:
            assert others_ended.wait(300), "the others were held up"

    def reply(request) -> str:
        if len(sampler.requests) == 4:
            others_ended.set()
        return "<action>nonsense</action>"

    sampler = ScriptedSampler(tiny_tokenizer, reply)
    player = make_player(tiny_tokenizer, wait, env_threads=4, min_ready_frac=0.75)
    groups = play(player, sampler, group_size=1)
    assert not any(t.failed for group in groups for t in group.trajectories)
    assert [len(requests) for requests in sampler.requests] == [3, 3, 3, 3, 1, 1, 1, 1]


def test_no_more_environments_are_waited_for_than_there_are_threads(tiny_tokenizer):
    for num_threads, most in [(0, 1), (3, 3)]:
        Waiting.most_waiting = 0
        player = make_player(
            tiny_tokenizer, doze(random.Random(0)), env_threads=num_threads, min_ready_frac=0.25
        )
        play(player, ScriptedSampler(tiny_tokenizer, random_mover), group_size=4)
        assert Waiting.most_waiting == most


def test_what_breaks_in_a_thread_is_recorded_on_its_own_trajectory(tiny_tokenizer, caplog):
    def wait(level: int, position: int) -> None:
        if (level, position) in {(11, 0), (12, 2)}:
            raise OSError("the world is gone")

    expected = play(make_player(tiny_tokenizer), ScriptedSampler(tiny_tokenizer, random_mover))
    player = make_player(tiny_tokenizer, wait, env_threads=3, min_ready_frac=0.25)
    with caplog.at_level(logging.ERROR):
        groups = play(player, ScriptedSampler(tiny_tokenizer, random_mover))
    assert groups[0] == expected[0]
    assert groups[3] == expected[3]
    broken = [t for group in groups[1:3] for t in group.trajectories]
    assert {t.episode.error for t in broken if t.failed} == {"OSError: the world is gone"}
    assert [len(t.steps) for t in broken[:3]] == [0, 0, 0]
    assert all(
        t.failed == (len(ours.steps) > 1)
        for t, ours in zip(broken[3:], expected[2].trajectories, strict=True)
    )
    assert "trajectory t1/0 broke" in caplog.text


def test_a_prompt_that_grew_too_long_ends_its_trajectory_in_a_thread_too(tiny_tokenizer):
    sampler = ScriptedSampler(tiny_tokenizer, lambda _request: "<action>nonsense</action>")
    unlimited = play(make_player(tiny_tokenizer, window=None), sampler)
    limit = len(unlimited[0].trajectories[0].steps[2].prompt_ids) - 1
    options = {"window": None, "max_prompt_tokens": limit, "env_threads": 3}
    for trajectory in (
        t for g in play(make_player(tiny_tokenizer, **options), sampler) for t in g.trajectories
    ):
        assert trajectory.episode.end == "truncated"
        assert len(trajectory.steps) == 2


def test_an_interrupt_in_a_thread_ends_the_play(tiny_tokenizer):
    def wait(level: int, position: int) -> None:
        raise KeyboardInterrupt

    player = make_player(tiny_tokenizer, wait, env_threads=2)
    with pytest.raises(KeyboardInterrupt):
        play(player, ScriptedSampler(tiny_tokenizer, random_mover))
    player.close()


def test_nobody_has_ended_where_nobody_was_called():
    assert EnvCalls(2, 0.5).ended() == []
