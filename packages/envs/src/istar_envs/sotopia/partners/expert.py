"""A good negotiator for either seat: it shows how to play and how much there is to win.

It knows no more than its seat does, but it knows how people react: it asks for much, gives way in small
steps, gives a new reason now and then, listens for what the other wants, and takes a small gain at last
rather than none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from istar_envs.sotopia.dialogue import Action
from istar_envs.sotopia.families.moves import Move, Terms
from istar_envs.sotopia.families.outcome import read_table, worth
from istar_envs.sotopia.partners.base import PartnerView
from istar_envs.sotopia.partners.character import Character
from istar_envs.sotopia.partners.friend_finder import find_friend
from istar_envs.sotopia.partners.hearing import hear
from istar_envs.sotopia.partners.interests import Wishes, best_terms
from istar_envs.sotopia.partners.mood import mood_after
from istar_envs.sotopia.partners.reasons import next_reason
from istar_envs.sotopia.partners.scripted import do, stakes_of
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, FriendsStakes, SchedulingStakes, Stakes

_PATIENCE: Final = 99
_LEAST: Final = 0.05
_GIVES: Final[Mapping[type[Stakes], float]] = {
    BargainStakes: 0.35,
    DivisionStakes: 0.75,
    SchedulingStakes: 0.9,
}
"""Worth given up by the end of the dialogue, evenly over time."""

_LISTENER: Final = Character("linear", tit_for_tat=0.0, patience=_PATIENCE, floor=0.0)


@dataclass(frozen=True)
class ScriptedExpert:
    """A good policy for settings with stakes, in either seat."""

    name: str = "expert-1"

    def act(self, view: PartnerView) -> Action:
        """Choose an action.

        Raises:
            ConfigError: If the setting has no stakes.
        """
        stakes = stakes_of(view, self.name)
        if isinstance(stakes, FriendsStakes):
            return find_friend(view, stakes, _PATIENCE)
        return _negotiate(view, stakes)


def _negotiate(view: PartnerView, stakes: Stakes) -> Action:
    """Accept what is good enough, else ask for something new or give a reason, by turns."""
    theirs = read_table(stakes, view.events).proposals[1 - view.seat]
    offered = worth(stakes, view.seat, theirs.terms, theirs.seat) if theirs else 0.0
    aspiration = 1.0 - _GIVES[type(stakes)] * view.turn / view.max_turns
    is_last_chance = view.turn + 2 > view.max_turns
    if offered >= (_LEAST if is_last_chance else aspiration):
        return do(Move("accept"), stakes)
    mood = mood_after(view.events, stakes, view.seat, _LISTENER, max_turns=view.max_turns)
    if mood.reaction == "busy" and theirs:
        return Action("speak", f"I cannot come {theirs.terms}, I am busy.")
    num_acts = sum(event.seat == view.seat for event in view.events)
    reason = next_reason(stakes, view.seat, view.events, mood.wishes) if num_acts % 2 else None
    ask = None if reason else _next_ask(view, stakes, aspiration, mood.wishes)
    if ask is not None:
        return do(Move("propose", ask), stakes)
    return Action("speak", reason or "What would make this work for you?")


def _next_ask(view: PartnerView, stakes: Stakes, aspiration: float, wishes: Wishes) -> Terms | None:
    """Return terms that are worth enough, new if there are any such, and please the other seat most."""
    heard = (hear(event.action, stakes) for event in view.events if event.seat == view.seat)
    asked = [remark.terms for remark in heard if remark.terms is not None]
    fresh = best_terms(stakes, view.seat, aspiration, wishes, asked=asked)
    return fresh or best_terms(stakes, view.seat, aspiration, wishes)
