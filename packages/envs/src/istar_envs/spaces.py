"""Gymnasium spaces of free text.

Gymnasium's own ``Text`` has a fixed alphabet and length; a page and a model's words have neither.
"""

from collections.abc import Iterable
from typing import Any, Final

import gymnasium as gym

_WORDS: Final = ("black", "blue", "bottle", "cotton", "cream", "gift", "kitchen", "large", "pack", "shirt")


class AnyText(gym.Space[str]):
    """Every string; ``sample`` gives a few random words."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: text has no fixed length."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return one to three random words."""
        return " ".join(
            _WORDS[i] for i in self.np_random.integers(len(_WORDS), size=self.np_random.integers(1, 4))
        )

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string."""
        return isinstance(x, str)

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Return the strings themselves."""
        return list(sample_n)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    __hash__ = None  # type: ignore[assignment]
