"""Success on fixed lists, counted honestly."""

import pytest

import istar_envs
from builders import ScriptedSampler, make_episode
from istar_envs.errors import ConfigError
from istar_trainer.evaluate import (
    Evaluation,
    evaluate,
    expert_action,
    expert_baseline,
    listed_tasks,
    random_baseline,
)
from istar_trainer.metrics import wilson_interval
from istar_trainer.rollout import Player


@pytest.fixture
def dev():
    env = istar_envs.make("istar/Sokoban-v0", split="dev")
    yield env
    env.close()


def make_player(tokenizer) -> Player:
    return Player(
        lambda: istar_envs.make("istar/Sokoban-v0", split="dev"),
        tokenizer,
        template="bare-v1",
        window=0,
        max_prompt_tokens=1024,
    )


def test_the_first_tasks_of_a_list_are_always_the_same(dev):
    assert listed_tasks(dev, 3) == list(dev.unwrapped.task_ids()[:3])
    assert listed_tasks(dev, 3) == listed_tasks(dev, 5)[:3]


def test_an_endless_split_is_refused():
    with pytest.raises(ConfigError, match=r"wants 5 listed tasks, but istar/Sokoban-v0 has an endless split"):
        listed_tasks(istar_envs.make("istar/Sokoban-v0"), 5)


def test_a_list_that_is_too_short_is_refused(dev):
    have = len(dev.unwrapped.task_ids())
    with pytest.raises(ConfigError, match=rf"wants 99999 .*has {have} tasks.*eval\.dev_tasks"):
        listed_tasks(dev, 99_999)


def test_each_task_is_played_once_and_counted(tiny_tokenizer, dev):
    tasks = listed_tasks(dev, 12)
    sampler = ScriptedSampler(tiny_tokenizer, lambda _request: "<action>up</action>")
    result = evaluate(make_player(tiny_tokenizer), sampler, tasks, temperature=0.0, seed=1)
    assert [episode.task_id for episode in result.episodes] == tasks
    assert result.num == 12
    assert result.successes == sum(e.success for e in result.episodes)
    assert result.mean_steps == pytest.approx(sum(len(e.transitions) for e in result.episodes) / 12)


def test_the_expert_solves_everything_in_the_fewest_steps(dev):
    tasks = listed_tasks(dev, 20)
    result = expert_baseline(dev, tasks)
    assert result.success_rate == 1.0
    lengths = []
    for task in tasks:
        _, info = dev.reset(options={"task_id": task})
        lengths.append(info["optimal_left"])
    assert [len(e.transitions) for e in result.episodes] == lengths


def test_random_play_is_repeatable_and_worse_than_the_expert(dev):
    tasks = listed_tasks(dev, 40)
    one, again, other = (random_baseline(dev, tasks, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one.episodes != other.episodes
    assert one.success_rate < 1.0
    assert all(t.valid for e in one.episodes for t in e.transitions)


def test_the_expert_speaks_in_words(dev):
    dev.reset(seed=0)
    assert expert_action(dev) in ("up", "down", "left", "right")


def test_rate_and_interval_follow_from_the_counts():
    episodes = [make_episode(success=k < 3, num_steps=k + 1) for k in range(8)]
    result = Evaluation.of(episodes)
    assert result.success_rate == 0.375
    assert result.interval == wilson_interval(3, 8)
    assert result.mean_steps == 4.5
    assert result.mean_score == 0.375
    half = 1.959964 * (0.375 * 0.625 * 8 / 7 / 8) ** 0.5
    assert result.score_interval == pytest.approx((0.375 - half, 0.375 + half))


def test_an_episode_that_broke_counts_as_not_solved():
    episodes = [make_episode(), make_episode(success=False, end="failed", error="broke")]
    assert Evaluation.of(episodes).success_rate == 0.5
