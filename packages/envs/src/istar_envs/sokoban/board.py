"""Sokoban rules as pure functions on integers.

A board is a bit field: cell (row, col) is bit ``row * width + col``. The fixed part (walls and
targets) is a ``Layout``, the moving part (boxes and player) a ``State``. Not here: drawing, levels,
rewards.
"""

from dataclasses import dataclass
from typing import Final

from istar_envs.sokoban.bits import cells_of

UP, DOWN, LEFT, RIGHT = range(4)
ACTION_NAMES: Final = ("up", "down", "left", "right")
"""Names of the four actions, by code; the only table of codes in the package."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What never moves.

    Attributes:
        height: Rows, border included.
        width: Columns, border included.
        walls: Bit field of walls; cells outside the level count as walls.
        targets: Bit field of targets.
    """

    height: int
    width: int
    walls: int
    targets: int

    @property
    def offsets(self) -> tuple[int, int, int, int]:
        """Change of cell index for up, down, left, right."""
        return (-self.width, self.width, -1, 1)


@dataclass(frozen=True, slots=True)
class State:
    """What moves.

    Attributes:
        boxes: Bit field of boxes.
        player: Cell index of the player.
    """

    boxes: int
    player: int


def move(layout: Layout, state: State, action: int) -> State:
    """Apply one action; a blocked move returns the state itself.

    The player steps onto free cells and pushes one box into a free cell. Layouts are closed by
    walls, which readers and generators guarantee, so no index leaves the board.

    Args:
        layout: Walls and targets.
        state: Boxes and player before the action.
        action: 0 up, 1 down, 2 left, 3 right.

    Returns:
        The state after the action (the same object if nothing moved).
    """
    offset = layout.offsets[action]
    ahead = state.player + offset
    if layout.walls >> ahead & 1:
        return state
    if not state.boxes >> ahead & 1:
        return State(state.boxes, ahead)
    behind = ahead + offset
    if (layout.walls | state.boxes) >> behind & 1:
        return state
    return State(state.boxes ^ (1 << ahead | 1 << behind), ahead)


def is_solved(layout: Layout, state: State) -> bool:
    """Whether every target holds a box."""
    return layout.targets & ~state.boxes == 0


def to_text(layout: Layout, state: State, floor: str = "-") -> str:
    """Draw a board in XSB characters, rows joined by newlines.

    ``#`` wall, ``-`` floor, ``.`` target, ``$`` box, ``*`` box on target, ``@`` player,
    ``+`` player on target.
    """
    num_cells = layout.height * layout.width
    chars = ["#" if bit == "1" else floor for bit in reversed(f"{layout.walls:0{num_cells}b}")]
    for cell in cells_of(layout.targets):
        chars[cell] = "."
    for cell in cells_of(state.boxes):
        chars[cell] = "*" if chars[cell] == "." else "$"
    chars[state.player] = "+" if chars[state.player] == "." else "@"
    text = "".join(chars)
    return "\n".join(text[start : start + layout.width] for start in range(0, num_cells, layout.width))
