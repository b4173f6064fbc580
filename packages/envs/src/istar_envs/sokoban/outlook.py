"""What can still be reached from a state: moves to the goal, or a deadlock.

Exact where the level's states can be tabulated; elsewhere a deadlock is reported when the freeze test
proves it (a box on a dead square always counts as frozen). Searches nothing before the first question.
"""

from istar_envs.sokoban.bits import cells_of
from istar_envs.sokoban.board import State
from istar_envs.sokoban.deadlocks import is_frozen_deadlock
from istar_envs.sokoban.levels import Level
from istar_envs.sokoban.retrograde import Distances, distances

NO_NUMBER = -1
"""Stands for a number that does not exist: Gymnasium's vector environments cannot mix None and integers."""


class Outlook:
    """Answers for the states of one level.

    Args:
        level: The level. Its stored optimum answers for the start where there is no table. The first
            question makes the table, which costs nothing if the level was generated just before.
    """

    __slots__ = ("_is_tabulated", "_level", "_table")

    def __init__(self, level: Level) -> None:
        self._level = level
        self._table: Distances | None = None
        self._is_tabulated: bool | None = None

    def of(self, state: State) -> tuple[int, bool]:
        """Judge one state.

        Returns:
            Length of a shortest solution in moves, or −1 if there is none or it is not known; and
            whether the state is known to be unsolvable.
        """
        level = self._level
        if self._is_tabulated is None:
            self._table = distances(level.layout, level.start.boxes.bit_count())
            self._is_tabulated = self._table is not None
        if self._table is None:
            if level.num_moves is not None and state == level.start:
                return level.num_moves, False
            return NO_NUMBER, self._is_provably_dead(state.boxes)
        moves_left = self._table.moves_left(state)
        return (NO_NUMBER, True) if moves_left is None else (moves_left, False)

    def _is_provably_dead(self, boxes: int) -> bool:
        layout, dead = self._level.layout, self._level.dead_squares
        off_target = cells_of(boxes & ~layout.targets)
        return any(is_frozen_deadlock(layout, boxes, cell, dead) for cell in off_target)
