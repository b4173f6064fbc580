"""What a cell looks like: observation codes, their XSB characters, and the grid of a state.

Codes: 0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 player, 6 player on target.
"""

from typing import Final

from istar_envs.sokoban.board import Layout, State

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

    __slots__ = ("_box_codes", "_player_codes", "fixed", "places")

    def __init__(self, layout: Layout, height: int, width: int) -> None:
        num_cells = layout.height * layout.width
        self.places = tuple(cell // layout.width * width + cell % layout.width for cell in range(num_cells))
        on_target = [bool(layout.targets >> cell & 1) for cell in range(num_cells)]
        fixed = bytearray(height * width)
        for cell, place in enumerate(self.places):
            if not layout.walls >> cell & 1:
                fixed[place] = TARGET if on_target[cell] else FLOOR
        self.fixed = bytes(fixed)
        self._box_codes = tuple(BOX_ON_TARGET if on else BOX for on in on_target)
        self._player_codes = tuple(PLAYER_ON_TARGET if on else PLAYER for on in on_target)

    def codes(self, state: State) -> bytearray:
        """Return one code per cell of the board, row by row, as a new writable buffer."""
        cells = bytearray(self.fixed)
        places = self.places
        boxes = state.boxes
        while boxes:
            lowest = boxes & -boxes
            cell = lowest.bit_length() - 1
            cells[places[cell]] = self._box_codes[cell]
            boxes ^= lowest
        cells[places[state.player]] = self._player_codes[state.player]
        return cells


def to_chars(codes: bytes | bytearray) -> str:
    """Write codes as XSB characters, without line breaks.

    Example:
        >>> to_chars(bytes([0, 5, 4, 2, 0]))
        '#@$.#'
    """
    return codes.translate(_TO_CHARS).decode()
