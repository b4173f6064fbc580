"""Exact distance of every position of a small level, by retrograde analysis on big integers.

A set of positions is one Python integer: position (player p, boxes b1, b2, …) on an n-cell grid is
bit ``p + n·b1 + n²·b2 + …``, boxes in any order. Undoing a move is then a constant shift of the
whole set, so one layer of the breadth-first search costs a few dozen big-integer operations
whatever the number of positions in it. The grid is the bounding box of the floor.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Final

from istar_envs.sokoban.bits import cells_of, nth_cell
from istar_envs.sokoban.board import Layout, State

MAX_TABLE_BITS: Final = 1 << 18
"""Largest table that is built, in bits: 6×6 to 3 boxes, 8×8 and 10×10 to 2, and smaller floors."""


@dataclass(frozen=True, slots=True)
class _Undo:
    """How one forward action is undone on a set of positions.

    Attributes:
        walk: Right shift (left if negative) that takes the player one cell back.
        guard: Positions whose player has a cell ahead inside the grid.
        pulls: For each box, the positions where it stands ahead of the player, and the shift that
            takes player and box one cell back.
    """

    walk: int
    guard: int
    pulls: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Grid:
    """Masks that depend only on the size of the grid and the number of boxes.

    Attributes:
        num_cells: Cells of the grid.
        num_boxes: Boxes on it.
        distinct: Positions with no two pieces on one cell.
        undo: How each action is undone.
    """

    num_cells: int
    num_boxes: int
    distinct: int
    undo: tuple[_Undo, ...]

    def positions(self, player: int, boxes: int) -> int:
        """Return the positions with the player on one of some cells and every box on one of others."""
        return _product(self.num_cells, [player] + [boxes] * self.num_boxes) & self.distinct


def _product(num_cells: int, fields: list[int]) -> int:
    """Return the positions whose every piece stands on a cell of its own field, clashes included."""
    block, unit = fields[0], num_cells
    for field in fields[1:]:
        block = sum(block << cell * unit for cell in cells_of(field))
        unit *= num_cells
    return block


@lru_cache(maxsize=64)
def _grid(height: int, width: int, num_boxes: int) -> _Grid:
    """Build the masks of a grid size; equal arguments share one object."""
    n = height * width
    everywhere = (1 << n) - 1

    def at(cell: int, piece: int) -> int:
        return _product(n, [1 << cell if other == piece else everywhere for other in range(num_boxes + 1)])

    on = [[at(cell, piece) for piece in range(num_boxes + 1)] for cell in range(n)]
    clash = 0
    for pieces in on:
        for first, second in combinations(pieces, 2):
            clash |= first & second
    undo = []
    for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        offset = down * width + right
        inside = [c for c in range(n) if 0 <= c // width + down < height and 0 <= c % width + right < width]
        pulls = tuple(
            (sum(on[cell][0] & on[cell + offset][piece] for cell in inside), offset * (1 + n**piece))
            for piece in range(1, num_boxes + 1)
        )
        undo.append(_Undo(offset, sum(on[cell][0] for cell in inside), pulls))
    return _Grid(n, num_boxes, (1 << n ** (num_boxes + 1)) - 1 & ~clash, tuple(undo))


class Distances:
    """Exact distance of every position of one layout; made by ``distances``.

    Kept in binary: plane i holds bit i of (distance + 1) of all positions, 0 standing for a dead one.

    Attributes:
        max_moves: Largest optimum of any solvable position.
    """

    __slots__ = ("_cells", "_grid", "_planes", "_slots", "max_moves")

    def __init__(self, layout: Layout, num_boxes: int, crop: tuple[int, int, int, int]) -> None:
        self._grid = _grid(crop[2], crop[3], num_boxes)
        self._cells, self._slots = _frame(layout.height, layout.width, crop)
        floor = self._squeeze(~layout.walls)
        layer = self._grid.positions(floor, self._squeeze(layout.targets))
        unseen = self._grid.positions(floor, floor) & ~layer
        moves = 0
        planes: list[int] = []
        while layer:
            moves += 1
            for weight in range(moves.bit_length()):
                if weight == len(planes):
                    planes.append(0)
                if moves >> weight & 1:
                    planes[weight] |= layer
            layer = self._moved_back(layer) & unseen
            unseen ^= layer
        self.max_moves = moves - 1
        num_bytes = self._grid.num_cells ** (num_boxes + 1) // 8 + 1
        self._planes = tuple(plane.to_bytes(num_bytes, "little") for plane in planes)

    def moves_left(self, state: State) -> int | None:
        """Return the number of moves of a shortest solution, or None if there is none."""
        index = self._index(state)
        byte, bit = index >> 3, index & 7
        moves = 0
        for weight, plane in enumerate(self._planes):
            moves |= (plane[byte] >> bit & 1) << weight
        return moves - 1 if moves else None

    def positions(self, boxes: int) -> dict[int, int]:
        """Sort the solvable positions by their optimum.

        Args:
            boxes: Bit field of board cells that the boxes may stand on.

        Returns:
            For each optimum that occurs, the set of positions with it, for ``pick``.
        """
        everywhere = (1 << self._grid.num_cells) - 1
        sets = {0: self._grid.positions(everywhere, self._squeeze(boxes))}
        for weight, plane in enumerate(self._planes):
            bits = int.from_bytes(plane, "little")
            halves = [(moves, found & bits, found & ~bits) for moves, found in sets.items()]
            sets = {moves | 1 << weight: high for moves, high, _ in halves if high}
            sets.update((moves, low) for moves, _, low in halves if low)
        return {moves - 1: found for moves, found in sets.items() if moves}

    def pick(self, positions: int, rank: int) -> State:
        """Return the position of a set with ``rank`` smaller ones, 0 ≤ rank < ``bit_count()``."""
        bit, player = divmod(nth_cell(positions, rank), self._grid.num_cells)
        boxes = 0
        for _ in range(self._grid.num_boxes):
            bit, box = divmod(bit, self._grid.num_cells)
            boxes |= 1 << self._cells[box]
        return State(boxes, self._cells[player])

    def _moved_back(self, layer: int) -> int:
        """Return the grid positions from which one move leads into a set."""
        found = 0
        for undo in self._grid.undo:
            before = layer >> undo.walk if undo.walk > 0 else layer << -undo.walk
            for ahead, shift in undo.pulls:
                pulled = layer & ahead
                before |= pulled >> shift if shift > 0 else pulled << -shift
            found |= before & undo.guard
        return found

    def _index(self, state: State) -> int:
        """Return the bit of a position."""
        slots, boxes, unit = self._slots, state.boxes, self._grid.num_cells
        index, scale = slots[state.player], unit
        while boxes:
            low = boxes & -boxes
            index += slots[low.bit_length() - 1] * scale
            scale *= unit
            boxes ^= low
        return index

    def _squeeze(self, field: int) -> int:
        """Return the grid form of a bit field of the board."""
        return sum(1 << slot for slot, cell in enumerate(self._cells) if field >> cell & 1)


@lru_cache(maxsize=64)
def distances(layout: Layout, num_boxes: int) -> Distances | None:
    """Tabulate the optimum of every position of a layout.

    The last few tables are kept, so asking again for the level just made costs nothing.

    Args:
        layout: Walls and targets; as many targets as boxes.
        num_boxes: Number of boxes.

    Returns:
        The table, or None if it would take more than ``MAX_TABLE_BITS`` bits: the number of cells
        of the floor's bounding box to the power ``num_boxes + 1``.

    Raises:
        ValueError: If the number of boxes is not the number of targets.
    """
    if num_boxes != layout.targets.bit_count():
        raise ValueError(
            f"{num_boxes} boxes for {layout.targets.bit_count()} targets: the numbers must agree"
        )
    crop = _crop(layout)
    if (crop[2] * crop[3]) ** (num_boxes + 1) > MAX_TABLE_BITS:
        return None
    return Distances(layout, num_boxes, crop)


def _crop(layout: Layout) -> tuple[int, int, int, int]:
    """Return the first row and column, the height and the width of the floor's bounding box."""
    ones = (1 << layout.width) - 1
    rows = [ones & ~(layout.walls >> row * layout.width) for row in range(layout.height)]
    used = [row for row, cells in enumerate(rows) if cells]
    cols = 0
    for cells in rows:
        cols |= cells
    left = (cols & -cols).bit_length() - 1
    return used[0], left, used[-1] - used[0] + 1, cols.bit_length() - left


@lru_cache(maxsize=256)
def _frame(
    height: int, width: int, crop: tuple[int, int, int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the board cell of each grid cell, and the grid cell of each board cell (0 outside)."""
    top, left, num_rows, num_cols = crop
    cells = tuple((top + row) * width + left + col for row in range(num_rows) for col in range(num_cols))
    slots = [0] * (height * width)
    for slot, cell in enumerate(cells):
        slots[cell] = slot
    return cells, tuple(slots)
