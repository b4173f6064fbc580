"""Held-out success on fixed task lists, and the baselines it must be read against."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from istar_envs.actions import format_reply
from istar_envs.agent import Conversation
from istar_envs.episode import Episode
from istar_envs.errors import ConfigError
from istar_envs.seeding import derive_seed
from istar_trainer.attempts import Task
from istar_trainer.metrics import mean_interval, wilson_interval
from istar_trainer.rollout import Player
from istar_trainer.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result on a task list.

    Attributes:
        successes: Tasks solved.
        num: Tasks played.
        mean_steps: Steps per episode.
        episodes: The episodes, in the order of the list.
    """

    successes: int
    num: int
    mean_steps: float
    episodes: tuple[Episode, ...]

    @property
    def success_rate(self) -> float:
        """Share of tasks solved."""
        return self.successes / self.num

    @property
    def interval(self) -> tuple[float, float]:
        """95% Wilson interval of the success rate."""
        return wilson_interval(self.successes, self.num)

    @property
    def mean_score(self) -> float:
        """Mean score over all tasks, 0 to 1; an episode that broke counts with what it reached."""
        return sum(e.score for e in self.episodes) / self.num

    @property
    def score_interval(self) -> tuple[float, float]:
        """95% normal interval of the mean score over tasks."""
        return mean_interval([e.score for e in self.episodes])

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> "Evaluation":
        """Count episodes; one that broke counts as not solved."""
        steps = [len(e.transitions) for e in episodes]
        wins = sum(e.success for e in episodes)
        return cls(wins, len(episodes), sum(steps) / len(steps), tuple(episodes))


def listed_tasks(env: gym.Env[Any, Any], count: int) -> list[str]:
    """Return the first ids of an environment's split.

    Args:
        env: Environment made with the split to evaluate on.
        count: How many.

    Raises:
        ConfigError: If the split is endless or shorter.
    """
    ids = env.unwrapped.task_ids()  # type: ignore[attr-defined]
    if ids is None or len(ids) < count:
        have = "an endless split" if ids is None else f"{len(ids)} tasks"
        raise ConfigError(
            f"evaluation wants {count} listed tasks, but {env.spec.id if env.spec else 'this environment'} "
            f"has {have}. Choose split dev or test, or lower eval.dev_tasks / eval.test_tasks."
        )
    return list(ids[:count])


def evaluate(
    player: Player, sampler: Sampler, task_ids: Sequence[str], *, temperature: float, seed: int
) -> Evaluation:
    """Play each listed task once.

    Args:
        player: Plays the split's environment.
        sampler: Policy to evaluate.
        task_ids: Fixed list of tasks.
        temperature: Sampling temperature; 0 is greedy.
        seed: Seed of the draws; the same seed and weights give the same result.
    """
    tasks = [Task(f"eval/{task_id}", 0, task_id) for task_id in task_ids]
    groups = player.play(tasks, sampler, group_size=1, seed=seed, temperature=temperature)
    return Evaluation.of([group.trajectories[0].episode for group in groups])


def random_baseline(env: gym.Env[Any, Any], task_ids: Sequence[str], *, seed: int) -> Evaluation:
    """Play each task with uniformly random actions."""
    conversation = Conversation(env, template="bare-v1", window=0)
    env.action_space.seed(derive_seed(seed, "random baseline") % 2**31)
    language = env.unwrapped.language  # type: ignore[attr-defined]
    return Evaluation.of(
        [
            _finish(conversation, task_id, lambda: language.name(env.action_space.sample()))
            for task_id in task_ids
        ]
    )


def expert_baseline(env: gym.Env[Any, Any], task_ids: Sequence[str]) -> Evaluation:
    """Play each task with the environment's expert: the upper bound."""
    conversation = Conversation(env, template="bare-v1", window=0)
    return Evaluation.of([_finish(conversation, task_id, lambda: expert_action(env)) for task_id in task_ids])


def expert_action(env: gym.Env[Any, Any], demonstrator: str = "expert") -> str:
    """Return the next action of the environment's expert, or of another demonstrator, as text.

    Raises:
        ConfigError: If the environment has no such demonstrator.
    """
    world: Any = env.unwrapped
    act = getattr(world, f"{demonstrator}_action", None)
    if act is None:
        raise ConfigError(
            f'{world.spec.id if world.spec else type(world).__name__} has no demonstrator "{demonstrator}". '
            "Use warm_start.demonstrator: expert."
        )
    return str(world.language.name(act()))


def _finish(conversation: Conversation, task_id: str, act: Any) -> Episode:
    conversation.reset(seed=0, options={"task_id": task_id})
    while not conversation.done:
        conversation.respond(format_reply((act(),)))
    return conversation.episode()
