"""The agent–environment loop: tasks × N trajectories, played together until the last one ends.

The prompts of the trajectories that are ready go to the sampler as one batch, while the environments
of others may still be waited for. What breaks is recorded on its trajectory, which keeps its place and
weighs nothing; ending a run because too many broke is the caller's decision.
"""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from istar_envs.agent import Conversation
from istar_envs.episode import RecentImages
from istar_envs.seeding import derive_seed
from istar_trainer.attempts import Attempt, OpenGroup, Task
from istar_trainer.context import Context, FullContext, Prompt, WindowContext
from istar_trainer.env_calls import EnvCalls
from istar_trainer.errors import PromptTooLong, RolloutError
from istar_trainer.records import Group
from istar_trainer.sampler import Request, Sampler


class Player:
    """Plays tasks with a sampler.

    Args:
        make_env: Makes one environment; instances are kept and reused.
        tokenizer: Hugging Face tokenizer with a chat template.
        template: Prompt template.
        window: Past steps in each prompt; None for the full dialogue.
        max_prompt_tokens: A longer prompt ends the trajectory as truncated.
        env_threads: Environments that are waited for at a time; 0 steps them in turn.
        min_ready_frac: Share of the trajectories in play that must be ready before replies are drawn.

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
        env_threads: int = 0,
        min_ready_frac: float = 1.0,
    ) -> None:
        self._make_env = make_env
        self._tokenizer = tokenizer
        self._template = template
        self._window = window
        self._max_prompt_tokens = max_prompt_tokens
        self.images = RecentImages()
        self._calls: EnvCalls[Attempt] = EnvCalls(env_threads, min_ready_frac)
        self._envs: list[gym.Env[Any, Any]] = []
        self._idle: list[gym.Env[Any, Any]] = []
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
        opened = [self.begin(task, group_size=group_size, seed=seed) for task in tasks]
        self.go_on(sampler, temperature=temperature, until=lambda: all(group.is_over for group in opened))
        return tuple(self.end(group, sampler.snapshot_id) for group in opened)

    def begin(self, task: Task, *, group_size: int, seed: int) -> OpenGroup:
        """Begin to play a task; ``go_on`` carries it on and ``end`` takes the result."""
        numbers = range(group_size)
        return OpenGroup(task, tuple(self._start(task, n, derive_seed(seed, task.id, n)) for n in numbers))

    def go_on(self, sampler: Sampler, *, temperature: float, until: Callable[[], bool]) -> None:
        """Carry on with all groups that were begun.

        Args:
            sampler: Draws the replies.
            temperature: Sampling temperature; 0 is greedy.
            until: Says when to return; it must do so at the latest when all groups are over.

        Raises:
            RolloutError: If the sampler fails.
        """
        self._forget_old_prompts()
        while not until():
            asking = self._ask(self._calls.ended())
            requests = [
                Request(a.prompt.ids, derive_seed(a.seed, len(a.steps)), a.prompt.pictures) for a in asking
            ]
            completions = sampler.generate(requests, temperature=temperature) if requests else []
            for attempt, completion in zip(asking, completions, strict=True):
                attempt.take(completion, sampler.snapshot_id)
                self._answer(attempt, completion.response_ids)

    def end(self, group: OpenGroup, snapshot_id: int) -> Group:
        """Return a group that is over; its environments play others from now on.

        Args:
            group: The group.
            snapshot_id: Version of the weights to note where something broke before they were asked.
        """
        self._idle += [attempt.env for attempt in group.attempts]
        played = tuple(attempt.trajectory(snapshot_id) for attempt in group.attempts)
        return Group(group.task.id, group.task.seed, played)

    def close(self) -> None:
        """Close the environments, after waiting for calls that are still running."""
        self._calls.close()
        for env in self._envs:
            env.close()
        self._envs.clear()
        self._idle.clear()

    def _start(self, task: Task, number: int, seed: int) -> Attempt:
        if not self._idle:
            self._envs.append(self._make_env())
            self._idle.append(self._envs[-1])
        env = self._idle.pop(0)
        conversation = Conversation(env, template=self._template, window=self._window, images=self.images)
        context: Context = (
            FullContext(self._tokenizer)
            if self._window is None
            else WindowContext(self._tokenizer, self._prompts)
        )
        attempt = Attempt(f"{task.id}/{number}", task.id, seed, env, conversation, context)
        options = None if task.task_id is None else {"task_id": task.task_id}
        self._call(attempt, lambda: conversation.reset(seed=task.seed, options=options))
        return attempt

    def _call(self, attempt: Attempt, action: Callable[[], object]) -> None:
        """Let an attempt's environment do something; it is not touched until the call has ended."""
        self._calls.start(attempt, lambda: attempt.guard(action))

    def _ask(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Prepare the prompts of those that are live, and return those that have one."""
        asking: list[Attempt] = []
        for attempt in attempts:
            if attempt.is_live:
                attempt.guard(lambda a=attempt: self._prepare(a))  # type: ignore[misc]
            if not attempt.is_live:
                attempt.is_over = True
            elif len(attempt.prompt.ids) > self._max_prompt_tokens:
                self._call(attempt, attempt.conversation.truncate)
            else:
                asking.append(attempt)
        return asking

    def _prepare(self, attempt: Attempt) -> None:
        attempt.prompt = attempt.context.prompt(attempt.conversation.messages())
        if len(attempt.prompt.ids) > self._max_prompt_tokens and not attempt.steps:
            raise PromptTooLong(
                f"the first prompt of task {attempt.group_id} has {len(attempt.prompt.ids)} tokens, more "
                f"than rollout.max_prompt_tokens={self._max_prompt_tokens}. Raise it, or shorten the "
                "template."
            )

    def _answer(self, attempt: Attempt, response_ids: tuple[int, ...]) -> None:
        reply = self._decode(response_ids)
        self._call(attempt, lambda: attempt.conversation.respond(reply))

    def _decode(self, ids: tuple[int, ...]) -> str:
        if ids not in self._texts:
            self._texts[ids] = str(self._tokenizer.decode(ids, skip_special_tokens=True))
        return self._texts[ids]

    def _forget_old_prompts(self) -> None:
        for cache in (self._prompts, self._texts):
            if len(cache) > 100_000:
                cache.clear()


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
