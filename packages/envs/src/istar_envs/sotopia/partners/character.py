"""How a scripted negotiator is by nature; drawn from the task, or chosen."""

import math
from dataclasses import dataclass
from typing import Final, Literal

from istar_envs.seeding import CounterRng, derive_seed
from istar_envs.sotopia.families.drawing import between, pick
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, Stakes

Style = Literal["boulware", "linear", "conceder"]
"""When it gives way: late, steadily or early."""

STYLES: Final[tuple[Style, ...]] = ("boulware", "linear", "conceder")
"""Every style."""

_EXPONENTS: Final[dict[Style, float]] = {"boulware": 2.5, "linear": 1.0, "conceder": 0.5}
_TIT_FOR_TAT: Final = (0.3, 0.45, 0.6)


@dataclass(frozen=True, slots=True)
class Character:
    """How a scripted negotiator is by nature.

    Attributes:
        style: When it gives way.
        tit_for_tat: Share of each step of the other seat that it returns.
        patience: Idle, repeated or rude turns of the other seat until it leaves.
        floor: Worth below which it never proposes or accepts, 1 for its goal in full.
    """

    style: Style
    tit_for_tat: float
    patience: int
    floor: float

    def pace(self, progress: float) -> float:
        """Return which share of its time-bound concessions is due, from 0 at the start to 1 at the end."""
        return math.pow(min(1.0, progress), _EXPONENTS[self.style])


def character_of(task: str, seat: int, stakes: Stakes, style: Style | None = None) -> Character:
    """Draw the character that plays a seat of a task; the same one every time.

    Args:
        task: Task id.
        seat: The seat.
        stakes: What the setting is about; it decides how low the floor may be.
        style: The style, or None to draw it too.
    """
    rng = CounterRng(derive_seed(seat, "character", task))
    drawn = pick(rng, STYLES)
    match stakes:
        case BargainStakes():
            low, high = 8, 20
        case DivisionStakes():
            low, high = 30, 40
        case _:
            low, high = 20, 40
    return Character(
        style=style or drawn,
        tit_for_tat=pick(rng, _TIT_FOR_TAT),
        patience=between(rng, 3, 5),
        floor=between(rng, low, high) / 100,
    )
