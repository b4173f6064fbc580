"""How a dialogue ended: who agreed to what, and how far each seat reached its goal.

Pure, and for the stakes of any family. What people say changes nothing here; only moves bind.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from istar_envs.sotopia.dialogue import Event
from istar_envs.sotopia.families.moves import Move, Terms, parse_move, write_terms
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, FriendsStakes, SchedulingStakes, Stakes

MAX_GOAL: Final = 10.0
"""A goal reached in full."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Terms on the table.

    Attributes:
        seat: Who proposed them.
        terms: From the view of that seat.
        turn: When.
    """

    seat: int
    terms: Terms
    turn: int


@dataclass(frozen=True, slots=True)
class Table:
    """Where the talks stand.

    Attributes:
        proposals: The unanswered proposal of each seat.
        agreement: The proposal that was accepted; it is final.
    """

    proposals: tuple[Proposal | None, Proposal | None] = (None, None)
    agreement: Proposal | None = None

    def after(self, turn: int, moves: Mapping[int, Move]) -> "Table":
        """Return where the talks stand after a turn, in which each seat answers what was there before it.

        A proposal stays on the table until its speaker makes another one or the partner rejects it or
        proposes something else. To accept is to accept the partner's unanswered proposal.

        Args:
            turn: Number of the turn.
            moves: What the seats did, by seat; seats that made no move are left out.
        """
        for seat, move in sorted(moves.items()):
            accepted = self.proposals[1 - seat]
            if move.kind == "accept" and accepted:
                return Table(agreement=accepted)
        proposals = list(self.proposals)
        for seat in moves:
            if moves[seat].kind != "accept":
                proposals[1 - seat] = None
        for seat, move in moves.items():
            if move.terms is not None:
                proposals[seat] = Proposal(seat, move.terms, turn)
        return Table((proposals[0], proposals[1]))


@dataclass(frozen=True, slots=True)
class GoalResult:
    """How far a seat reached its goal.

    Attributes:
        goal: From 0 to 10.
        reason: In words.
        agreed: Whether there is an agreement.
    """

    goal: float
    reason: str
    agreed: bool


def read_table(stakes: Stakes, events: Iterable[Event]) -> Table:
    """Return where the talks stand after all events, in order; an agreement is final."""
    table = Table()
    for turn, happened in groupby(events, key=lambda event: event.turn):
        if table.agreement:
            break
        moves = {event.seat: move for event in happened if (move := _move_of(event, stakes))}
        table = table.after(turn, moves)
    return table


def settle(stakes: Stakes, events: Iterable[Event]) -> tuple[GoalResult, GoalResult]:
    """Say how far each seat reached its goal, from 0 to 10.

    Without an agreement both have 0. Otherwise:

    - bargaining: 10·(price − reserve) / (target − reserve) of the seat, clipped to [0, 10];
    - division: 10 · points of the seat's share / points of everything;
    - friends: 10 if the name is the friend in common, else 0;
    - scheduling: 10 · points of the time / points of the seat's best time; 0 for both if anybody is busy.
    """
    agreement = read_table(stakes, events).agreement
    if agreement is None:
        return (GoalResult(0.0, "no agreement", False),) * 2
    return _result(stakes, 0, agreement), _result(stakes, 1, agreement)


def worth(stakes: Stakes, seat: int, terms: Terms, proposer: int) -> float:
    """Return what terms are worth to a seat by its own numbers alone: 1 is the goal in full, 0 nothing.

    Only a price can be worth more than 1 or less than 0. That the partner is busy does not show here.

    Args:
        stakes: What the setting is about.
        seat: Whose goal.
        terms: What is agreed.
        proposer: The seat that proposed it, who speaks of its own share.
    """
    match stakes, terms:
        case BargainStakes(), float():
            return _worth_of_price(stakes, seat, terms)
        case DivisionStakes(), tuple():
            share = terms if seat == proposer else rest(stakes, terms)
            everything = rest(stakes, (0,) * len(stakes.items))
            return _points(share, stakes.values[seat]) / max(1, _points(everything, stakes.values[seat]))
        case FriendsStakes(), str():
            return float(terms.casefold() == stakes.answer.casefold())
        case SchedulingStakes(), str():
            return _worth_of_time(stakes, seat, terms)
    raise ValueError(f"terms {terms!r} do not belong to {type(stakes).__name__}")


def rest(stakes: DivisionStakes, share: tuple[int, ...]) -> tuple[int, ...]:
    """Return what a share leaves for the partner."""
    return tuple(count - taken for (_, count), taken in zip(stakes.items, share, strict=True))


def _result(stakes: Stakes, seat: int, agreement: Proposal) -> GoalResult:
    terms = agreement.terms
    value = worth(stakes, seat, terms, agreement.seat)
    if isinstance(stakes, SchedulingStakes) and any(
        _is_busy(stakes, either, str(terms)) for either in (0, 1)
    ):
        value = 0.0
    if isinstance(stakes, DivisionStakes) and isinstance(terms, tuple) and agreement.seat != seat:
        terms = rest(stakes, terms)
    goal = round(MAX_GOAL * min(1.0, max(0.0, value)), 6)
    return GoalResult(goal, f"agreed on {write_terms(terms, stakes)}, worth {goal:.4g} of 10", True)


def _worth_of_price(stakes: BargainStakes, seat: int, price: float) -> float:
    reserve, target = stakes.reserves[seat], stakes.targets[seat]
    wants_more = seat == stakes.seller_seat
    if target == reserve:
        return float(price >= target if wants_more else price <= target)
    return (price - reserve) / (target - reserve)


def _worth_of_time(stakes: SchedulingStakes, seat: int, time: str) -> float:
    if _is_busy(stakes, seat, time):
        return 0.0
    points = {
        slot.casefold(): value
        for slot, value in zip(stakes.slots, stakes.values[seat], strict=True)
        if slot not in stakes.busy[seat]
    }
    return points[time] / max(1, *points.values())


def _is_busy(stakes: SchedulingStakes, seat: int, time: str) -> bool:
    return time in (slot.casefold() for slot in stakes.busy[seat])


def _points(share: tuple[int, ...], values: tuple[int, ...]) -> int:
    return sum(count * value for count, value in zip(share, values, strict=True))


def _move_of(event: Event, stakes: Stakes) -> Move | None:
    """Return the move that an event is, if it is one and the partner perceives it."""
    is_private = event.action.to and 1 - event.seat not in event.action.to
    if event.action.kind != "action" or is_private:
        return None
    move = parse_move(event.action.argument, stakes)
    return move if isinstance(move, Move) else None
