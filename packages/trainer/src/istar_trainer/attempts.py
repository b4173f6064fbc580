"""Tasks, and their trajectories while they are being played."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from istar_envs.agent import Conversation
from istar_envs.errors import IstarError
from istar_trainer.context import Context, Prompt
from istar_trainer.errors import PromptTooLong
from istar_trainer.records import Step, Trajectory
from istar_trainer.sampler import Completion

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


@dataclass(slots=True, eq=False)
class Attempt:
    """One trajectory while it is being played.

    Attributes:
        id: Id of the trajectory.
        group_id: Id of its group.
        seed: Seed of its draws.
        env: What it is played in.
        conversation: The environment as it speaks.
        context: How messages become prompts.
        steps: What was asked and drawn so far.
        snapshot_ids: Version of the weights that drew each.
        prompt: What is to be asked next.
        error: What broke.
        is_over: Whether nothing more will happen.
    """

    id: str
    group_id: str
    seed: int
    env: gym.Env[Any, Any]
    conversation: Conversation
    context: Context
    steps: list[Step] = field(default_factory=list)
    snapshot_ids: list[int] = field(default_factory=list)
    prompt: Prompt = field(default_factory=lambda: Prompt([]))
    error: str | None = None
    is_over: bool = False

    @property
    def is_live(self) -> bool:
        """Whether there is a next step."""
        return self.error is None and not self.conversation.done

    def guard(self, action: Callable[[], object]) -> None:
        """Do something that may break: the one boundary where that is recorded on the trajectory."""
        try:
            action()
        except (PromptTooLong, KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            level = logging.WARNING if isinstance(error, IstarError) else logging.ERROR
            logger.log(level, "trajectory %s broke: %s", self.id, self.error)

    def take(self, completion: Completion, snapshot_id: int) -> None:
        """Note what was drawn for the prompt, and by which version of the weights."""
        prompt = self.prompt
        self.steps.append(Step(prompt.ids, completion.response_ids, completion.logprobs, prompt.pictures))
        self.snapshot_ids.append(snapshot_id)
        self.context.responded(completion.response_ids)

    def trajectory(self, snapshot_id: int) -> Trajectory:
        """Return what was played.

        Args:
            snapshot_id: Version of the weights to note if it broke before they were asked.
        """
        ids = tuple(self.snapshot_ids)
        return Trajectory(
            self.id,
            self.group_id,
            ids[0] if ids else snapshot_id,
            tuple(self.steps),
            self.conversation.episode(self.error),
            mixed_snapshot_ids=ids if len(set(ids)) > 1 else (),
        )


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group while it is being played.

    Attributes:
        task: What is played.
        attempts: Its trajectories.
    """

    task: Task
    attempts: tuple[Attempt, ...]

    @property
    def is_over(self) -> bool:
        """Whether all its trajectories have ended."""
        return all(attempt.is_over for attempt in self.attempts)
