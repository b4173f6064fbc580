"""Dialogues with known results, always the same ones, to score at every run.

A judge whose verdicts on them move has drifted, whatever its name says; and as their goals can be
settled by rule, they show what a judge is worth before it has seen any other episode.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, Final

from istar_envs.actions import format_reply
from istar_envs.episode import Episode, Transition
from istar_envs.sotopia.book import FAMILIES, family_setting
from istar_envs.sotopia.dialogue import Action, Event
from istar_envs.sotopia.families.moves import Move, Terms, write_move
from istar_envs.sotopia.families.outcome import MAX_GOAL, settle
from istar_envs.sotopia.grammar import write_action
from istar_envs.sotopia.records import Setting
from istar_envs.sotopia.render import read_text
from istar_envs.sotopia.scene import happened, judged, opening
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, FriendsStakes, SchedulingStakes, Stakes
from istar_judges.dialogue import FIELD
from istar_judges.sotopia import GOAL_THRESHOLD

_PER_FAMILY: Final = 2
_OPENING: Final = (
    Action("speak", "Hello! Shall we see what we can agree on?"),
    Action("speak", "Hello. Yes, tell me what you have in mind."),
)
_REFUSED: Final = (
    Action("speak", "I would like this to go entirely my way."),
    Action("speak", "I am sorry, that does not work for me. Let us leave it."),
)
_BOASTED: Final = (
    Action("speak", "Wonderful, so it is settled exactly as I wanted, and you agreed to everything."),
    Action("speak", "I did not agree to anything yet, and I have to go now."),
)


@cache
def canary_episodes() -> tuple[Episode, ...]:
    """Return 40 short episodes of the own families.

    In each of two settings of a family, one seat gets its best, a middling and its worst agreement, then
    none, then none while it claims to have one. The two settings are played from different seats.
    """
    return tuple(
        episode
        for family in FAMILIES
        for number in range(_PER_FAMILY)
        for episode in _play(family_setting(f"{family}/test/{number}"), seat=number % 2)
    )


def _play(setting: Setting, seat: int) -> Iterator[Episode]:
    stakes = setting.scenario.stakes
    if stakes is None:
        raise ValueError(f"nothing is at stake in {setting.pk}")
    for terms in _chosen_terms(stakes, seat):
        moves = Action("action", write_move(Move("propose", terms), stakes)), Action("action", "accept")
        yield _episode(setting, seat, (*_OPENING, *moves))
    yield _episode(setting, seat, (*_OPENING, *_REFUSED))
    yield _episode(setting, seat, (*_OPENING, *_BOASTED))


def _chosen_terms(stakes: Stakes, seat: int) -> tuple[Terms, Terms, Terms]:
    """Return what is best, middling and worst for a seat that proposes it."""
    ranked = sorted(
        _possible_terms(stakes, seat), key=lambda terms: (-_goal(stakes, seat, terms), str(terms))
    )
    return ranked[0], ranked[len(ranked) // 2], ranked[-1]


def _possible_terms(stakes: Stakes, seat: int) -> list[Terms]:
    match stakes:
        case BargainStakes():
            low, high = sorted(stakes.targets)
            return [low, (low + high) // 2, high]
        case DivisionStakes():
            return list(product(*(range(count + 1) for _, count in stakes.items)))
        case FriendsStakes():
            return [friend.name.casefold() for friend in stakes.friends[seat]]
        case SchedulingStakes():
            return [slot.casefold() for slot in stakes.slots]


def _goal(stakes: Stakes, seat: int, terms: Terms) -> float:
    moves = Move("propose", terms), Move("accept")
    return settle(stakes, _events(seat, [Action("action", write_move(move, stakes)) for move in moves]))[
        seat
    ].goal


def _events(seat: int, actions: Any) -> tuple[Event, ...]:
    """Let two seats act in turn, the given one first."""
    return tuple(Event(n + 1, (seat + n) % 2, action) for n, action in enumerate(actions))


def _episode(setting: Setting, seat: int, actions: tuple[Action, ...]) -> Episode:
    events = _events(seat, actions)
    goal = settle(setting.scenario.stakes, events)[seat].goal if setting.scenario.stakes else 0.0
    first = _transition(setting, events[0], opening(setting, seat))
    last = _transition(setting, events[2], *happened(setting, seat, events[1:2]))
    return Episode(
        env_id="istar/Sotopia-v0",
        task_id=f"{setting.pk}/seat{seat}",
        task=read_text(setting.scenario.goals[seat], seat),
        transitions=(
            first,
            replace(last, reward=goal / MAX_GOAL, info={FIELD: judged(setting, events, seat)}),
        ),
        success=goal > GOAL_THRESHOLD,
        score=goal / MAX_GOAL,
        end="terminated",
        final_observation="\n".join(happened(setting, seat, events[3:])),
    )


def _transition(setting: Setting, event: Event, observation: str) -> Transition:
    action = write_action(event.action, "plain")
    return Transition(
        observation=observation,
        reply=format_reply((action,)),
        action=action,
        reward=0.0,
        valid=True,
        state_key=f"{setting.pk}:{event.turn}",
    )
