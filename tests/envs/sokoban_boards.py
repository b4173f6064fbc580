"""Hand-made Sokoban levels for tests."""

from collections.abc import Sequence
from typing import Any

from istar_envs.errors import EnvError
from istar_envs.sokoban.board import Layout, State
from istar_envs.sokoban.env import SokobanEnv
from istar_envs.sokoban.levels import Level, make_level


def level_of(text: str, level_id: str = "hand/made#0") -> Level:
    """Read a rectangular board of ``#-.$*@+``."""
    rows = text.split()
    width = len(rows[0])
    cells = "".join(rows)

    def field(chars: str) -> int:
        return sum(1 << cell for cell, char in enumerate(cells) if char in chars)

    layout = Layout(len(rows), width, field("#"), field(".*+"))
    return make_level(layout, State(field("$*"), next(i for i, c in enumerate(cells) if c in "@+")), level_id)


class ListSource:
    """Levels of a list, drawn by seed modulo their number."""

    def __init__(self, *levels: Level, max_steps: int = 20, size: tuple[int, int] | None = None) -> None:
        self.name, self.split, self.max_steps = "hand", "train", max_steps
        self._levels = {level.id: level for level in levels}
        self.height, self.width = size or (
            max(level.layout.height for level in levels),
            max(level.layout.width for level in levels),
        )

    def draw(self, seed: int) -> Level:
        return list(self._levels.values())[seed % len(self._levels)]

    def ids(self) -> Sequence[str] | None:
        return list(self._levels)

    def get(self, level_id: str) -> Level:
        if level_id not in self._levels:
            raise EnvError(f"no level {level_id!r}")
        return self._levels[level_id]


def env_of(
    text: str, *, env_class: type[SokobanEnv] = SokobanEnv, max_steps: int = 20, **options: Any
) -> SokobanEnv:
    """Make an environment that always plays one board, and reset it."""
    env = env_class(ListSource(level_of(text), max_steps=max_steps), **options)
    env.reset(seed=0)
    return env


CORRIDOR = """
######
#@$-.#
######
"""
"""Solved by right, right."""

ROOM = """
######
#-.--#
#-$--#
#--@-#
#----#
######
"""
"""Solved in 3: left, up? No: the player walks under the box first; left, up."""

TWO_TARGETS = """
#######
#@$.$.#
#-----#
#######
"""
