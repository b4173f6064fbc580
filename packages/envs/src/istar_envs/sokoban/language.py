"""Sokoban in words: the rules as told to a model, the board as text, and action words.

The reply format (tags, thoughts) is not here; this only knows what one action is called.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from istar_envs.language import InvalidAction
from istar_envs.sokoban.board import ACTION_NAMES, DOWN, LEFT, RIGHT, UP
from istar_envs.sokoban.cells import to_chars

SYNONYMS = {
    "up": UP, "u": UP, "north": UP,
    "down": DOWN, "d": DOWN, "south": DOWN,
    "left": LEFT, "l": LEFT, "west": LEFT,
    "right": RIGHT, "r": RIGHT, "east": RIGHT,
}  # fmt: skip
"""Every word that names an action, in lower case."""

_RULES = (
    "You are the warehouse keeper in a game of Sokoban. Bring every box onto a target.\n"
    "Each action walks one cell. Walking into a box pushes it one cell further, if that cell is free: "
    "a wall or a second box behind it blocks the push. Boxes cannot be pulled, so a box pushed into a "
    "corner that is no target is lost for good.\n"
)
_TEXT_LEGEND = (
    "The board is drawn with one character per cell:\n"
    "# wall, - floor, . target, $ box, * box on a target, @ you, + you on a target\n"
)
_IMAGE_LEGEND = (
    "The picture shows the board seen from above. Dark bricks are walls, plain light tiles are floor, a red "
    "ring is a target. A brown crate is a box; a green crate with a tick is a box that stands on a target. "
    "The round blue figure is you; standing on a target it has the red ring around it.\n"
)
_NUMBERS = (
    "The numbers on the border count columns from the left and rows from the top, the border being 0.\n"
)
_ACTIONS = "The actions are: up, down, left, right."
_LONGEST_ECHO = 40


class SokobanLanguage:
    """Speaks Sokoban with a language model.

    Args:
        visual: Show pictures instead of text.
        coordinates: Say that the pictures have numbers on the border.

    Attributes:
        role: Rules, legend and action words; never changes during play.
        visual: As given.
        coordinates: As given.
    """

    def __init__(self, *, visual: bool = False, coordinates: bool = False) -> None:
        self.visual = visual
        self.coordinates = coordinates
        legend = (_IMAGE_LEGEND if visual else _TEXT_LEGEND) + (_NUMBERS if visual and coordinates else "")
        self.role = _RULES + legend + _ACTIONS

    def text(self, observation: NDArray[np.uint8], info: dict[str, Any]) -> str:
        """Write the board in XSB characters, rows joined by newlines; "" when pictures are shown.

        Args:
            observation: uint8[height, width] of cell codes, or a picture.
            info: Facts of the step; not needed here.
        """
        if self.visual:
            return ""
        chars, width = to_chars(observation.tobytes()), observation.shape[1]
        return "\n".join(chars[i : i + width] for i in range(0, len(chars), width))

    def image(self, observation: NDArray[np.uint8], info: dict[str, Any]) -> NDArray[np.uint8] | None:
        """Return the picture of the board, uint8[height, width, 3], or None when text is shown."""
        return observation if self.visual else None

    def action(self, text: str, info: dict[str, Any]) -> int | InvalidAction:
        """Read one action word; the whole text must be that word, in any case.

        Args:
            text: What the model wrote as its action.
            info: Facts of the step; not needed here.

        Returns:
            The action code, or the reason why there is none. Never raises.
        """
        word = text.strip().lower()
        code = SYNONYMS.get(word)
        if code is not None:
            return code
        if not word:
            return InvalidAction("no action given; write one of up, down, left, right")
        shown = word if len(word) <= _LONGEST_ECHO else word[:_LONGEST_ECHO] + "…"
        return InvalidAction(f"unknown action {shown!r}; write one of up, down, left, right")

    def name(self, action: int) -> str:
        """Return the word for an action code.

        Raises:
            ValueError: If the code is not 0–3.
        """
        if not 0 <= action < len(ACTION_NAMES):
            raise ValueError(f"action code must be 0..3, got {action}")
        return ACTION_NAMES[action]
