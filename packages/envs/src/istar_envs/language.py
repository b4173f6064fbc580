"""How a world speaks with a language model: the protocol that ``agent.py`` builds on.

A world says who the player is, shows its observation as text or picture, and turns the text of an
action into its native action. It never sees prompts, tags or tokens.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

RECORDED_INFO: Final = ("score", "success")
"""Keys of ``info`` that every record of a step holds."""


@dataclass(frozen=True, slots=True)
class InvalidAction:
    """A reply that is no legal action; an outcome, never an exception.

    Attributes:
        reason: What was wrong, in words that can be shown to a person or the model.
    """

    reason: str


class Language(Protocol):
    """What an environment offers to be played by a language model (``env.unwrapped.language``).

    It may also have ``recorded_info``, the keys of ``info`` that belong in the record of a step; the default
    is ``RECORDED_INFO``.

    Attributes:
        role: Who the agent is, the rules, the legend and how actions are written: the part of the
            prompt that never changes.
    """

    role: str

    def text(self, observation: Any, info: dict[str, Any]) -> str:
        """Write an observation as text."""
        ...

    def image(self, observation: Any, info: dict[str, Any]) -> NDArray[np.uint8] | None:
        """Return the picture of an observation, uint8[height, width, 3], or None."""
        ...

    def action(self, text: str, info: dict[str, Any]) -> Any | InvalidAction:
        """Turn the text of one action into the native action; never raises."""
        ...

    def name(self, action: Any) -> str:
        """Write a native action as text; the inverse of ``action``."""
        ...


class TextPlayable(Protocol):
    """An environment whose ``unwrapped`` object a language model can play.

    It may also have ``truncate()``, which ends the episode at a limit of the agent's and returns what a step
    would; worlds that find their verdict at the end need it.
    """

    language: Language

    def invalid_step(self, reason: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Spend one step without changing anything, as ``step`` would return it."""
        ...
