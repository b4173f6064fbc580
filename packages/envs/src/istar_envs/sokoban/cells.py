"""What a cell looks like: observation codes, their XSB characters, and the grid of a state.

Codes: 0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 player, 6 player on target.
"""

from typing import Final

from istar_envs.sokoban.bits import cells_of
from istar_envs.sokoban.board import Layout, State
from istar_envs.sokoban.deadlocks import floor_of

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)
CHARS: Final = "#-.*$@+"
"""XSB character of each code."""

_TO_CHARS = bytes.maketrans(bytes(range(len(CHARS))), CHARS.encode())


class CellGrid:
    """The cells of one level on a board of fixed size.

    A level smaller than the board sits in its upper left corner; the rest is wall.

    Args:
        layout: Walls and targets of the level.
        height: Rows of the board, at least those of the level.
        width: Columns of the board, at least those of the level.

    Attributes:
        fixed: Codes of wall, floor and target of every cell of the board.
        places: Cell of the board of every cell of the level.
    """

    __slots__ = ("fixed", "places")

    def __init__(self, layout: Layout, height: int, width: int) -> None:
        rows, cols = range(layout.height), range(layout.width)
        self.places = tuple([row * width + col for row in rows for col in cols])
        fixed = bytearray(height * width)
        for cell in cells_of(floor_of(layout)):
            fixed[self.places[cell]] = TARGET if layout.targets >> cell & 1 else FLOOR
        self.fixed = bytes(fixed)

    def codes(self, state: State) -> bytearray:
        """Return one code per cell of the board, row by row, as a new writable buffer."""
        fixed, places = self.fixed, self.places
        cells = bytearray(fixed)
        for cell in cells_of(state.boxes):
            place = places[cell]
            cells[place] = BOX_ON_TARGET if fixed[place] == TARGET else BOX
        place = places[state.player]
        cells[place] = PLAYER_ON_TARGET if fixed[place] == TARGET else PLAYER
        return cells


def to_chars(codes: bytes | bytearray) -> str:
    """Write codes as XSB characters, without line breaks.

    Example:
        >>> to_chars(bytes([0, 5, 4, 2, 0]))
        '#@$.#'
    """
    return codes.translate(_TO_CHARS).decode()
