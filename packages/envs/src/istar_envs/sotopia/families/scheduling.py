"""Scheduling: two people find a time at which both can come, and that suits each of them."""

from typing import Final

from istar_envs.seeding import CounterRng
from istar_envs.sotopia.families.drawing import listed, pick, sample, word_lists
from istar_envs.sotopia.families.setting import make_setting, stream
from istar_envs.sotopia.records import Relationship, Setting
from istar_envs.sotopia.stakes import SchedulingStakes

NUM_SLOTS: Final = 6
"""Times that can be proposed."""

BEST: Final = 10
"""Points of the best time of each seat."""

_ORDERS: Final = ((10, 7, 4, 2), (10, 8, 5, 3), (10, 6, 5, 1), (10, 9, 4, 1))
_FAIR: Final = 5
_NUM_SHARED: Final = 2


def generate(seed: int) -> Setting:
    """Make the meeting of a seed.

    Of six times each seat can come at four and is busy at two. They share two or more; the best times differ
    and at least one shared time is worth half of the best to both.

    Args:
        seed: Any integer; equal seeds give equal settings everywhere.
    """
    rng = stream(seed, "scheduling")
    words = word_lists("scheduling")
    stakes = _draw_stakes(rng)
    first, second = (pick(rng, words["goals"]).format(points=_told(stakes, seat)) for seat in (0, 1))
    return make_setting(
        rng,
        f"scheduling#{seed}",
        Relationship.ACQUAINTANCE,
        context=pick(rng, words["contexts"]).format(slots=listed(stakes.slots)),
        goals=(first, second),
        stakes=stakes,
    )


def _draw_stakes(rng: CounterRng) -> SchedulingStakes:
    """Draw calendars until the best times differ and a fair one is shared; most draws do."""
    words = word_lists("scheduling")
    days = words["days"]
    calendar = [(day, hour) for day in range(len(days)) for hour in range(len(words["times"]))]
    slots = tuple(
        f"{days[day]} {words['times'][hour]}" for day, hour in sorted(sample(rng, calendar, NUM_SLOTS))
    )
    while True:
        values = (_draw_values(rng), _draw_values(rng))
        both = tuple(zip(*values, strict=True))
        is_fair = any(min(pair) >= _FAIR for pair in both)
        if is_fair and sum(min(pair) > 0 for pair in both) >= _NUM_SHARED and (BEST, BEST) not in both:
            break
    first, second = (
        tuple(slot for slot, value in zip(slots, row, strict=True) if value == 0) for row in values
    )
    return SchedulingStakes(slots, (first, second), values)


def _draw_values(rng: CounterRng) -> tuple[int, ...]:
    """Draw the points of each time; 0 is busy."""
    points = [*pick(rng, _ORDERS)]
    return tuple(sample(rng, [*points, *[0] * (NUM_SLOTS - len(points))], NUM_SLOTS))


def _told(stakes: SchedulingStakes, seat: int) -> str:
    """Tell a seat its points, best first: ``Monday 10:00 is worth 10 points, Friday 8:00 4``."""
    free = sorted(
        (pair for pair in zip(stakes.values[seat], stakes.slots, strict=True) if pair[0]), reverse=True
    )
    (value, best), *others = free
    return listed([f"{best} is worth {value} points", *(f"{slot} {value}" for value, slot in others)])
