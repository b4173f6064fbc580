"""How a scripted negotiator takes what the other seat says and does.

A mood is worked out anew from the events each time, so negotiators remember nothing between turns.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from istar_envs.sotopia.dialogue import Event
from istar_envs.sotopia.families.moves import Terms
from istar_envs.sotopia.families.outcome import worth
from istar_envs.sotopia.partners.character import Character
from istar_envs.sotopia.partners.hearing import Remark, hear
from istar_envs.sotopia.partners.interests import NEVER
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, SchedulingStakes, Stakes

Reaction = Literal["none", "moved", "reasoned", "told", "insisted", "lowball", "busy", "rude", "idle"]
"""What the last action of the other seat was to the negotiator."""

TIME_SHARE: Final = 0.5
"""Concession that comes with time, if the other seat earns it turn by turn."""

REASON_SHARE: Final = 0.08
"""Concession for a reason not heard before."""

MAX_REASONS: Final = 3
"""Reasons that count."""

MIN_STEP: Final = 0.02
"""Smallest gain in worth that counts as a step."""

_STIFFENING: Final = {"rude": 0.1, "lowball": 0.05}
_IMPATIENCE: Final = {"rude": 2, "lowball": 1, "insisted": 1, "idle": 1}
_LOWBALL_PRICE: Final = -0.4
_LOWBALL_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Mood:
    """Where the negotiator stands.

    Attributes:
        granted: Share of the way from the goal in full down to the floor that it is ready to go.
        patience: Bad turns that it still bears; it leaves below 0.
        best: Worth of the best terms heard, or None.
        heard_at: Progress of the dialogue when it last heard the other seat, from 0 to 1.
        reasons: Reasons heard.
        wishes: What the other seat seems to want.
        proposed: What it last proposed itself, or None.
        reaction: What the last action of the other seat was to it.
    """

    patience: int
    granted: float = 0.0
    best: float | None = None
    heard_at: float = 0.0
    reasons: frozenset[str] = frozenset()
    wishes: Mapping[str, float] = field(default_factory=dict)
    proposed: Terms | None = None
    reaction: Reaction = "none"

    def aspiration(self, floor: float, hope: float) -> float:
        """Return the worth that it asks for now, between its floor and what it can still hope for."""
        return max(floor, hope - self.granted * (hope - floor))


def mood_after(
    events: Iterable[Event], stakes: Stakes, seat: int, character: Character, *, max_turns: int
) -> Mood:
    """Work out the mood of a seat from everything that the other seat did.

    Args:
        events: What happened, in order.
        stakes: What the setting is about.
        seat: Whose mood.
        character: How that seat is by nature.
        max_turns: Turns of the dialogue.
    """
    mood = Mood(character.patience)
    for event in events:
        remark = hear(event.action, stakes)
        if event.seat == seat:
            mood = mood if remark.terms is None else replace(mood, proposed=remark.terms)
        else:
            value = None if remark.terms is None else worth(stakes, seat, remark.terms, 1 - seat)
            mood = _take(mood, remark, value, stakes, character=character, progress=event.turn / max_turns)
    return mood


def _take(
    mood: Mood,
    remark: Remark,
    value: float | None,
    stakes: Stakes,
    *,
    character: Character,
    progress: float,
) -> Mood:
    """Take a remark; ``value`` is what its terms are worth to the own seat, or None without terms."""
    wishes = _wishes_after(mood, remark, stakes)
    reaction = _react(mood, remark, value, stakes, is_news=_is_news(mood, remark))
    is_greeting = reaction == "idle" and mood.heard_at == 0
    granted = mood.granted - _STIFFENING.get(reaction, 0.0)
    if reaction in ("moved", "reasoned", "told", "busy"):
        granted += TIME_SHARE * (character.pace(progress) - character.pace(mood.heard_at))
    if reaction == "moved" and value is not None and mood.best is not None:
        granted += character.tit_for_tat * max(0.0, value - mood.best)
    if _is_new_reason(mood, remark) and reaction != "rude":
        granted += REASON_SHARE
    return replace(
        mood,
        patience=mood.patience - (0 if is_greeting else _IMPATIENCE.get(reaction, 0)),
        granted=min(1.0, max(0.0, granted)),
        best=max((known for known in (value, mood.best) if known is not None), default=None),
        heard_at=progress,
        reasons=mood.reasons | ({remark.reason} if remark.reason else set()),
        wishes=wishes,
        reaction=reaction,
    )


def _react(mood: Mood, remark: Remark, value: float | None, stakes: Stakes, *, is_news: bool) -> Reaction:
    if remark.is_rude:
        return "rude"
    if value is not None:
        return _react_to_terms(mood, value, stakes, is_news=is_news)
    if _is_new_reason(mood, remark):
        return "reasoned"
    if is_news:
        return "told"
    return "insisted" if remark.is_reject or remark.wanted or remark.reason else "idle"


def _react_to_terms(mood: Mood, value: float, stakes: Stakes, *, is_news: bool) -> Reaction:
    if isinstance(stakes, SchedulingStakes):
        if not is_news:
            return "insisted"
        return "moved" if value > 0 else "busy"
    if value < (_LOWBALL_PRICE if isinstance(stakes, BargainStakes) else _LOWBALL_SHARE):
        return "lowball"
    return "moved" if mood.best is None or value >= mood.best + MIN_STEP else "insisted"


def _is_new_reason(mood: Mood, remark: Remark) -> bool:
    return remark.reason is not None and remark.reason not in mood.reasons and len(mood.reasons) < MAX_REASONS


def _is_news(mood: Mood, remark: Remark) -> bool:
    """Whether the other seat named a thing or time for the first time, or the other way round."""
    named = remark.wanted | ({remark.terms} if isinstance(remark.terms, str) else set())
    wanted = any(mood.wishes.get(name, 0.0) <= 0 for name in named)
    return wanted or any(mood.wishes.get(name, 0.0) >= 0 for name in remark.unwanted)


def _wishes_after(mood: Mood, remark: Remark, stakes: Stakes) -> dict[str, float]:
    """Note what the other seat asked for, said that it wants, rejected or cannot use."""
    noted = dict(mood.wishes)
    cannot = NEVER if isinstance(stakes, SchedulingStakes) else -1.0
    for name in remark.wanted:
        noted[name] = max(noted.get(name, 0.0), 1.0)
    for name in remark.unwanted:
        noted[name] = cannot
    if isinstance(stakes, DivisionStakes) and isinstance(remark.terms, tuple):
        for (name, count), taken in zip(stakes.items, remark.terms, strict=True):
            noted[name] = noted.get(name, 0.0) + (taken / count if count else 0.0)
    if isinstance(stakes, SchedulingStakes):
        if isinstance(mood.proposed, str) and (remark.is_reject or remark.terms not in (None, mood.proposed)):
            noted[mood.proposed] = noted.get(mood.proposed, 0.0) - 1.0
        if isinstance(remark.terms, str):
            noted[remark.terms] = max(noted.get(remark.terms, 0.0), 1.0)
    return noted
