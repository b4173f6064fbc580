"""One level being played: what a step does, what it pays, and every fact that ``info`` reports.

The Gymnasium classes in ``env.py`` add spaces, level choice and drawing. The facts cost a few
microseconds, so they are worked out anew at each step and no picture is drawn for them.
"""

from collections.abc import Mapping
from typing import Any, Final

from istar_envs.errors import ResetNeeded
from istar_envs.sokoban.board import ACTION_NAMES, Layout, State, is_solved, move
from istar_envs.sokoban.cells import CellGrid, to_chars
from istar_envs.sokoban.levels import Level
from istar_envs.sokoban.outlook import Outlook
from istar_envs.sokoban.rewards import NO_REWARD, Rewards

TASK: Final = "Push every box onto a target."

StepResult = tuple[float, bool, bool, dict[str, Any]]
"""Reward, terminated, truncated, info."""


def admissible_actions(layout: Layout, state: State) -> list[str]:
    """Name the moves that change the state, in order of their codes."""
    walls, boxes, player = layout.walls, state.boxes, state.player
    names = []
    for name, offset in zip(ACTION_NAMES, layout.offsets, strict=True):
        ahead = player + offset
        if walls >> ahead & 1 or (boxes >> ahead & 1 and (walls | boxes) >> (ahead + offset) & 1):
            continue
        names.append(name)
    return names


class Game:
    """A level with boxes, player and step counter.

    Args:
        level: What is played.
        height: Rows of the board it is shown on.
        width: Columns of that board.
        max_steps: Steps before truncation.
        rewards: What each event pays.
        seed: Seed the level was drawn with, or −1; only reported.

    Attributes:
        level: What is played.
        seed: As given.
        state: Boxes and player now.
        steps: Steps taken.
        is_finished: Whether the episode has ended.
        codes: One cell code per cell of the board now, row by row.
    """

    def __init__(
        self, level: Level, *, height: int, width: int, max_steps: int, rewards: Rewards, seed: int
    ) -> None:
        self.level = level
        self.seed = seed
        self.state = level.start
        self.steps = 0
        self.is_finished = False
        self._max_steps = max_steps
        self._rewards = rewards
        self._width = width
        self._grid = CellGrid(level.layout, height, width)
        self._outlook = Outlook(level)
        self._targets = level.layout.targets
        self._num_boxes = level.start.boxes.bit_count()
        self.codes = self._grid.codes(level.start)

    def step(self, action: int) -> StepResult:
        """Take one of the four actions, given by code.

        Raises:
            ResetNeeded: If the episode has ended.
        """
        after = move(self.level.layout, self.state, action)
        return self._advance(after, [ACTION_NAMES[action]], invalid_reason=None)

    def invalid_step(self, reason: str) -> StepResult:
        """Spend a step on an unreadable action.

        Raises:
            ResetNeeded: If the episode has ended.
        """
        return self._advance(self.state, [], invalid_reason=reason)

    def resume(self, state: State, *, steps: int, is_finished: bool) -> None:
        """Jump to a state of the same level, as it was after ``steps`` steps."""
        self.state = state
        self.steps = steps
        self.is_finished = is_finished
        self.codes = self._grid.codes(state)

    def info(self) -> dict[str, Any]:
        """Return the facts of the present state, with nothing moved and nothing earned."""
        return self._facts(self.state, [], reward_parts=dict(NO_REWARD), invalid_reason=None)

    def _advance(self, after: State, action_names: list[str], *, invalid_reason: str | None) -> StepResult:
        if self.is_finished:
            raise ResetNeeded(
                f"step() after the end of the episode (Sokoban, level {self.level.id}). Call reset() first."
            )
        before = self.state
        self.state = after
        self.steps += 1
        terminated = is_solved(self.level.layout, after)
        truncated = self.steps >= self._max_steps and not terminated
        self.is_finished = terminated or truncated
        if after is not before:
            self.codes = self._grid.codes(after)
        change = (after.boxes & self._targets).bit_count() - (before.boxes & self._targets).bit_count()
        parts = self._rewards.parts(
            change, solved=terminated and change > 0, invalid=invalid_reason is not None
        )
        info = self._facts(before, action_names, reward_parts=parts, invalid_reason=invalid_reason)
        return sum(parts.values()), terminated, truncated, info

    def _facts(
        self,
        before: State,
        action_names: list[str],
        *,
        reward_parts: Mapping[str, float],
        invalid_reason: str | None,
    ) -> dict[str, Any]:
        level, state = self.level, self.state
        layout = level.layout
        optimal_left, is_dead = self._outlook.of(state)
        solved = is_solved(layout, state)
        on_target = (state.boxes & self._targets).bit_count()
        return {
            "task": TASK,
            "success": solved,
            "score": on_target / self._targets.bit_count(),
            "valid": invalid_reason is None,
            "invalid_reason": invalid_reason,
            "admissible_actions": admissible_actions(layout, state),
            "state_key": f"{self._width}:{to_chars(self.codes)}",
            "task_id": level.id,
            "moved": state.player != before.player,
            "pushed": state.boxes != before.boxes,
            "effective": state != before,
            "num_boxes_on_target": on_target,
            "num_boxes": self._num_boxes,
            "solved": solved,
            "deadlocked": is_dead,
            "steps": self.steps,
            "steps_left": self._max_steps - self.steps,
            "optimal_left": optimal_left,
            "level_id": level.id,
            "seed": self.seed,
            "reward_parts": reward_parts,
            "action_names": action_names,
        }
