"""A level with everything that is known of it, and its name up to symmetry.

Levels that differ by a rotation or reflection are one level to a player who has learnt the game,
so splits are told apart by ``canonical_hash``, never by seed.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from istar_envs.sokoban.board import Layout, State, to_text
from istar_envs.sokoban.deadlocks import dead_squares

Split = Literal["train", "dev", "test"]
SPLITS: Final[tuple[Split, ...]] = ("train", "dev", "test")
_DEV_FROM, _TEST_FROM = 205, 230
"""First byte of the hash: 80% of all levels are train, 10% dev, 10% test."""


@dataclass(frozen=True, slots=True)
class Level:
    """One Sokoban level.

    Attributes:
        layout: Walls and targets.
        start: Boxes and player at the start.
        id: Name that ``level_source(...).get`` turns back into this level.
        num_moves: Moves of a shortest solution; None if not computed, as for levels from files.
        num_pushes: Pushes of a solution with the fewest; None if not computed.
        dead_squares: Bit field of floor cells from which a lone box reaches no target.
        canonical_hash: 32 hex digits, equal iff the levels are equal up to the 8 symmetries.
    """

    layout: Layout
    start: State
    id: str
    num_moves: int | None
    num_pushes: int | None
    dead_squares: int
    canonical_hash: str

    @property
    def num_boxes(self) -> int:
        """Number of boxes, which is also the number of targets."""
        return self.start.boxes.bit_count()

    @property
    def split(self) -> Split:
        """The split this level belongs to, whatever its source."""
        return split_of(self.canonical_hash)


def make_level(
    layout: Layout,
    start: State,
    level_id: str,
    *,
    num_moves: int | None = None,
    num_pushes: int | None = None,
) -> Level:
    """Complete a level with its dead squares and canonical hash."""
    return Level(
        layout, start, level_id, num_moves, num_pushes, dead_squares(layout), canonical_hash(layout, start)
    )


def canonical_hash(layout: Layout, start: State) -> str:
    """Name a level up to translation, rotation and reflection.

    The board is cropped to the bounding box of its floor; of its 8 symmetric forms the least text
    counts.

    Returns:
        The first 32 hex digits of that text's SHA-256.
    """
    rows = to_text(layout, start).split("\n")
    inner = [row for row in rows if row.strip("#")]
    left = min(len(row) - len(row.lstrip("#")) for row in inner)
    right = max(len(row.rstrip("#")) for row in inner)
    least = min("\n".join(form) for form in _symmetries([row[left:right] for row in inner]))
    return hashlib.sha256(least.encode()).hexdigest()[:32]


def split_of(level_hash: str) -> Split:
    """Return the split that a canonical hash falls in: 80% train, 10% dev, 10% test."""
    byte = int(level_hash[:2], 16)
    return "train" if byte < _DEV_FROM else "dev" if byte < _TEST_FROM else "test"


def _symmetries(rows: list[str]) -> Iterator[list[str]]:
    """Yield the 4 rotations of a board, each with its mirror image."""
    for _ in range(4):
        yield rows
        yield rows[::-1]
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]
