"""The rules of a dialogue as a pure state machine: whose turn it is, what happened, when it is over.

Nothing is remembered outside ``DialogueState``, and nothing in it ever changes. Words are never looked at:
only the kind of an action speaks, passes or leaves. Deals and scores are not decided here.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal, get_args

from istar_envs.episode import valid_text
from istar_envs.errors import ConfigError, suggest
from istar_envs.seeding import CounterRng, derive_seed

ActionKind = Literal["none", "speak", "nonverbal", "action", "leave"]

ACTION_KINDS: Final[tuple[ActionKind, ...]] = get_args(ActionKind)
"""Every kind, always in this order."""

WORDLESS: Final[frozenset[ActionKind]] = frozenset({"none", "leave"})
"""Kinds that carry no words and are for everyone."""

MAX_ARGUMENT: Final = 4000
"""Longest argument of an action, in characters."""

Order = Literal["round_robin", "simultaneous", "random"]


class EndReason(StrEnum):
    """Why a dialogue is over; ``advance`` finds the first three, ``stop`` sets the others."""

    MAX_TURNS = "max_turns"
    LEFT = "left"
    STALE = "stale"
    AGREEMENT = "agreement"
    PROMPT_OVERFLOW = "prompt_overflow"
    AGENT_FAILURE = "agent_failure"
    JUDGE_FAILURE = "judge_failure"


@dataclass(frozen=True, slots=True)
class Action:
    """What one seat does in one turn.

    Attributes:
        kind: ``none`` passes; ``leave`` leaves for good; the others carry words.
        argument: The words, opaque; dropped for ``none`` and ``leave``. Half of a surrogate pair, which no
            UTF-8 file can hold, becomes U+FFFD.
        to: Seats that perceive it besides its own, in ascending order; empty for everyone. Dropped for
            ``none`` and ``leave``.

    Raises:
        ValueError: If the kind is unknown, the argument too long or a seat negative.
    """

    kind: ActionKind
    argument: str = ""
    to: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Bring equal actions into one form."""
        if self.kind not in ACTION_KINDS:
            raise ValueError(f"no action kind {self.kind!r}.{suggest(str(self.kind), ACTION_KINDS)}")
        if len(self.argument) > MAX_ARGUMENT:
            raise ValueError(f"an argument of {len(self.argument)} characters; at most {MAX_ARGUMENT}")
        if any(seat < 0 for seat in self.to):
            raise ValueError(f"to={self.to}: seats are counted from 0")
        is_wordless = self.kind in WORDLESS
        object.__setattr__(self, "argument", "" if is_wordless else valid_text(self.argument))
        object.__setattr__(self, "to", () if is_wordless else tuple(sorted(set(self.to))))


PASS: Final = Action("none")
"""Doing nothing."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        turn: In which turn, counted from 1.
        seat: Who did it.
        action: What.
        valid: False if a pass stands for a reply that could not be read.
    """

    turn: int
    seat: int
    action: Action
    valid: bool = True


@dataclass(frozen=True, slots=True)
class Rules:
    """How turns go and what ends a dialogue.

    Attributes:
        max_turns: Turns after which it is over. One turn is one action, or one of each seat if
            ``simultaneous``.
        stale_limit: Passes in a row that do not end it yet; one more does.
        order: ``round_robin`` begins with seat 0; ``random`` draws a seat each turn.
        legacy_stale: Count as published: seats that were not asked pass too, and so do unreadable replies.
            With two seats in turn, the second then ends a dialogue by a single pass after the first spoke,
            the first does not.
        legacy_leave: End as published: when one of the last two seats leaves, however many remain. It
            differs only with more than two seats.

    Raises:
        ConfigError: If a value is out of range.
    """

    max_turns: int = 20
    stale_limit: int = 2
    order: Order = "round_robin"
    legacy_stale: bool = False
    legacy_leave: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be played."""
        if self.max_turns < 1 or self.stale_limit < 0:
            raise ConfigError(
                f"max_turns={self.max_turns} and stale_limit={self.stale_limit} of a dialogue: give "
                "max_turns >= 1 and stale_limit >= 0."
            )
        orders = get_args(Order)
        if self.order not in orders:
            raise ConfigError(f"order={self.order!r} of a dialogue is unknown.{suggest(self.order, orders)}")


@dataclass(frozen=True, slots=True)
class DialogueState:
    """Where a dialogue stands; ``DialogueState()`` is the beginning of one between two people.

    Attributes:
        num_seats: How many take part, at least 2.
        order_seed: What the ``random`` order is drawn from.
        turn: How many turns are over.
        events: What happened, turn by turn, within a turn by seat.
        pending: What seats have chosen in a simultaneous turn that others have not chosen in yet.
        left: Seats that left; it never shrinks.
        passes: Passes in a row, as the rules count them.
        end_reason: Why it is over, or None while it goes on.
    """

    num_seats: int = 2
    order_seed: int = 0
    turn: int = 0
    events: tuple[Event, ...] = ()
    pending: tuple[Event, ...] = ()
    left: frozenset[int] = frozenset()
    passes: int = 0
    end_reason: EndReason | None = None

    def __post_init__(self) -> None:
        """Refuse a monologue."""
        if self.num_seats < 2:
            raise ValueError(f"a dialogue needs at least 2 seats, got {self.num_seats}")

    @property
    def is_over(self) -> bool:
        """Whether nobody may act any more."""
        return self.end_reason is not None

    @property
    def active(self) -> tuple[int, ...]:
        """Seats that have not left, in ascending order."""
        everyone = range(self.num_seats)
        return tuple(seat for seat in everyone if seat not in self.left) if self.left else tuple(everyone)

    def num_invalid(self, seat: int) -> int:
        """Count the replies of a seat that could not be read."""
        return sum(event.seat == seat and not event.valid for event in self.events)


def seats_to_act(state: DialogueState, rules: Rules) -> tuple[int, ...]:
    """Return the seats that are to act now, in ascending order; none once the dialogue is over."""
    if state.is_over:
        return ()
    active = state.active
    match rules.order:
        case "simultaneous":
            chosen = {event.seat for event in state.pending}
            return tuple(seat for seat in active if seat not in chosen)
        case "random":
            draw = CounterRng(derive_seed(state.order_seed, "order", state.turn)).below(len(active))
            return (active[draw],)
        case "round_robin":
            last = state.events[-1].seat if state.events else -1
            return (next((seat for seat in active if seat > last), active[0]),)


def allowed_kinds(state: DialogueState, seat: int, rules: Rules) -> tuple[ActionKind, ...]:
    """Return what a seat may do now: anything if it is to act, else only ``none``."""
    return ACTION_KINDS if seat in seats_to_act(state, rules) else ("none",)


def advance(
    state: DialogueState, seat: int, action: Action, rules: Rules, *, valid: bool = True
) -> DialogueState:
    """Let one seat act.

    A simultaneous turn happens when its last seat has acted; until then nobody perceives any of it, and who
    acted first makes no difference.

    Args:
        state: Where the dialogue stands.
        seat: Who acts; one of ``seats_to_act``.
        action: What it does.
        rules: How turns go; the same for the whole dialogue.
        valid: False if the action is a pass in place of an unreadable reply. Such a pass was not chosen: it
            neither adds to the passes in a row nor breaks them.

    Returns:
        Where the dialogue stands then. Leaving goes before passing and both before the turn limit if
        several ends come at once.

    Raises:
        ValueError: If the seat is not to act or a private action is for nobody there.
    """
    waiting = seats_to_act(state, rules)
    if seat not in waiting:
        raise ValueError(f"seat {seat} cannot act in turn {state.turn + 1}: {_why_not(state, waiting)}")
    if any(receiver >= state.num_seats for receiver in action.to):
        raise ValueError(f"to={action.to}: this dialogue has seats 0 to {state.num_seats - 1}")
    if not valid and action != PASS:
        raise ValueError(f"an unreadable reply is recorded as a pass, not as {action.kind!r}")
    happened = (*state.pending, Event(state.turn + 1, seat, action, valid))
    if len(waiting) > 1:
        return replace(state, pending=happened)
    return _finish_turn(state, tuple(sorted(happened, key=lambda event: event.seat)), rules)


def stop(state: DialogueState, reason: EndReason) -> DialogueState:
    """End a dialogue for a reason that its turns do not show, such as a failure.

    Args:
        state: Where the dialogue stands.
        reason: Why. Only ``JUDGE_FAILURE`` may replace another reason.

    Raises:
        ValueError: If the dialogue is over already.
    """
    if state.is_over and reason is not EndReason.JUDGE_FAILURE:
        raise ValueError(f"the dialogue is over already ({state.end_reason}); it cannot end by {reason}")
    return replace(state, pending=(), end_reason=reason)


def _why_not(state: DialogueState, waiting: tuple[int, ...]) -> str:
    if state.is_over:
        return f"the dialogue is over ({state.end_reason})"
    return f"it is the turn of seat {', '.join(map(str, waiting))}"


def _finish_turn(state: DialogueState, happened: tuple[Event, ...], rules: Rules) -> DialogueState:
    after = replace(
        state,
        turn=state.turn + 1,
        events=(*state.events, *happened),
        pending=(),
        left=state.left | {event.seat for event in happened if event.action.kind == "leave"},
        passes=_count_passes(state, happened, rules),
    )
    end = _find_end(after, happened, rules)
    return replace(after, end_reason=end) if end else after


def _count_passes(state: DialogueState, happened: tuple[Event, ...], rules: Rules) -> int:
    """Count the passes in a row after a turn, seat by seat."""
    by_seat = {event.seat: event for event in happened}
    passes = state.passes
    for seat in range(state.num_seats):
        event = by_seat.get(seat)
        if event is not None and event.action.kind != "none":
            passes = 0
        elif rules.legacy_stale or (event is not None and event.valid):
            passes += 1
    return passes


def _find_end(after: DialogueState, happened: tuple[Event, ...], rules: Rules) -> EndReason | None:
    last_two = range(after.num_seats - 2, after.num_seats)
    left_as_published = any(event.action.kind == "leave" and event.seat in last_two for event in happened)
    if len(after.active) < 2 or (rules.legacy_leave and left_as_published):
        return EndReason.LEFT
    if after.passes > rules.stale_limit:
        return EndReason.STALE
    return EndReason.MAX_TURNS if after.turn >= rules.max_turns else None
