"""Gymnasium spaces of a shop: pages as text or as a dictionary, and actions as text.

Gymnasium's own ``Text`` has a fixed alphabet and length; a page and a model's words have neither.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import gymnasium as gym

_BUTTONS: Final = (
    "back to search",
    "< prev",
    "next >",
    "description",
    "features",
    "buy now",
)
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


class ShopActions(AnyText):
    """Every string is an action, though few do something; ``sample`` writes searches and clicks.

    Args:
        asins: Product ids that ``sample`` may click.
        seed: Seed of ``sample``.
    """

    def __init__(self, asins: Sequence[str] = (), seed: int | None = None) -> None:
        super().__init__(seed)
        self._asins = tuple(asins)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a random search or click; it need not be possible on the present page."""
        kind = self.np_random.integers(3)
        if kind == 0:
            return f"search[{super().sample()}]"
        choices = self._asins if kind == 1 and self._asins else _BUTTONS
        return f"click[{choices[self.np_random.integers(len(choices))]}]"


class PageFacts(gym.Space[dict[str, Any]]):
    """Every dictionary with text keys: pages in ``structured`` form."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: pages differ in what they hold."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> dict[str, Any]:
        """Return an empty search page."""
        return {"page": "search", "instruction": ""}

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a dictionary with text keys."""
        return isinstance(x, dict) and all(isinstance(key, str) for key in x)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    __hash__ = None  # type: ignore[assignment]
