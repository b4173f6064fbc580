"""A dialogue in words: what a seat reads before it acts, and what a judge reads once it is over.

Every reader gets the words of ``render``; nothing here decides who may read what.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from istar_envs.sotopia.dialogue import Event
from istar_envs.sotopia.families.moves import describe_moves
from istar_envs.sotopia.records import Setting
from istar_envs.sotopia.render import JUDGE, Visibility, read_text, render_background, render_event


def names_of(setting: Setting) -> tuple[str, str]:
    """Return the names of the people by seat."""
    first, second = setting.agents
    return first.name, second.name


@lru_cache(maxsize=4096)
def opening(setting: Setting, seat: int, visibility: Visibility = "strict") -> str:
    """Write what a seat knows before the first word, and which moves bind."""
    background = render_background(setting, seat, visibility=visibility)
    stakes = setting.scenario.stakes
    return background if stakes is None else background + "\nMoves: " + describe_moves(stakes)


def happened(setting: Setting, seat: int, events: Sequence[Event]) -> list[str]:
    """Write what a seat perceived of events, one line each."""
    names = names_of(setting)
    return [render_event(event, seat, names) for event in events]


def whose_turn(setting: Setting, seats: Sequence[int], turn: int, max_turns: int) -> str:
    """Write who acts now.

    Args:
        setting: What is played.
        seats: Who acts.
        turn: The turn, counted from 1.
        max_turns: Turns after which the dialogue is over.
    """
    names = names_of(setting)
    who = " and ".join(names[seat] for seat in seats)
    return f"Turn {turn} of {max_turns}: {who} {'acts' if len(seats) == 1 else 'act'}."


def judged(setting: Setting, events: Sequence[Event], seat: int | None = None) -> dict[str, Any]:
    """Return what a judge may read of a dialogue, ready for JSON.

    Args:
        setting: What was played.
        events: What happened.
        seat: Whose episode it is, or None.

    Returns:
        ``background``, ``names``, ``goals``, ``seat`` and ``turns``. The text of a turn is exactly what the
        other seat perceived.
    """
    names = names_of(setting)
    return {
        "background": render_background(setting, JUDGE),
        "names": list(names),
        "goals": [read_text(goal, JUDGE) for goal in setting.scenario.goals],
        "seat": seat,
        "turns": [
            {
                "seat": event.seat,
                "kind": event.action.kind,
                "text": render_event(event, 1 - event.seat, names),
                "turn": event.turn,
            }
            for event in events
        ],
    }
