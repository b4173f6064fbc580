"""The stakes that the texts of 30 published scenarios state: points, target prices, a friend in common.

Reads trusted text by fixed patterns; what a pattern does not find is not guessed.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from istar_envs.sotopia.records import ENVIRONMENT, Scenario, Text
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, Friend, FriendsStakes, Stakes

_COUNTED: Final = re.compile(r"\b(\d+) ([a-z]+)")
_AMOUNT: Final = re.compile(r"\$(\d[\d,]*(?:\.\d+)?)")
_ROLE: Final = re.compile(r"\b(buyer|seller)\b")
_ITEM: Final = re.compile(r"\b(?:offering|selling|put up) (?:an? |the |their )?(.+?) for ")
_FRIEND: Final = re.compile(r"^ *(\w[^:\n]*): (.+)$", re.MULTILINE)
_ANSWER: Final = re.compile(r"common friends?: ([^.,]+)\.")


def stated_stakes(scenario: Scenario) -> Stakes | None:
    """Return what a verifier can check in a published scenario.

    Args:
        scenario: A scenario with the source name and texts of the published files.

    Returns:
        The stakes, or ``None`` if the texts do not state them.
    """
    read = _READERS.get(scenario.source)
    return read(scenario) if read else None


def _division(scenario: Scenario) -> DivisionStakes | None:
    """Read counts from the context and points from the goals."""
    items = tuple(
        (name.removesuffix("s"), int(count)) for count, name in _COUNTED.findall(_joined(scenario.context))
    )
    first, second = (_points(_joined(goal), items) for goal in scenario.goals)
    if not items or first is None or second is None:
        return None
    return DivisionStakes(items, (first, second))


def _points(goal: str, items: tuple[tuple[str, int], ...]) -> tuple[int, ...] | None:
    found = [re.search(rf"\b{name}s?\b\D*(\d+) points?\b", goal, re.IGNORECASE) for name, _ in items]
    return tuple(int(match[1]) for match in found if match) if all(found) else None


def _bargain(scenario: Scenario) -> BargainStakes | None:
    """Read the list price and the two target prices.

    The texts punish a price "significantly" worse than the target without saying where nothing is left.
    Here that is the list price for the buyer, and for the seller the price as far below the seller's
    target as the list price is above it.
    """
    item = _ITEM.search(_joined(scenario.context))
    list_price = _amount(_joined(scenario.context))
    goals = tuple(_joined(goal) for goal in scenario.goals)
    roles = [role[1] for goal in goals if (role := _ROLE.search(goal))]
    first, second = (_amount(goal) for goal in goals)
    if not item or list_price is None or first is None or second is None:
        return None
    if sorted(roles) != ["buyer", "seller"]:
        return None
    seller = roles.index("seller")
    floor = max(0.0, round(2 * (first, second)[seller] - list_price, 2))
    reserves = (floor, list_price) if seller == 0 else (list_price, floor)
    return BargainStakes(item[1], list_price, seller, (first, second), reserves)


def _amount(text: str) -> float | None:
    amount = _AMOUNT.search(text)
    return float(amount[1].replace(",", "")) if amount else None


def _friends(scenario: Scenario) -> FriendsStakes | None:
    """Read both lists of friends and the answer that only the judge reads."""
    hidden = "".join(piece.text for piece in scenario.context if piece.viewer == ENVIRONMENT)
    answer = _ANSWER.search(hidden)
    first, second = (_listed_friends(_joined(goal)) for goal in scenario.goals)
    common = {friend.name for friend in first} & {friend.name for friend in second}
    if answer is None or common != {answer[1]}:
        return None
    return FriendsStakes((first, second), answer[1])


def _listed_friends(goal: str) -> tuple[Friend, ...]:
    return tuple(Friend(name, _attributes(facts)) for name, facts in _FRIEND.findall(goal))


def _attributes(facts: str) -> tuple[tuple[str, str], ...]:
    """Cut ``Hobby: Chess  School: Elm`` at its double spaces."""
    pairs = (fact.partition(": ") for fact in re.split(r"\s{2,}", facts.strip()))
    return tuple((kind, value) for kind, _, value in pairs)


def _joined(text: Text) -> str:
    return "".join(piece.text for piece in text)


_READERS: Final[Mapping[str, Callable[[Scenario], Stakes | None]]] = {
    "deal-or-no-deal": _division,
    "craigslist_bargains": _bargain,
    "mutual_friends": _friends,
}
