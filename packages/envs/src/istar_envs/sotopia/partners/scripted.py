"""Scripted people that bargain, divide, schedule and look for a friend.

They are pure functions of what happened so far, the task id and the turn: the same in any process. Talk
matters to them: steps and reasons bring them to give way, repetition does not, insults and low-balls make
them stiffer until they leave. They never propose or accept what is worth less to them than their floor.
"""

from dataclasses import dataclass
from typing import Final

from istar_envs.errors import ConfigError
from istar_envs.sotopia.dialogue import Action
from istar_envs.sotopia.families.moves import Move, Terms, write_move
from istar_envs.sotopia.families.outcome import Proposal, Table, read_table, worth
from istar_envs.sotopia.partners.base import PartnerView
from istar_envs.sotopia.partners.character import Character, Style, character_of
from istar_envs.sotopia.partners.friend_finder import find_friend
from istar_envs.sotopia.partners.interests import best_terms, hope
from istar_envs.sotopia.partners.mood import MIN_STEP, Mood, mood_after
from istar_envs.sotopia.partners.reasons import next_reason, role_of
from istar_envs.sotopia.partners.wording import COMMON, sentence
from istar_envs.sotopia.stakes import BargainStakes, FriendsStakes, SchedulingStakes, Stakes

LEAVE: Final = Action("leave")
"""Going away for good."""

_CLOSING_TURNS: Final = 2
_CLOSING_DISCOUNT: Final = 0.1


@dataclass(frozen=True)
class ScriptedPartner:
    """A scripted person for settings with stakes, in either seat.

    Attributes:
        style: When it gives way in a negotiation, or None to draw that from the task.
    """

    style: Style | None = None

    @property
    def name(self) -> str:
        """``scripted-1``, with the style if one was chosen."""
        return f"scripted-1{f'-{self.style}' if self.style else ''}"

    def act(self, view: PartnerView) -> Action:
        """Choose an action.

        Raises:
            ConfigError: If the setting has no stakes.
        """
        stakes = stakes_of(view, self.name)
        character = character_of(view.setting.pk, view.seat, stakes, self.style)
        if isinstance(stakes, FriendsStakes):
            return find_friend(view, stakes, character.patience)
        return _Negotiation(view, stakes, character).act()


def stakes_of(view: PartnerView, name: str) -> Stakes:
    """Return the stakes of a setting.

    Raises:
        ConfigError: If it has none.
    """
    scenario = view.setting.scenario
    if scenario.stakes is None:
        raise ConfigError(
            f"partner {name!r} cannot play {view.setting.pk} ({scenario.source}): scripted people need "
            'stakes. Give a model as the partner, or play the scenarios "families".'
        )
    return scenario.stakes


def do(move: Move, stakes: Stakes) -> Action:
    """Make a move an action."""
    return Action("action", write_move(move, stakes))


class _Negotiation:
    """One decision of a negotiator."""

    def __init__(self, view: PartnerView, stakes: Stakes, character: Character) -> None:
        self.view = view
        self.stakes = stakes
        self.character = character
        self.mood: Mood = mood_after(view.events, stakes, view.seat, character, max_turns=view.max_turns)
        self.table: Table = read_table(stakes, view.events)
        self.aspiration = self.mood.aspiration(character.floor, hope(stakes, view.seat, self.mood.wishes))

    def act(self) -> Action:
        """Leave, accept, answer an affront, or propose what is now fit; else say something."""
        theirs = self.table.proposals[1 - self.view.seat]
        if self.mood.patience < 0:
            return LEAVE
        if theirs and self._is_good(theirs):
            return do(Move("accept"), self.stakes)
        if answer := self._answer():
            return answer
        return self._propose() or self._say(COMMON, self._remark())

    def _propose(self) -> Action | None:
        """Propose what is now fit; give a reason instead of saying the same twice."""
        seat, wishes = self.view.seat, self.mood.wishes
        terms = best_terms(self.stakes, seat, self.aspiration, wishes)
        if terms is None:
            return None
        if not self._is_step(terms) and (reason := next_reason(self.stakes, seat, self.view.events, wishes)):
            return Action("speak", reason)
        is_open = self.table.proposals[seat] is not None
        return None if is_open and not self._is_step(terms) else do(Move("propose", terms), self.stakes)

    def _is_good(self, theirs: Proposal) -> bool:
        """Whether to accept; in the last turns a little less will do."""
        is_closing = self.view.turn > self.view.max_turns - _CLOSING_TURNS
        wanted = self.aspiration - (_CLOSING_DISCOUNT if is_closing else 0.0)
        value = worth(self.stakes, self.view.seat, theirs.terms, theirs.seat)
        return value >= max(self.character.floor, wanted)

    def _answer(self) -> Action | None:
        """Greet, or answer what must not pass."""
        reaction, section = self.mood.reaction, role_of(self.stakes, self.view.seat)
        has_acted = any(event.seat == self.view.seat for event in self.view.events)
        if not has_acted and reaction in ("none", "idle"):
            return self._say(section, "greet")
        if reaction == "rude":
            return self._say(COMMON, "rude")
        if reaction == "lowball":
            return self._say(section, "lowball")
        if reaction == "busy":
            return self._say(section, "busy")
        return None

    def _is_step(self, terms: Terms) -> bool:
        """Whether terms differ enough from the last own proposal to be worth saying."""
        before, seat = self.mood.proposed, self.view.seat
        if before is None or before == terms or not isinstance(self.stakes, BargainStakes):
            return before != terms
        values = [worth(self.stakes, seat, proposed, seat) for proposed in (before, terms)]
        return abs(values[0] - values[1]) >= MIN_STEP

    def _remark(self) -> str:
        if self.mood.patience == 0:
            return "warning"
        return self.mood.reaction if self.mood.reaction in ("idle", "insisted") else "waiting"

    def _say(self, section: str, name: str) -> Action:
        task, turn = self.view.setting.pk, self.view.turn
        return Action("speak", sentence(section, name, task=task, turn=turn, item=self._topic()))

    def _topic(self) -> str:
        """Return what the sentence is about: the thing for sale, or the time that the other seat proposed."""
        if isinstance(self.stakes, BargainStakes):
            return self.stakes.item
        theirs = self.table.proposals[1 - self.view.seat]
        slots = self.stakes.slots if isinstance(self.stakes, SchedulingStakes) and theirs else ()
        return next((slot for slot in slots if theirs and slot.casefold() == theirs.terms), "then")
