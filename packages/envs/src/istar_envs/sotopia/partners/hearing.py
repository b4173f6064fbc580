"""What the scripted people understand of an action: words against short lists, in linear time.

They follow simple sentences, no more: a price is the last number, a thing or time is wanted or not by the
words around it, and a reason is what follows a word such as "because".
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from istar_envs.sotopia.dialogue import Action
from istar_envs.sotopia.families.moves import Move, Terms, parse_move, plural
from istar_envs.sotopia.partners.wording import lists
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, SchedulingStakes, Stakes

_HEARD_CHARACTERS: Final = 1000
_MIN_REASON_WORDS: Final = 3
_NUMBER: Final = re.compile(
    r"(?<![\w.:$])(\$?)([0-9]{1,7}(?:\.[0-9]{1,2})?)(?![\w:]|\.[0-9])( dollars?\b| bucks?\b)?"
)
_LIKELY_PRICES: Final = (0.3, 3.0)
_CLAUSE_END: Final = re.compile(r"[.,;!?] ?| but | while ")


@dataclass(frozen=True, slots=True)
class Remark:
    """What was understood of one action.

    Attributes:
        terms: What was proposed, bindingly or in words.
        is_reject: Whether a proposal was rejected.
        reason: The words of a stated reason, or None.
        is_rude: Whether it was an insult.
        wanted: Things or times that the speaker wants.
        unwanted: Things that the partner may have, or times at which the speaker cannot come.
    """

    terms: Terms | None = None
    is_reject: bool = False
    reason: str | None = None
    is_rude: bool = False
    wanted: frozenset[str] = frozenset()
    unwanted: frozenset[str] = frozenset()


@lru_cache(maxsize=1024)
def hear(action: Action, stakes: Stakes) -> Remark:
    """Understand an action of the other seat as far as the scripted people can; never raises."""
    if action.kind == "action":
        move = parse_move(action.argument, stakes)
        if isinstance(move, Move):
            return Remark(terms=move.terms, is_reject=move.kind == "reject")
    if action.kind not in ("speak", "action"):
        return Remark()
    words = plain_words(action.argument)
    wanted, unwanted = _wishes(words, stakes)
    return Remark(
        terms=_spoken_price(words, stakes.list_price) if isinstance(stakes, BargainStakes) else None,
        reason=_reason(words),
        is_rude=mentions(words, lists("heard")["rude"]),
        wanted=wanted,
        unwanted=unwanted,
    )


def plain_words(text: str) -> str:
    """Return the beginning of a text in lower case with single spaces and plain apostrophes."""
    return " ".join(text[:_HEARD_CHARACTERS].replace("’", "'").casefold().split())


def mentions(words: str, phrases: Collection[str]) -> bool:
    """Say whether one of some phrases stands in plain words, as whole words."""
    return _any_of(tuple(phrases)).search(words) is not None


def mentioned(words: str, phrases: Collection[str]) -> list[str]:
    """Return which phrases stand in plain words as whole words, in the order of the words."""
    return list(dict.fromkeys(match[0] for match in _any_of(tuple(phrases)).finditer(words)))


@lru_cache(maxsize=256)
def _any_of(phrases: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted((re.escape(phrase) for phrase in phrases), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)")


def _spoken_price(words: str, list_price: float) -> float | None:
    """Return the last number that is called an amount of money, or could be one by its size."""
    low, high = (factor * list_price for factor in _LIKELY_PRICES)
    prices = [
        float(number)
        for sign, number, unit in _NUMBER.findall(words)
        if sign or unit or low <= float(number) <= high
    ]
    return prices[-1] if prices else None


def _reason(words: str) -> str | None:
    found = _any_of(lists("heard")["reason"]).search(words)
    given = words[found.end() :].strip() if found else ""
    return given if len(given.split()) >= _MIN_REASON_WORDS else None


def _wishes(words: str, stakes: Stakes) -> tuple[frozenset[str], frozenset[str]]:
    """Return which things or times are wanted and which are not, clause by clause."""
    names = _names(stakes)
    wanted: set[str] = set()
    unwanted: set[str] = set()
    for clause in _CLAUSE_END.split(words) if names else ():
        is_against = mentions(clause, lists("heard")["against"])
        found = {names[form] for form in mentioned(clause, names)}
        (unwanted if is_against else wanted).update(found)
    return frozenset(wanted - unwanted), frozenset(unwanted)


def _names(stakes: Stakes) -> dict[str, str]:
    """Return the words for each thing or time and its own name."""
    match stakes:
        case DivisionStakes():
            return {
                form: name for name, _ in stakes.items for form in (name.casefold(), plural(name).casefold())
            }
        case SchedulingStakes():
            return {slot.casefold(): slot.casefold() for slot in stakes.slots}
        case _:
            return {}
