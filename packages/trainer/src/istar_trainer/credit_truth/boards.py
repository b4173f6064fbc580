"""Every position that a game of Sokoban can come to, as a finite problem with the prompt of each.

The environment itself is asked what each move does and pays, so no rule is written twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from istar_envs.agent import Conversation, Message
from istar_envs.sokoban.board import ACTION_NAMES, State
from istar_envs.sokoban.levels import Level
from istar_trainer.credit_truth.tabular import Problem

INVALID: Final = len(ACTION_NAMES)
"""Number of the choice that stands for every reply which is no action."""
MAX_BOARDS: Final = 20_000
"""Positions of one level beyond which its values are not tabulated."""
_END: Final = -1


@dataclass(frozen=True, slots=True)
class Boards:
    """The positions of one level.

    Attributes:
        keys: Number of each position by its state key.
        messages: Prompt of each position.
        problem: What the four moves and an invalid reply (choice ``INVALID``) do in each.
    """

    keys: dict[str, int]
    messages: Sequence[list[Message]]
    problem: Problem


@dataclass(frozen=True, slots=True)
class Payment:
    """What a step is worth to the outcome that a run trains on.

    Attributes:
        by_success: Whether the outcome is success; else it is the sum of the environment's rewards.
        invalid_penalty: Subtracted for each invalid step.
    """

    by_success: bool
    invalid_penalty: float

    def of(self, reward: float, info: dict[str, Any]) -> float:
        """Return the worth of one step, from what ``env.step`` returned."""
        gained = float(info["success"]) if self.by_success else reward
        return gained - (0.0 if info["valid"] else self.invalid_penalty)


def explore(conversation: Conversation, level: Level, payment: Payment, *, horizon: int) -> Boards | None:
    """Find every position that can be reached with steps left; None if there are more than ``MAX_BOARDS``.

    Args:
        conversation: A Sokoban environment as a conversation without memory (``window=0``).
        level: Where the game begins.
        payment: What steps are worth.
        horizon: Most steps an episode has. A position that takes d moves to reach is only right for
            up to ``horizon − d`` steps left, which is all that can be left there.
    """
    numbers, depths, states = {level.start: 0}, [0], [level.start]
    keys: dict[str, int] = {}
    messages: list[list[Message]] = []
    successors: list[list[int]] = []
    rewards: list[list[float]] = []
    for number, state in enumerate(states):
        if len(states) > MAX_BOARDS:
            return None
        conversation.reset(options={"level": replace(level, start=state, num_moves=None)})
        keys[str(conversation.info["state_key"])] = number
        messages.append(conversation.messages())
        afters, worth = _choices(conversation.env.unwrapped, payment)
        for after in afters:
            if after is not None and after not in numbers and depths[number] + 1 < horizon:
                numbers[after] = len(states)
                states.append(after)
                depths.append(depths[number] + 1)
        successors.append([_END if after is None else numbers.get(after, _END) for after in afters])
        rewards.append(worth)
    return Boards(keys, messages, Problem(np.array(successors), np.array(rewards)))


def _choices(world: Any, payment: Payment) -> tuple[list[State | None], list[float]]:
    """Try the four moves and an invalid reply: the position after each (None at the end) and its worth."""
    start = world.clone_state()
    afters: list[State | None] = []
    worth: list[float] = []
    for choice in range(INVALID + 1):
        world.restore_state(start)
        result = world.invalid_step("unreadable") if choice == INVALID else world.step(choice)
        _observation, reward, is_over, _truncated, info = result
        afters.append(None if is_over else world.board_state)
        worth.append(payment.of(reward, info))
    return afters, worth
