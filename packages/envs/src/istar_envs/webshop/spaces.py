"""Gymnasium spaces of a shop: actions as text, and pages as a dictionary."""

from collections.abc import Sequence
from typing import Any, Final

import gymnasium as gym

from istar_envs.spaces import AnyText

_BUTTONS: Final = (
    "back to search",
    "< prev",
    "next >",
    "description",
    "features",
    "buy now",
)


class ShopActions(AnyText):
    """Every string is an action, though few do something; ``sample`` writes searches and clicks.

    Args:
        asins: Product ids that ``sample`` may click.
        seed: Seed of ``sample``.
    """

    def __init__(self, asins: Sequence[str] = (), seed: int | None = None) -> None:
        super().__init__(seed)
        self.asins = tuple(asins)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a random search or click; it need not be possible on the present page."""
        kind = self.np_random.integers(3)
        if kind == 0:
            return f"search[{super().sample()}]"
        choices = self.asins if kind == 1 and self.asins else _BUTTONS
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
