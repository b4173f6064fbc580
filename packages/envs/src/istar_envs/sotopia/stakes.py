"""What a verifier checks at the end of a dialogue: one frozen record per checkable family.

Pairs are by seat. Numbers and names only; the texts that tell the people about them are in the scenario.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class BargainStakes:
    """A price between a seller and a buyer.

    Attributes:
        item: What is sold.
        list_price: The price both sides have seen, in currency units.
        seller_seat: Seat that sells, 0 or 1.
        targets: Price each seat hopes for.
        reserves: Price at which a deal is worth nothing to each seat.
    """

    item: str
    list_price: float
    seller_seat: int
    targets: tuple[float, float]
    reserves: tuple[float, float]


@dataclass(frozen=True, slots=True)
class DivisionStakes:
    """Things to share out.

    Attributes:
        items: Name, in the singular, and count of each kind of thing.
        values: Points of one thing of each kind, by seat, in the order of ``items``.
    """

    items: tuple[tuple[str, int], ...]
    values: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Friend:
    """Somebody a seat knows, and what the seat knows about them.

    Attributes:
        name: Full name.
        attributes: Such as hobby or employer, as pairs of kind and value.
    """

    name: str
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FriendsStakes:
    """The one friend whom both seats know.

    Attributes:
        friends: The friends of each seat.
        answer: Full name of the friend in common.
    """

    friends: tuple[tuple[Friend, ...], tuple[Friend, ...]]
    answer: str


@dataclass(frozen=True, slots=True)
class SchedulingStakes:
    """A time for a meeting.

    Attributes:
        slots: The times that can be proposed, such as ``"tuesday 14:00"``.
        busy: Times at which each seat cannot come.
        values: Points of each slot, by seat, in the order of ``slots``.
    """

    slots: tuple[str, ...]
    busy: tuple[tuple[str, ...], tuple[str, ...]]
    values: tuple[tuple[int, ...], tuple[int, ...]]


Stakes = BargainStakes | DivisionStakes | FriendsStakes | SchedulingStakes
"""What any of the checkable families checks."""

_STAKES: TypeAdapter[Stakes] = TypeAdapter(Stakes)


def stakes_to_dict(stakes: Stakes) -> dict[str, Any]:
    """Return plain JSON-ready values that ``stakes_from_dict`` reads back to equal stakes."""
    return asdict(stakes)


def stakes_from_dict(values: Mapping[str, Any]) -> Stakes:
    """Read stakes of any family from their JSON form; the family shows in the names of the fields.

    Raises:
        pydantic.ValidationError: If the values are the stakes of no family.
    """
    return _STAKES.validate_python(dict(values))
