"""What a partner sees and does."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from istar_envs import background
from istar_envs.errors import EnvError
from istar_envs.sotopia.dialogue import PASS, Action, ActionKind, DialogueState, Event, Rules, allowed_kinds
from istar_envs.sotopia.grammar import ParseError
from istar_envs.sotopia.records import Setting

Reply = Action | ParseError
"""What a partner does, or why its words are no action; those become a pass that nobody chose."""


class PartnerFailed(EnvError):
    """A partner could not act; the episode is broken, not lost."""


@dataclass(frozen=True, slots=True)
class PartnerView:
    """A dialogue from one seat, whenever that seat is to act.

    Attributes:
        setting: What is played. It holds the goals of both seats: whoever writes a prompt from it does so
            with ``render``, and a scripted partner reads its own side of the stakes only.
        seat: The partner's own seat.
        events: What happened, as this seat perceives it: what was for others is a pass.
        turn: The turn to act in, counted from 1.
        max_turns: Turns after which the dialogue is over.
        allowed: What may be done.
    """

    setting: Setting
    seat: int
    events: tuple[Event, ...]
    turn: int
    max_turns: int
    allowed: tuple[ActionKind, ...]


class Partner(Protocol):
    """Anybody who can take a seat.

    Attributes:
        name: Who it is, in which version; equal names act alike.
    """

    @property
    def name(self) -> str:
        """Who it is, in which version; equal names act alike."""
        ...

    def act(self, view: PartnerView) -> Reply:
        """Choose an action.

        Raises:
            PartnerFailed: If it cannot.
        """
        ...


@runtime_checkable
class ManyPartner(Protocol):
    """A partner that acts in many dialogues at once faster than in one after the other."""

    def act_many(self, views: Sequence[PartnerView]) -> list[Reply | PartnerFailed]:
        """Choose an action in each dialogue; a failure takes the place of its action."""
        ...


@runtime_checkable
class AsyncPartner(Protocol):
    """A partner that waits for its actions, in any number of dialogues at the same time."""

    async def aact(self, view: PartnerView) -> Reply:
        """Choose an action; see ``Partner.act``."""
        ...


def partner_view(setting: Setting, seat: int, state: DialogueState, rules: Rules) -> PartnerView:
    """Show a running dialogue to one of its seats."""
    return PartnerView(
        setting=setting,
        seat=seat,
        events=tuple(_perceived(event, seat) for event in state.events),
        turn=state.turn + 1,
        max_turns=rules.max_turns,
        allowed=allowed_kinds(state, seat, rules),
    )


def act_in_all(partner: Partner, views: Sequence[PartnerView]) -> list[Reply | PartnerFailed]:
    """Let a partner act in many dialogues, at once if it can; a failure takes the place of its action."""
    if isinstance(partner, AsyncPartner):
        return background.run(_act_at_once(partner, views))
    if isinstance(partner, ManyPartner):
        return partner.act_many(views)
    actions: list[Reply | PartnerFailed] = []
    for view in views:
        try:
            actions.append(partner.act(view))
        except PartnerFailed as failure:
            actions.append(failure)
    return actions


async def act_or_fail(partner: AsyncPartner, view: PartnerView) -> Reply | PartnerFailed:
    """Let a partner act; a failure takes the place of its action."""
    try:
        return await partner.aact(view)
    except PartnerFailed as failure:
        return failure


async def _act_at_once(partner: AsyncPartner, views: Sequence[PartnerView]) -> list[Reply | PartnerFailed]:
    return await asyncio.gather(*(act_or_fail(partner, view) for view in views))


def _perceived(event: Event, seat: int) -> Event:
    """Return an event as a seat perceives it."""
    for_others = event.action.to and seat not in (event.seat, *event.action.to)
    return replace(event, action=PASS) if for_others else event
