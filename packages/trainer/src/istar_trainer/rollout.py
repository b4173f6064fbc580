"""The agent–environment loop: tasks × N trajectories, played together until the last one ends.

Every step, the live trajectories' prompts go to the sampler as one batch. What breaks is recorded
on its trajectory, which keeps its place and weighs nothing; ending a run because too many broke is
the caller's decision.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from istar_envs.agent import Conversation
from istar_envs.episode import RecentImages
from istar_envs.errors import IstarError
from istar_envs.seeding import derive_seed
from istar_trainer.context import Context, FullContext, Prompt, WindowContext
from istar_trainer.errors import PromptTooLong, RolloutError
from istar_trainer.records import Group, Step, Trajectory
from istar_trainer.sampler import Completion, Request, Sampler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """What a group shares.

    Attributes:
        id: Group id, unique in the run.
        seed: Seed of ``env.reset``.
        task_id: A listed task to play instead of a drawn one.
    """

    id: str
    seed: int
    task_id: str | None = None


@dataclass(slots=True)
class _Attempt:
    """One trajectory while it is being played."""

    id: str
    task: Task
    seed: int
    conversation: Conversation
    context: Context
    steps: list[Step] = field(default_factory=list)
    prompt: Prompt = field(default_factory=lambda: Prompt([]))
    error: str | None = None

    @property
    def is_live(self) -> bool:
        return self.error is None and not self.conversation.done


class Player:
    """Plays tasks with a sampler.

    Args:
        make_env: Makes one environment; instances are kept and reused.
        tokenizer: Hugging Face tokenizer with a chat template.
        template: Prompt template.
        window: Past steps in each prompt; None for the full dialogue.
        max_prompt_tokens: A longer prompt ends the trajectory as truncated.

    Attributes:
        images: Pictures that were shown lately.
    """

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any]],
        tokenizer: Any,
        *,
        template: str,
        window: int | None,
        max_prompt_tokens: int,
    ) -> None:
        self._make_env = make_env
        self._tokenizer = tokenizer
        self._template = template
        self._window = window
        self._max_prompt_tokens = max_prompt_tokens
        self.images = RecentImages()
        self._envs: list[gym.Env[Any, Any]] = []
        self._prompts: dict[str, Prompt] = {}
        self._texts: dict[tuple[int, ...], str] = {}

    def play(
        self, tasks: Sequence[Task], sampler: Sampler, *, group_size: int, seed: int, temperature: float
    ) -> tuple[Group, ...]:
        """Play every task ``group_size`` times.

        Args:
            tasks: What to play.
            sampler: Draws the replies.
            group_size: Trajectories per task, from identical starts.
            seed: Seed of the draws; equal seeds and weights give equal trajectories.
            temperature: Sampling temperature; 0 is greedy.

        Returns:
            One group per task, in order, every trajectory in its place.

        Raises:
            RolloutError: If the sampler fails.
        """
        self._forget_old_prompts()
        keys = [(task, number) for task in tasks for number in range(group_size)]
        while len(self._envs) < len(keys):
            self._envs.append(self._make_env())
        attempts = [
            self._start(task, number, env, derive_seed(seed, task.id, number))
            for (task, number), env in zip(keys, self._envs, strict=False)
        ]
        while live := self._ask(attempts):
            requests = [
                Request(a.prompt.ids, derive_seed(a.seed, len(a.steps)), a.prompt.pictures) for a in live
            ]
            for attempt, completion in zip(
                live, sampler.generate(requests, temperature=temperature), strict=True
            ):
                self._answer(attempt, completion)
        snapshot_id = sampler.snapshot_id
        done = [self._record(attempt, snapshot_id) for attempt in attempts]
        return tuple(
            Group(task.id, task.seed, tuple(done[place * group_size : (place + 1) * group_size]))
            for place, task in enumerate(tasks)
        )

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()
        self._envs.clear()

    def _start(self, task: Task, number: int, env: gym.Env[Any, Any], seed: int) -> _Attempt:
        conversation = Conversation(env, template=self._template, window=self._window, images=self.images)
        context: Context = (
            FullContext(self._tokenizer)
            if self._window is None
            else WindowContext(self._tokenizer, self._prompts)
        )
        attempt = _Attempt(f"{task.id}/{number}", task, seed, conversation, context)
        options = None if task.task_id is None else {"task_id": task.task_id}
        _guarded(attempt, lambda: conversation.reset(seed=task.seed, options=options))
        return attempt

    def _ask(self, attempts: Sequence[_Attempt]) -> list[_Attempt]:
        """Prepare the prompts of all live attempts; a prompt that is too long ends its attempt."""
        for attempt in attempts:
            if attempt.is_live:
                _guarded(attempt, lambda a=attempt: self._prepare(a))  # type: ignore[misc]
        return [attempt for attempt in attempts if attempt.is_live]

    def _prepare(self, attempt: _Attempt) -> None:
        attempt.prompt = attempt.context.prompt(attempt.conversation.messages())
        if len(attempt.prompt.ids) > self._max_prompt_tokens:
            attempt.conversation.truncate()
            if not attempt.steps:
                raise PromptTooLong(
                    f"the first prompt of task {attempt.task.id} has {len(attempt.prompt.ids)} tokens, more "
                    f"than rollout.max_prompt_tokens={self._max_prompt_tokens}. Raise it, or shorten the "
                    "template."
                )

    def _answer(self, attempt: _Attempt, completion: Completion) -> None:
        prompt = attempt.prompt
        attempt.steps.append(Step(prompt.ids, completion.response_ids, completion.logprobs, prompt.pictures))
        attempt.context.responded(completion.response_ids)
        _guarded(attempt, lambda: attempt.conversation.respond(self._decode(completion.response_ids)))

    def _decode(self, ids: tuple[int, ...]) -> str:
        if ids not in self._texts:
            self._texts[ids] = str(self._tokenizer.decode(ids, skip_special_tokens=True))
        return self._texts[ids]

    def _record(self, attempt: _Attempt, snapshot_id: int) -> Trajectory:
        episode = attempt.conversation.episode(attempt.error)
        return Trajectory(attempt.id, attempt.task.id, snapshot_id, tuple(attempt.steps), episode)

    def _forget_old_prompts(self) -> None:
        for cache in (self._prompts, self._texts):
            if len(cache) > 100_000:
                cache.clear()


def _guarded(attempt: _Attempt, action: Callable[[], object]) -> None:
    """The one boundary where whatever breaks is recorded on its trajectory."""
    try:
        action()
    except (PromptTooLong, KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        attempt.error = f"{type(error).__name__}: {error}"
        level = logging.WARNING if isinstance(error, IstarError) else logging.ERROR
        logger.log(level, "trajectory %s broke: %s", attempt.id, attempt.error)


def require_enough(groups: Sequence[Group], max_failed_frac: float) -> float:
    """Stop when too many trajectories broke.

    Returns:
        The share that broke.

    Raises:
        RolloutError: If it is above ``max_failed_frac`` or nothing is left.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    broken = [t for t in trajectories if t.failed]
    share = len(broken) / len(trajectories)
    if broken and (share > max_failed_frac or share == 1.0):
        raise RolloutError(
            f"{len(broken)} of {len(trajectories)} trajectories broke, more than "
            f"rollout.max_failed_frac={max_failed_frac}. The first: {broken[0].id}: {broken[0].episode.error}"
        )
    return share
