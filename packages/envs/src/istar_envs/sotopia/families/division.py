"""Item division: things of three kinds to share out, worth different points to each seat."""

from functools import lru_cache
from itertools import product
from typing import Final

from istar_envs.seeding import CounterRng
from istar_envs.sotopia.families.drawing import between, listed, pick, sample, with_article, word_lists
from istar_envs.sotopia.families.moves import plural
from istar_envs.sotopia.families.setting import make_setting, stream
from istar_envs.sotopia.records import Relationship, Setting
from istar_envs.sotopia.stakes import DivisionStakes

TOTAL: Final = 10
"""Points of everything together, for each seat."""

_FAIR: Final = 6
_KINDS: Final = 3


def generate(seed: int) -> Setting:
    """Make the division of a seed.

    There are three kinds of things, one to three of each. Each seat wants at least two of the kinds, each
    kind is wanted by somebody, and some way to share them gives both seats at least 6 of their 10 points.

    Args:
        seed: Any integer; equal seeds give equal settings everywhere.
    """
    rng = stream(seed, "division")
    words = word_lists("division")
    occasion = pick(rng, words["occasions"])
    names = sample(rng, occasion["things"], _KINDS)
    stakes = _draw_stakes(rng, names)
    things = listed([f"{count} {name if count == 1 else plural(name)}" for name, count in stakes.items])
    first, second = (pick(rng, words["goals"]).format(values=_told(stakes, seat)) for seat in (0, 1))
    return make_setting(
        rng,
        f"division#{seed}",
        Relationship.FRIEND,
        context=occasion["context"].format(things=things),
        goals=(first, second),
        stakes=stakes,
    )


def _draw_stakes(rng: CounterRng, names: list[str]) -> DivisionStakes:
    """Draw counts and values until the seats differ and a fair share exists; most draws do."""
    while True:
        counts = tuple(between(rng, 1, 3) for _ in names)
        values = _valuations(counts)
        if not values:
            continue
        first, second = pick(rng, values), pick(rng, values)
        if first != second and all(map(max, first, second)) and _can_be_fair(counts, first, second):
            return DivisionStakes(tuple(zip(names, counts, strict=True)), (first, second))


@lru_cache(maxsize=64)
def _valuations(counts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return all points per thing with which everything is worth ``TOTAL`` and at most one kind nothing."""
    choices = product(range(TOTAL + 1), repeat=len(counts))
    return tuple(values for values in choices if _points(counts, values) == TOTAL and values.count(0) <= 1)


def _can_be_fair(counts: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    shares = product(*(range(count + 1) for count in counts))
    return any(_points(share, first) >= _FAIR and TOTAL - _points(share, second) >= _FAIR for share in shares)


def _points(counts: tuple[int, ...], values: tuple[int, ...]) -> int:
    return sum(count * value for count, value in zip(counts, values, strict=True))


def _told(stakes: DivisionStakes, seat: int) -> str:
    """Tell a seat its points: ``a hat is worth 3 points, a ball 1 and a mug 0``."""
    points = [
        f"{with_article(name)} {value}"
        for (name, _), value in zip(stakes.items, stakes.values[seat], strict=True)
    ]
    head, _, value = points[0].rpartition(" ")
    return listed([f"{head} is worth {value} point{'' if value == '1' else 's'}", *points[1:]])
