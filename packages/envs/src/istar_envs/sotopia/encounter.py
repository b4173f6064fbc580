"""One running dialogue between two seats, whoever takes them.

What happens is decided by ``dialogue``; deals are found here, because a dialogue about stakes is over once
both agree.
"""

from dataclasses import dataclass, replace
from typing import Final

from istar_envs.seeding import derive_seed
from istar_envs.sotopia.dialogue import (
    PASS,
    Action,
    DialogueState,
    EndReason,
    Rules,
    advance,
    seats_to_act,
    stop,
)
from istar_envs.sotopia.families.outcome import GoalResult, read_table, settle
from istar_envs.sotopia.grammar import ParseError
from istar_envs.sotopia.partners.base import PartnerView, partner_view
from istar_envs.sotopia.records import Setting

_LIMITS: Final = frozenset({EndReason.MAX_TURNS, EndReason.PROMPT_OVERFLOW, EndReason.AGENT_FAILURE})


@dataclass(slots=True)
class Encounter:
    """A running dialogue.

    Attributes:
        setting: What is played.
        rules: How turns go.
        state: Where it stands.
        wasted: Turns spent on replies that nobody perceived.
        failure: Why it could not go on, if a seat failed.
    """

    setting: Setting
    rules: Rules
    state: DialogueState
    wasted: int = 0
    failure: str = ""

    @classmethod
    def begin(cls, setting: Setting, rules: Rules) -> "Encounter":
        """Start a dialogue. In ``random`` order, the task decides who is drawn."""
        return cls(setting, rules, DialogueState(order_seed=derive_seed(0, "order", setting.pk)))

    @property
    def waiting(self) -> tuple[int, ...]:
        """Seats that are to act now; none once it is over."""
        return seats_to_act(self.state, self.rules)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state.is_over

    @property
    def is_truncated(self) -> bool:
        """Whether a limit or a failure ended it, not the people."""
        return self.state.end_reason in _LIMITS

    @property
    def has_agreed(self) -> bool:
        """Whether both seats agreed on something."""
        stakes = self.setting.scenario.stakes
        return stakes is not None and read_table(stakes, self.state.events).agreement is not None

    def view(self, seat: int) -> PartnerView:
        """Show the dialogue to one of its seats."""
        return partner_view(self.setting, seat, self.state, self.rules)

    def act(self, seat: int, action: Action | ParseError) -> None:
        """Let a seat act; an unreadable reply is recorded as a pass that nobody chose.

        An agreement goes before every other end of the same turn.

        Raises:
            ValueError: If the seat is not to act.
        """
        done, is_valid = (action, True) if isinstance(action, Action) else (PASS, False)
        num_before = len(self.state.events)
        self.state = advance(self.state, seat, done, self.rules, valid=is_valid)
        happened = self.state.events[num_before:]
        if any(event.action.kind == "action" for event in happened) and self.has_agreed:
            self.state = replace(self.state, pending=(), end_reason=EndReason.AGREEMENT)
        self._stop_at_limit()

    def waste(self) -> None:
        """Spend a turn in which nothing happens."""
        self.wasted += 1
        self._stop_at_limit()

    def fail(self, why: str) -> None:
        """End it because a seat could not act."""
        self.state, self.failure = stop(self.state, EndReason.AGENT_FAILURE), why

    def overflow(self) -> None:
        """End it because a seat cannot take in more of it."""
        self.state = stop(self.state, EndReason.PROMPT_OVERFLOW)

    def result(self) -> tuple[GoalResult, GoalResult] | None:
        """Return how far each seat reached its goal, or None if only a judge could tell."""
        stakes = self.setting.scenario.stakes
        return None if stakes is None else settle(stakes, self.state.events)

    def _stop_at_limit(self) -> None:
        if not self.is_over and self.state.turn + self.wasted >= self.rules.max_turns:
            self.state = stop(self.state, EndReason.MAX_TURNS)
