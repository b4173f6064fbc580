"""A scripted person that looks for a friend in common.

It describes its own friends by turns and listens to descriptions. A whole description that fits one of its
friends makes it propose that name; it accepts names of its own friends only. A name without a description of
the person is a guess, and a second guess is one too many.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from istar_envs.seeding import CounterRng, derive_seed
from istar_envs.sotopia.dialogue import Action, Event
from istar_envs.sotopia.families.drawing import sample, with_article
from istar_envs.sotopia.families.moves import Move, parse_move, write_move
from istar_envs.sotopia.families.outcome import read_table
from istar_envs.sotopia.partners.base import PartnerView
from istar_envs.sotopia.partners.hearing import mentioned, mentions, plain_words
from istar_envs.sotopia.partners.wording import COMMON, lists, sentence
from istar_envs.sotopia.stakes import Friend, FriendsStakes

Reaction = Literal[
    "none", "described", "named", "guessed", "listed", "too_much", "confirmed", "denied", "rude", "idle"
]
"""What an action of the other seat was."""

_IMPATIENCE: Final[dict[Reaction, int]] = {
    "guessed": 3,
    "listed": 3,
    "rude": 2,
    "too_much": 1,
    "confirmed": 1,
    "idle": 1,
}
_WHOLE: Final = 2
_SECTION: Final = "friends"


@dataclass(frozen=True, slots=True)
class _Heard:
    """What was understood of an action.

    Attributes:
        reaction: What it was.
        facts: Facts about a person that it told, in lower case.
        name: The one name that it said or proposed, in lower case.
    """

    reaction: Reaction = "none"
    facts: tuple[str, ...] = ()
    name: str = ""


def find_friend(view: PartnerView, stakes: FriendsStakes, patience: int) -> Action:
    """Choose an action in a search for the friend in common.

    Args:
        view: The dialogue from the own seat.
        stakes: What the setting is about; of the other seat's friends only the vocabulary is used.
        patience: What idle, rude and guessing turns of the other seat may cost until this one leaves.
    """
    return _Search(view, stakes).act(patience)


class _Search:
    """One decision in the search."""

    def __init__(self, view: PartnerView, stakes: FriendsStakes) -> None:
        self.view = view
        self.stakes = stakes
        self.own = {friend.name.casefold(): friend for friend in stakes.friends[view.seat]}
        everybody = [friend for row in stakes.friends for friend in row]
        self.names = tuple(sorted({friend.name.casefold() for friend in everybody}))
        self.facts = tuple(sorted({fact for friend in everybody for fact in _facts(friend)}))
        self.described: set[str] = set()
        self.told: list[frozenset[str]] = []
        self.heard: list[_Heard] = []
        for event in view.events:
            self._follow(event)

    def act(self, patience: int) -> Action:
        """Leave, accept, propose, or talk."""
        theirs = read_table(self.stakes, self.view.events).proposals[1 - self.view.seat]
        costs = sum(
            _IMPATIENCE.get(heard.reaction, 0)
            for position, heard in enumerate(self.heard)
            if position or heard.reaction != "idle"
        )
        if costs > patience:
            return Action("leave")
        if theirs:
            return self._do(Move("accept" if theirs.terms in self.own else "reject"))
        last = self.heard[-1] if self.heard else _Heard()
        if last.name in self.own:
            return self._do(Move("propose", last.name))
        if last.reaction == "described":
            return self._answer_description(last.facts)
        return self._talk(last.reaction, is_warning=costs == patience)

    def _follow(self, event: Event) -> None:
        """Take note of an event."""
        heard = self._hear(event)
        if event.seat == self.view.seat:
            self.told.append(frozenset(heard.facts))
        else:
            is_guess = heard.reaction == "named" and heard.name not in self.described
            self.heard.append(replace(heard, reaction="guessed") if is_guess else heard)
        fitting = self._fitting(heard.facts)
        if len(heard.facts) >= _WHOLE and len(fitting) == 1:
            self.described.update(fitting)

    def _fitting(self, facts: Sequence[str]) -> list[str]:
        """Return the own friends that all facts fit."""
        return [name for name, friend in self.own.items() if set(facts) <= set(_facts(friend))]

    def _answer_description(self, facts: Sequence[str]) -> Action:
        fitting = self._fitting(facts)
        if not fitting:
            return self._say("unknown", then_describe=True)
        if len(facts) < _WHOLE or len(fitting) > 1:
            return self._say("half")
        if any(set(facts) <= told for told in self.told):
            return self._say("ask_name")
        return self._do(Move("propose", fitting[0]))

    def _talk(self, reaction: Reaction, *, is_warning: bool) -> Action:
        if is_warning or reaction == "rude":
            return self._say("warning" if is_warning else "rude", section=COMMON)
        match reaction:
            case "listed" | "named" | "guessed":
                return self._say("lists")
            case "too_much":
                return self._say("too_much")
            case "confirmed":
                return self._say("ask_name")
            case "none":
                return self._say("greet")
            case _:
                return Action("speak", self._describe())

    def _hear(self, event: Event) -> _Heard:
        """Understand an action."""
        action = event.action
        if action.kind == "action":
            move = parse_move(action.argument, self.stakes)
            if isinstance(move, Move):
                return _Heard("denied") if move.terms is None else _Heard("named", name=str(move.terms))
        if action.kind not in ("speak", "action"):
            return _Heard("idle")
        words = plain_words(action.argument)
        names, facts = mentioned(words, self.names), tuple(mentioned(words, self.facts))
        if mentions(words, lists("heard")["rude"]):
            return _Heard("rude")
        if names:
            return _Heard("listed") if len(names) > 1 else _Heard("named", name=names[0])
        if facts:
            most = max(len(friend.attributes) for friend in self.own.values())
            return _Heard("described" if len(facts) <= most else "too_much", facts)
        return _Heard(_yes_or_no(words))

    def _describe(self) -> str:
        """Describe the next of the own friends, round and round."""
        order = sample(
            CounterRng(derive_seed(self.view.seat, "friends", self.view.setting.pk)),
            self.stakes.friends[self.view.seat],
            len(self.own),
        )
        num_told = sum(any(set(_facts(friend)) <= told for told in self.told) for friend in order)
        friend = order[num_told % len(order)]
        facts = dict(friend.attributes)
        if facts.keys() == {"job", "hobby"}:
            return self._sentence("describe", job=with_article(facts["job"]), hobby=facts["hobby"])
        return self._sentence(
            "describe_other", facts=", ".join(f"{kind} {value}" for kind, value in facts.items())
        )

    def _say(self, name: str, *, section: str = _SECTION, then_describe: bool = False) -> Action:
        words = self._sentence(name, section=section)
        return Action("speak", f"{words} {self._describe()}" if then_describe else words)

    def _sentence(self, name: str, *, section: str = _SECTION, **fillings: str) -> str:
        return sentence(section, name, task=self.view.setting.pk, turn=self.view.turn, **fillings)

    def _do(self, move: Move) -> Action:
        return Action("action", write_move(move, self.stakes))


def _facts(friend: Friend) -> tuple[str, ...]:
    return tuple(value.casefold() for _, value in friend.attributes)


def _yes_or_no(words: str) -> Reaction:
    if mentions(words, lists("heard")["yes"]):
        return "confirmed"
    return "denied" if mentions(words, lists("heard")["no"]) else "idle"
