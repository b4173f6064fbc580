"""The language of commitments: which physical actions bind, and what they say.

An action binds iff its words are exactly one of

    propose TERMS        accept        reject

in any case and spacing. ``TERMS`` are by family a price (``propose 120``), the share that the speaker would
get (``propose 2 books, 1 hat``; the rest goes to the partner), a name (``propose mara``) or a time
(``propose tuesday 14:00``). Everything else, said or done, commits nobody.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from istar_envs.actions import shorten
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, FriendsStakes, SchedulingStakes, Stakes

Terms = float | tuple[int, ...] | str
"""A price; how many of each thing the speaker gets; a name; a time. The last two in lower case."""

NOTHING: Final = "nothing"
"""How a share without any things is written."""

_MAX_LENGTH: Final = 200
_PRICE: Final = re.compile(r"\$?([0-9]{1,9}(?:\.[0-9]{1,2})?)")
_PART: Final = re.compile(r"([0-9]{1,3}) (.+)")
_BETWEEN_PARTS: Final = re.compile(r", and |, | and ")
_NAME: Final = re.compile(r"[^\W\d_](?:[^\W\d_]|[ '.-]){0,59}")


@dataclass(frozen=True, slots=True)
class Move:
    """An action that binds.

    Attributes:
        kind: What is done.
        terms: What is proposed; ``None`` unless ``kind`` is ``"propose"``.
    """

    kind: Literal["propose", "accept", "reject"]
    terms: Terms | None = None


@dataclass(frozen=True, slots=True)
class InvalidMove:
    """An action that does not bind; an outcome, never an exception.

    Attributes:
        reason: Why not, in words that can be shown to a person or the model.
    """

    reason: str


def parse_move(argument: str, stakes: Stakes) -> Move | InvalidMove:
    """Read the words of a physical action; never raises.

    Args:
        argument: Text of the action, of any length and content.
        stakes: What the setting is about.

    Returns:
        The move, or why the action binds nobody.

    Example:
        >>> parse_move("Propose 120", BargainStakes("bike", 150, 0, (140, 90), (80, 130)))
        Move(kind='propose', terms=120.0)
    """
    if len(argument) > _MAX_LENGTH:
        return InvalidMove(f"a move has at most {_MAX_LENGTH} characters")
    return _read_move(argument, stakes)


def write_move(move: Move, stakes: Stakes) -> str:
    """Write a move so that ``parse_move`` reads it back.

    Example:
        >>> things = (("hat", 3), ("pen", 1), ("cup", 1))
        >>> write_move(Move("propose", (2, 0, 1)), DivisionStakes(things, ((1, 2, 1), (2, 1, 1))))
        'propose 2 hats, 1 cup'
    """
    return move.kind if move.terms is None else f"{move.kind} {write_terms(move.terms, stakes)}"


def write_terms(terms: Terms, stakes: Stakes) -> str:
    """Write terms as they stand in a proposal."""
    if isinstance(stakes, DivisionStakes) and isinstance(terms, tuple):
        return counted(terms, stakes) or NOTHING
    if isinstance(terms, float):
        return f"{terms:.0f}" if terms.is_integer() else f"{terms:.2f}"
    return str(terms)


def counted(counts: tuple[int, ...], stakes: DivisionStakes) -> str:
    """Write how many of each thing, without those of which there are none: ``2 hats, 1 cup``."""
    parts = zip(counts, stakes.items, strict=True)
    return ", ".join(f"{count} {name if count == 1 else plural(name)}" for count, (name, _) in parts if count)


def plural(name: str) -> str:
    """Return the plural of a thing's name as the moves write it."""
    return f"{name}es" if name.endswith(("s", "x", "ch", "sh")) else f"{name}s"


def describe_moves(stakes: Stakes) -> str:
    """Say in one line which moves there are.

    Example:
        >>> describe_moves(FriendsStakes(((), ()), "Mara"))
        'propose NAME | accept | reject'
    """
    match stakes:
        case BargainStakes():
            terms = "PRICE"
        case DivisionStakes():
            terms = "COUNT THING, COUNT THING (what you get)"
        case FriendsStakes():
            terms = "NAME"
        case SchedulingStakes():
            terms = "DAY TIME"
    return f"propose {terms} | accept | reject"


@lru_cache(maxsize=4096)
def _read_move(argument: str, stakes: Stakes) -> Move | InvalidMove:
    words = _plain(argument)
    if words == "accept":
        return Move("accept")
    if words == "reject":
        return Move("reject")
    verb, _, rest = words.partition(" ")
    if verb != "propose" or not rest:
        return InvalidMove(f"{shorten(argument)} is no move; moves are: {describe_moves(stakes)}")
    terms = _read_terms(rest, stakes)
    return terms if isinstance(terms, InvalidMove) else Move("propose", terms)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _read_terms(words: str, stakes: Stakes) -> Terms | InvalidMove:
    match stakes:
        case BargainStakes():
            price = _PRICE.fullmatch(words)
            return float(price[1]) if price else InvalidMove(f"{shorten(words)} is no price such as 120")
        case DivisionStakes():
            return _read_share(words, stakes)
        case FriendsStakes():
            return words if _NAME.fullmatch(words) else InvalidMove(f"{shorten(words)} is no name")
        case SchedulingStakes():
            known = {_plain(slot) for slot in stakes.slots}
            return words if words in known else InvalidMove(f"{shorten(words)} is none of the times")


def _read_share(words: str, stakes: DivisionStakes) -> tuple[int, ...] | InvalidMove:
    """Read ``2 hats, 1 cup``; things that are not named stay with the partner."""
    if words == NOTHING:
        return (0,) * len(stakes.items)
    things = _things(stakes)
    share: dict[str, int] = {}
    for part in _BETWEEN_PARTS.split(words):
        match = _PART.fullmatch(part)
        name = things.get(match[2]) if match else None
        if match is None or name is None:
            return InvalidMove(f"{shorten(part)} is no count of a thing such as {_example(stakes)}")
        if name in share:
            return InvalidMove(f"{name!r} is named twice")
        share[name] = int(match[1])
    for name, count in stakes.items:
        if share.get(name, 0) > count:
            return InvalidMove(f"there is no {share[name]} {plural(name)}: only {count}")
    return tuple(share.get(name, 0) for name, _ in stakes.items)


@lru_cache(maxsize=256)
def _things(stakes: DivisionStakes) -> dict[str, str]:
    """Return the name of each thing by the words for one and for several of it."""
    return {form: name for name, _ in stakes.items for form in (_plain(name), _plain(plural(name)))}


def _example(stakes: DivisionStakes) -> str:
    return f"'1 {stakes.items[0][0]}'"
