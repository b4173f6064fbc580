"""The agent–environment loop: shared starts, repeatable draws, and what happens when something breaks."""

import logging
from functools import partial

import gymnasium as gym
import pytest

import istar_envs
from builders import FLOAT32, ScriptedSampler, make_trajectory
from istar_trainer.attempts import Task
from istar_trainer.batch import collate
from istar_trainer.config import LearnerConfig
from istar_trainer.config_algorithms import LossConfig
from istar_trainer.errors import PromptTooLong, RolloutError
from istar_trainer.learner import Optimization, TorchLearner
from istar_trainer.records import Group
from istar_trainer.rollout import Player, require_enough
from istar_trainer.sampler import LocalSampler, Request
from istar_trainer.update import PolicyBatch, update_policy
from istar_trainer.weights import load_model

TASKS = [Task("t0", 10), Task("t1", 11), Task("t2", 12)]


def make_env(**options) -> gym.Env:
    return istar_envs.make("istar/Sokoban-v0", max_moves=3, max_steps=4, **options)


def make_player(tokenizer, make=make_env, **options) -> Player:
    settings = {"template": "bare-v1", "window": 0, "max_prompt_tokens": 1024, **options}
    return Player(make, tokenizer, **settings)


def random_mover(request: Request) -> str:
    return f"<action>{('up', 'down', 'left', 'right')[request.seed % 4]}</action>"


def play(player: Player, sampler, tasks=TASKS, *, group_size: int = 3, seed: int = 0) -> tuple[Group, ...]:
    return player.play(tasks, sampler, group_size=group_size, seed=seed, temperature=1.0)


class Breaking(gym.Wrapper):
    """Breaks at a step if the level fulfils a condition."""

    def __init__(self, env: gym.Env, *, at_step: int, breaks: bool) -> None:
        super().__init__(env)
        self.at_step, self.breaks, self.steps = at_step, breaks, 0

    def reset(self, **options):
        self.steps = 0
        if self.breaks and self.at_step == 0:
            raise OSError("the level server is gone")
        return self.env.reset(**options)

    def step(self, action):
        self.steps += 1
        if self.breaks and self.steps == self.at_step:
            raise ZeroDivisionError("a bug in the world")
        return self.env.step(action)


def breaking_envs(broken: set[int], at_step: int):
    """Make environments of which the given numbers, in the order of making, break."""
    numbers = iter(range(1000))
    return lambda: Breaking(make_env(), at_step=at_step, breaks=next(numbers) in broken)


def test_groups_come_in_the_order_of_tasks_with_every_trajectory_in_its_place(tiny_tokenizer):
    groups = play(make_player(tiny_tokenizer), ScriptedSampler(tiny_tokenizer, random_mover))
    assert [group.id for group in groups] == ["t0", "t1", "t2"]
    assert [group.task_seed for group in groups] == [10, 11, 12]
    assert [t.id for t in groups[1].trajectories] == ["t1/0", "t1/1", "t1/2"]
    assert all(t.group_id == "t1" for t in groups[1].trajectories)


def test_a_group_shares_its_start_and_groups_do_not(tiny_tokenizer):
    groups = play(make_player(tiny_tokenizer), ScriptedSampler(tiny_tokenizer, random_mover))
    starts = [{t.episode.transitions[0].observation for t in group.trajectories} for group in groups]
    assert all(len(observations) == 1 for observations in starts)
    assert len(set.union(*starts)) == 3
    assert all(len({t.episode.task_id for t in group.trajectories}) == 1 for group in groups)
    assert all(len({tuple(t.steps[0].prompt_ids) for t in group.trajectories}) == 1 for group in groups)


def test_every_step_has_its_transition(tiny_tokenizer):
    groups = play(make_player(tiny_tokenizer), ScriptedSampler(tiny_tokenizer, random_mover))
    for trajectory in (t for group in groups for t in group.trajectories):
        assert len(trajectory.steps) == len(trajectory.episode.transitions) > 0
        for step, transition in zip(trajectory.steps, trajectory.episode.transitions, strict=True):
            assert transition.observation in tiny_tokenizer.decode(step.prompt_ids)
            assert tiny_tokenizer.decode(step.response_ids, skip_special_tokens=True) == transition.reply


def test_equal_seeds_give_equal_trajectories_and_other_seeds_other_ones(tiny_folder):
    model, tokenizer = load_model(tiny_folder)
    sampler = LocalSampler(model, eos_token_id=tokenizer.eos_token_id, max_new_tokens=4)
    player = make_player(tokenizer)
    first, again, other = (play(player, sampler, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert play(make_player(tokenizer), sampler, seed=1) == first


def test_a_trajectory_does_not_depend_on_which_others_are_played(tiny_folder):
    model, tokenizer = load_model(tiny_folder)
    sampler = LocalSampler(model, eos_token_id=tokenizer.eos_token_id, max_new_tokens=4)
    together = play(make_player(tokenizer), sampler)
    alone = play(make_player(tokenizer), sampler, TASKS[2:], group_size=1)
    ours, theirs = alone[0].trajectories[0], together[2].trajectories[0]
    assert ours.episode == theirs.episode
    assert [s.response_ids for s in ours.steps] == [s.response_ids for s in theirs.steps]
    for step, other in zip(ours.steps, theirs.steps, strict=True):
        assert step.sampler_logprobs == pytest.approx(other.sampler_logprobs, abs=FLOAT32)


def test_only_live_trajectories_are_asked(tiny_tokenizer):
    sampler = ScriptedSampler(tiny_tokenizer, random_mover)
    groups = play(make_player(tiny_tokenizer), sampler, group_size=4)
    lengths = [len(t.steps) for group in groups for t in group.trajectories]
    live = [sum(length > position for length in lengths) for position in range(max(lengths))]
    assert [len(requests) for requests in sampler.requests] == live
    assert live[-1] < live[0]


def test_every_draw_has_a_seed_of_its_own(tiny_tokenizer):
    sampler = ScriptedSampler(tiny_tokenizer, random_mover)
    play(make_player(tiny_tokenizer), sampler)
    seeds = [request.seed for requests in sampler.requests for request in requests]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("at_step", [0, 1, 2])
def test_an_environment_that_breaks_fails_its_own_trajectory_only(tiny_tokenizer, caplog, at_step):
    def stay(_request: Request) -> str:
        return "<action>nonsense</action>" if at_step == 0 else "<action>up</action>"

    player = make_player(tiny_tokenizer, breaking_envs({1}, at_step))
    with caplog.at_level(logging.ERROR):
        groups = play(player, ScriptedSampler(tiny_tokenizer, stay))
    trajectories = groups[0].trajectories
    broken = trajectories[1]
    assert broken.failed
    assert broken.episode.end == "failed"
    assert ("OSError" if at_step == 0 else "ZeroDivisionError: a bug in the world") in broken.episode.error
    assert "trajectory t0/1 broke" in caplog.text
    assert [t.failed for group in groups for t in group.trajectories].count(True) == 1
    healthy = play(make_player(tiny_tokenizer), ScriptedSampler(tiny_tokenizer, stay))
    assert trajectories[0] == healthy[0].trajectories[0]
    assert trajectories[2] == healthy[0].trajectories[2]
    assert groups[1:] == healthy[1:]


def test_a_broken_trajectory_weighs_nothing_in_the_update(tiny_folder):
    model, tokenizer = load_model(tiny_folder)
    learner = TorchLearner(model, Optimization(1e-3, 0.0, 1.0), temperature=1.0, micro_batch_tokens=10_000)
    sampler = ScriptedSampler(tokenizer, lambda _request: "<action>up</action>")
    groups = play(make_player(tokenizer, breaking_envs({1}, 2)), sampler)
    trajectories = [t for group in groups for t in group.trajectories]
    batch = collate(trajectories, [group.id for group in groups])
    assert 1 not in batch.trajectory_index
    assert trajectories[1].steps, "it had begun"
    data = PolicyBatch(batch, learner.logprobs(batch), batch.response_mask.float(), batch.weights)
    metrics = update_policy(learner, data, LossConfig(), LearnerConfig(), seed=0)
    assert metrics["policy/loss"] == pytest.approx(-1.0, abs=1e-6)


def test_an_environment_is_fit_for_use_after_it_broke(tiny_tokenizer):
    player = make_player(tiny_tokenizer, breaking_envs({0}, 2))
    sampler = ScriptedSampler(tiny_tokenizer, lambda _request: "<action>up</action>")
    first, second = play(player, sampler), play(player, sampler)
    assert first == second


def test_too_many_broken_trajectories_stop_the_run_and_the_first_is_named():
    trajectories = [make_trajectory(f"g/{n}", "g", [], failed=n < 2) for n in range(8)]
    group = Group("g", 0, tuple(trajectories))
    assert require_enough([group], 0.25) == 0.25
    with pytest.raises(RolloutError, match=r"2 of 8 .*max_failed_frac=0\.2.*g/0: broke"):
        require_enough([group], 0.2)


def test_a_run_stops_when_nothing_is_left_whatever_is_allowed():
    group = Group("g", 0, (make_trajectory("g/0", "g", [], failed=True),))
    with pytest.raises(RolloutError, match="1 of 1 trajectories broke"):
        require_enough([group], 1.0)


def test_a_healthy_rollout_has_no_broken_share():
    assert require_enough([Group("g", 0, (make_trajectory("g/0", "g", []),))], 0.0) == 0.0


def test_a_prompt_that_grew_too_long_ends_the_trajectory_as_truncated(tiny_tokenizer):
    sampler = ScriptedSampler(tiny_tokenizer, lambda _request: "<action>nonsense</action>")
    unlimited = play(make_player(tiny_tokenizer, window=None), sampler)
    sizes = [len(step.prompt_ids) for step in unlimited[0].trajectories[0].steps]
    assert sizes == sorted(sizes)
    assert len(sizes) == 4
    limited = play(make_player(tiny_tokenizer, window=None, max_prompt_tokens=sizes[2] - 1), sampler)
    for trajectory in (t for group in limited for t in group.trajectories):
        assert trajectory.episode.end == "truncated"
        assert not trajectory.failed
        assert len(trajectory.steps) == len(trajectory.episode.transitions) == 2


def test_a_first_prompt_that_is_too_long_stops_with_the_option_to_change(tiny_tokenizer):
    player = make_player(tiny_tokenizer, max_prompt_tokens=10)
    with pytest.raises(PromptTooLong, match=r"first prompt of task t0 .*rollout\.max_prompt_tokens=10"):
        play(player, ScriptedSampler(tiny_tokenizer, random_mover))


def test_a_listed_task_is_played_by_its_id(tiny_tokenizer):
    env = istar_envs.make("istar/Sokoban-v0", split="dev")
    ids = list(env.unwrapped.task_ids()[:3])
    player = make_player(tiny_tokenizer, partial(istar_envs.make, "istar/Sokoban-v0", split="dev"))
    groups = play(
        player,
        ScriptedSampler(tiny_tokenizer, random_mover),
        [Task(f"eval/{key}", 0, key) for key in ids],
        group_size=1,
    )
    assert [group.trajectories[0].episode.task_id for group in groups] == ids


def test_an_unknown_task_fails_its_trajectory_with_a_reason(tiny_tokenizer):
    sampler = ScriptedSampler(tiny_tokenizer, random_mover)
    (group,) = play(make_player(tiny_tokenizer), sampler, [Task("t", 0, "no such level")], group_size=1)
    assert group.trajectories[0].failed
    assert "unknown level" in group.trajectories[0].episode.error


def test_environments_are_made_once_and_closed(tiny_tokenizer):
    made, closed = [], []

    class Counted(gym.Wrapper):
        def close(self):
            closed.append(self)
            super().close()

    def make():
        made.append(Counted(make_env()))
        return made[-1]

    player = make_player(tiny_tokenizer, make)
    sampler = ScriptedSampler(tiny_tokenizer, random_mover)
    play(player, sampler, TASKS[:1], group_size=2)
    play(player, sampler, TASKS, group_size=2)
    assert len(made) == 6
    player.close()
    player.close()
    assert len(closed) == 6


def test_the_snapshot_that_sampled_is_noted(tiny_tokenizer):
    sampler = ScriptedSampler(tiny_tokenizer, random_mover)
    sampler.load({}, 17)
    groups = play(make_player(tiny_tokenizer), sampler)
    assert {t.snapshot_id for group in groups for t in group.trajectories} == {17}


def test_an_interrupt_is_not_taken_for_a_broken_trajectory(tiny_tokenizer):
    class Interrupted(gym.Wrapper):
        def step(self, action):
            raise KeyboardInterrupt

    player = make_player(tiny_tokenizer, lambda: Interrupted(make_env()))
    with pytest.raises(KeyboardInterrupt):
        play(player, ScriptedSampler(tiny_tokenizer, random_mover))
