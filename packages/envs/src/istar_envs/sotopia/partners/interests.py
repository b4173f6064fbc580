"""What a negotiator wants: the worth of terms to its own seat, and the terms to propose for a wanted worth.

Reads the stakes of its own seat only. Worth is 1 for the goal in full and 0 for nothing.
"""

import math
from collections.abc import Collection, Mapping
from itertools import product
from typing import Final

from istar_envs.sotopia.families.moves import Terms
from istar_envs.sotopia.families.outcome import rest, worth
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, SchedulingStakes, Stakes

Wishes = Mapping[str, float]
"""How much the partner seems to want a thing or time; below 0 if it does not, ``NEVER`` if it cannot."""

NEVER: Final = -100.0
"""The wish for a time at which the partner is busy."""

_BASE_WISH: Final = 0.5


def best_terms(
    stakes: Stakes, seat: int, aspiration: float, wishes: Wishes, *, asked: Collection[Terms] = ()
) -> Terms | None:
    """Choose what to propose.

    Args:
        stakes: What the setting is about.
        seat: Own seat.
        aspiration: Least worth to ask for, 1 for the goal in full.
        wishes: What the partner seems to want.
        asked: Shares and times not to choose.

    Returns:
        The terms that please the partner most among those worth enough, or None if there are none.
    """
    match stakes:
        case BargainStakes():
            return _price(stakes, seat, aspiration)
        case DivisionStakes():
            return _share(stakes, seat, aspiration, wishes, asked)
        case SchedulingStakes():
            return _time(stakes, seat, aspiration, wishes, asked)
    raise ValueError(f"{type(stakes).__name__} are not negotiated")


def hope(stakes: Stakes, seat: int, wishes: Wishes) -> float:
    """Return the most worth that is still possible: less than 1 once the partner is busy at the best time."""
    if not isinstance(stakes, SchedulingStakes):
        return 1.0
    times = (slot.casefold() for slot in stakes.slots)
    return max(
        (worth(stakes, seat, time, seat) for time in times if wishes.get(time, 0.0) > NEVER), default=0.0
    )


def _price(stakes: BargainStakes, seat: int, aspiration: float) -> float:
    """Return the whole price nearest to the wanted worth that is not worse for the seat."""
    reserve, target = stakes.reserves[seat], stakes.targets[seat]
    price = round(reserve + aspiration * (target - reserve), 6)
    return float(math.ceil(price) if seat == stakes.seller_seat else math.floor(price))


def _share(
    stakes: DivisionStakes, seat: int, aspiration: float, wishes: Wishes, asked: Collection[Terms]
) -> tuple[int, ...] | None:
    weights = [max(0.0, _BASE_WISH + wishes.get(name, 0.0)) for name, _ in stakes.items]
    key = {}
    for share in product(*(range(count + 1) for _, count in stakes.items)):
        value = worth(stakes, seat, share, seat)
        if value >= aspiration and share not in asked:
            left = zip(weights, rest(stakes, share), strict=True)
            key[share] = (sum(weight * count for weight, count in left), value)
    return max(key, key=key.__getitem__, default=None)


def _time(
    stakes: SchedulingStakes, seat: int, aspiration: float, wishes: Wishes, asked: Collection[Terms]
) -> str | None:
    key = {}
    for slot in (slot.casefold() for slot in stakes.slots if slot not in stakes.busy[seat]):
        value, wish = worth(stakes, seat, slot, seat), wishes.get(slot, 0.0)
        if value >= aspiration and wish > NEVER and slot not in asked:
            key[slot] = (wish, value)
    return max(key, key=key.__getitem__, default=None)
