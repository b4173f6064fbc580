"""Exact advantages of a policy on Sokoban: its value in every position, by dynamic programming.

Where prompts show the board alone (``env.window: 0``), a policy is one distribution over moves per
board, and Q − V of a recorded step is a matter of arithmetic. Everything else is sampled
(``sampled.py``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from istar_envs.agent import Conversation
from istar_envs.errors import IstarError
from istar_envs.sokoban.board import ACTION_NAMES
from istar_envs.sokoban.env import SokobanEnv
from istar_trainer.context import encode, render
from istar_trainer.credit_truth.boards import INVALID, Boards, Payment, explore
from istar_trainer.credit_truth.replies import Reply, known_replies, score_choices
from istar_trainer.credit_truth.tabular import choice_values, error_bounds, policy_values
from istar_trainer.credit_truth.truth import Floats, StepTruth
from istar_trainer.learner import Learner
from istar_trainer.records import Group, Trajectory


class NotExactError(IstarError):
    """The true advantage cannot be computed, only estimated; says why."""


class ExactValues:
    """Values of one policy on Sokoban levels.

    Args:
        conversation: A Sokoban environment as a conversation with ``window=0``; used and reset freely.
        policy: The policy, at the temperature of the rollouts.
        tokenizer: Its tokenizer.
        payment: What steps are worth.
        max_new_tokens: Longest reply.

    Raises:
        NotExactError: If the environment is no Sokoban or its prompts show more than the board.
    """

    def __init__(
        self,
        conversation: Conversation,
        policy: Learner,
        tokenizer: Any,
        payment: Payment,
        *,
        max_new_tokens: int,
    ) -> None:
        world = conversation.env.unwrapped
        if not isinstance(world, SokobanEnv):
            raise NotExactError(f"{type(world).__name__} has no table of states")
        if conversation.window != 0:
            raise NotExactError(f"with env.window={conversation.window} prompts show more than the board")
        self._conversation, self._world = conversation, world
        self._policy, self._tokenizer = policy, tokenizer
        self._payment = payment
        self._max_new_tokens = max_new_tokens

    def advantages(self, groups: Sequence[Group]) -> StepTruth:
        """Return Q − V of every recorded step.

        Args:
            groups: Played with the policy from the training split.

        Raises:
            NotExactError: If a level has too many positions or prompts depend on more than the board.
        """
        replies = known_replies(
            groups, self._conversation, self._tokenizer, max_new_tokens=self._max_new_tokens
        )
        found = [row for group in groups for row in self._of_group(group, replies)]
        values, errors = np.array(found).T if found else np.zeros((2, 0))
        source = f"exact: dynamic programming over boards and steps left, {len(replies)} replies scored"
        return StepTruth(np.round(values, 9), errors, source)

    def _of_group(self, group: Group, replies: Mapping[Reply, int]) -> list[tuple[float, float]]:
        """Return the advantage of every step of a group, and half of what it may be off by."""
        horizon = self._world.max_steps
        self._conversation.reset(seed=group.task_seed)
        boards = explore(self._conversation, self._world.level, self._payment, horizon=horizon)
        if boards is None:
            raise NotExactError(f"the level of task {group.id} has too many positions for a table")
        prompts = [encode(self._tokenizer, render(self._tokenizer, m)) for m in boards.messages]
        choices = score_choices(prompts, replies, self._policy)
        values = policy_values(boards.problem, choices.probabilities, horizon)
        bounds = error_bounds(boards.problem, choices.probabilities, values, choices.unknown)
        rows = []
        for trajectory in group.trajectories:
            if not trajectory.failed:
                _require_same_prompts(trajectory, boards, prompts)
                rows += _of_trajectory(trajectory, boards, values, bounds)
        return rows


def _of_trajectory(
    trajectory: Trajectory, boards: Boards, values: Floats, bounds: Floats
) -> list[tuple[float, float]]:
    horizon, rows = len(values) - 1, []
    for step, transition in enumerate(trajectory.episode.transitions):
        state, left = boards.keys[transition.state_key], horizon - step
        choice = INVALID if transition.action is None else ACTION_NAMES.index(transition.action)
        gain = choice_values(boards.problem, values[left - 1])[state, choice] - values[left, state]
        bound = (
            bounds[left, state] + np.append(bounds[left - 1], 0.0)[boards.problem.successors[state, choice]]
        )
        rows.append((float(gain), float(bound) / 2))
    return rows


def _require_same_prompts(trajectory: Trajectory, boards: Boards, prompts: Sequence[Sequence[int]]) -> None:
    for step, transition in zip(trajectory.steps, trajectory.episode.transitions, strict=True):
        number = boards.keys.get(transition.state_key)
        if number is None or step.pictures or list(step.prompt_ids) != list(prompts[number]):
            raise NotExactError(
                f"a prompt of trajectory {trajectory.id} is not what its board alone would show as text, so "
                "the template tells more than the board, or shows a picture"
            )
