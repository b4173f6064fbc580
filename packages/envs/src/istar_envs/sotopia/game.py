"""One episode from one seat: its actions as text, what it observes, its reward and ``info``.

Who takes the other seat is decided outside: ``let_partner_act`` for one partner in many games,
``parallel.py`` for two seats that are both played.
"""

import asyncio
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from istar_envs import background
from istar_envs.episode import Scorer
from istar_envs.sotopia.dialogue import Action, EndReason, Rules
from istar_envs.sotopia.encounter import Encounter
from istar_envs.sotopia.families.moves import Move, write_move
from istar_envs.sotopia.grammar import ParseError, ProtocolName, parse_action, write_action
from istar_envs.sotopia.partners.base import (
    AsyncPartner,
    Partner,
    PartnerFailed,
    Reply,
    act_in_all,
    act_or_fail,
)
from istar_envs.sotopia.records import Setting
from istar_envs.sotopia.render import Visibility, read_text
from istar_envs.sotopia.scene import happened, judged, opening, whose_turn
from istar_envs.sotopia.verdict import POSITIVE, UNSCORED, Verdict, settled, verdicts

StepResult = tuple[str, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated and ``info``."""


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """How an episode is played, whatever its task.

    Attributes:
        rules: How turns go.
        protocol: Notation of actions.
        visibility: Who may read what.
        history: ``all`` shows the whole dialogue in every observation, ``new`` what is new.
    """

    rules: Rules
    protocol: ProtocolName = "plain"
    visibility: Visibility = "strict"
    history: Literal["all", "new"] = "all"


class Game:
    """One episode from one seat.

    Args:
        task_id: What is played.
        encounter: The dialogue; the games of both seats may share it.
        seat: Whose game it is.
        options: How it is played.

    Attributes:
        verdict: How far the seat reached its goal; ``conclude`` sets it.
        verdict_partner: The same for the other seat, where the stakes tell.
        is_done: Whether a step has told that it is over.
    """

    def __init__(self, task_id: str, encounter: Encounter, seat: int, options: PlayOptions) -> None:
        self.task_id = task_id
        self.encounter = encounter
        self.seat = seat
        self.options = options
        self.verdict: Verdict = UNSCORED
        self.verdict_partner: Verdict = UNSCORED
        self.is_done = False
        self._task = read_text(encounter.setting.scenario.goals[seat], seat)
        self._opening = opening(encounter.setting, seat, options.visibility)
        self._lines: list[str] = []
        self._state_key = _key(task_id.encode())
        self._since = -1
        self._num_shown = 0
        self._reason: str | None = None
        self._examples = _examples(encounter.setting, options.protocol)

    @property
    def is_over(self) -> bool:
        """Whether the dialogue has ended."""
        return self.encounter.is_over

    def copy(self) -> "Game":
        """Return a game that goes on alike; it shows the whole dialogue next."""
        copied = Game(self.task_id, replace(self.encounter), self.seat, self.options)
        copied.verdict, copied.verdict_partner = self.verdict, self.verdict_partner
        copied.is_done = self.is_done
        return copied

    def act(self, text: str) -> None:
        """Do what a text says; what cannot be read costs a turn, and nobody perceives anything."""
        action = self._read(text)
        if isinstance(action, ParseError):
            self.encounter.waste()
        else:
            self.encounter.act(self.seat, action)

    def act_or_pass(self, text: str) -> None:
        """Do what a text says; what cannot be read is seen as doing nothing."""
        self.encounter.act(self.seat, self._read(text))

    @property
    def awaits_partner(self) -> bool:
        """Whether the other seat alone is to act."""
        return self.encounter.waiting == (1 - self.seat,)

    def hear(self, reply: Reply | PartnerFailed) -> None:
        """Let the partner do what it chose; its failure ends the game."""
        if isinstance(reply, PartnerFailed):
            self.encounter.fail(str(reply))
        else:
            self.encounter.act(1 - self.seat, reply)

    def rest(self) -> None:
        """Do nothing, because it is not the seat's turn."""
        self._reason = None

    def waste(self, reason: str) -> None:
        """Spend a turn on a reply that could not be read; nobody perceives anything."""
        self._reason = reason
        self.encounter.waste()

    def transcript(self) -> str:
        """Write everything that the seat knows and has perceived."""
        return self._write(-1)

    def start(self) -> tuple[str, dict[str, Any]]:
        """Return what a reset returns: everything so far, and ``info``.

        A partner may have ended the dialogue before the seat's first turn; the first step tells that.
        """
        self._since, self._num_shown = -1, len(self.encounter.state.events)
        return self.transcript(), self._info()

    def answer(self) -> StepResult:
        """Return what a step returns. If nothing happened, it shows what was shown before."""
        self.is_done = self.is_over
        num_events = len(self.encounter.state.events)
        if self.options.history == "new" and num_events > self._num_shown:
            self._since = self._num_shown
        self._num_shown = num_events
        is_truncated = self.encounter.is_truncated
        is_terminated = self.is_over and not is_truncated
        return self._write(self._since), self._reward(), is_terminated, is_truncated, self._info()

    def _read(self, text: str) -> Action | ParseError:
        parsed = parse_action(text, self.options.protocol)
        self._reason = parsed.reason if isinstance(parsed, ParseError) else None
        return parsed

    def _write(self, since: int) -> str:
        self._follow()
        setting, state = self.encounter.setting, self.encounter.state
        lines = self._lines[since:] if since >= 0 else [self._opening, *self._lines]
        if not self.is_over:
            waiting = self.encounter.waiting
            seats = (self.seat,) if self.seat in waiting else waiting
            lines = [*lines, whose_turn(setting, seats, state.turn + 1, self.options.rules.max_turns)]
        return "\n".join(lines)

    def _follow(self) -> None:
        """Take note of what has happened since the last look."""
        news = self.encounter.state.events[len(self._lines) :]
        self._lines += happened(self.encounter.setting, self.seat, news)
        for event in news:
            done = event.action
            told = (self._state_key, event.seat, done.kind, done.argument, done.to)
            self._state_key = _key(repr(told).encode())

    def _reward(self) -> float:
        if self._failure():
            return math.nan
        return (self.verdict.goal or 0.0) / 10.0

    def _failure(self) -> str:
        """Say what broke: a seat that could not act, or a scorer that could not tell."""
        return self.encounter.failure or (self.verdict.detail if self.verdict.judge_failed else "")

    def _info(self) -> dict[str, Any]:
        self._follow()
        encounter, goal = self.encounter, self.verdict.goal
        state = encounter.state
        return {
            "task": self._task,
            "success": goal is not None and goal > POSITIVE,
            "score": (goal or 0.0) / 10.0,
            "valid": self._reason is None,
            "invalid_reason": self._reason,
            "admissible_actions": list(self._examples) if self.seat in encounter.waiting else [],
            "state_key": self._state_key,
            "task_id": self.task_id,
            "goal": goal,
            "goal_partner": self.verdict_partner.goal,
            "scored": goal is not None,
            "score_detail": self.verdict.detail,
            "end_reason": self._end_reason(),
            "failure": self._failure(),
            "seat": self.seat,
            "turn": state.turn,
            "num_invalid": encounter.wasted + state.num_invalid(self.seat),
            "num_invalid_partner": state.num_invalid(1 - self.seat),
            "dialogue": self._record() if self.is_over else "",
        }

    def _record(self) -> str:
        encounter = self.encounter
        return json.dumps(judged(encounter.setting, encounter.state.events, self.seat), ensure_ascii=False)

    def _end_reason(self) -> str:
        if self.verdict.judge_failed:
            return str(EndReason.JUDGE_FAILURE)
        return str(self.encounter.state.end_reason or "")


def let_partner_act(games: Sequence[Game], partner: Partner) -> None:
    """Let a partner act in all games until each waits for its own seat or is over.

    Its calls in different games run together, if the partner can do that; if it can wait for many at the
    same time, each game goes on as soon as its own answer is there. A partner that fails ends the game it
    fails in.
    """
    waiting = [game for game in games if game.awaits_partner]
    if waiting and isinstance(partner, AsyncPartner):
        background.run(_go_on(waiting, partner))
        return
    while waiting:
        views = [game.encounter.view(1 - game.seat) for game in waiting]
        for game, reply in zip(waiting, act_in_all(partner, views), strict=True):
            game.hear(reply)
        waiting = [game for game in waiting if game.awaits_partner]


async def _go_on(games: Sequence[Game], partner: AsyncPartner) -> None:
    async def one(game: Game) -> None:
        while game.awaits_partner:
            game.hear(await act_or_fail(partner, game.encounter.view(1 - game.seat)))

    await asyncio.gather(*map(one, games))


def conclude(games: Sequence[Game], scorer: Scorer | None) -> None:
    """Find the verdict of games that are newly over; a scorer is asked about all of them together."""
    over = [game for game in games if game.is_over and game.verdict == UNSCORED]
    found = verdicts(scorer, [(game.encounter, game.seat) for game in over], [game.task_id for game in over])
    for game, verdict in zip(over, found, strict=True):
        game.verdict, game.verdict_partner = verdict, settled(game.encounter, 1 - game.seat)


def _key(told: bytes) -> str:
    return hashlib.blake2b(told, digest_size=12).hexdigest()


_BINDING: Final = (Move("accept"), Move("reject"))


def _examples(setting: Setting, protocol: ProtocolName) -> tuple[str, ...]:
    """Write actions of every kind that can be done, with words to fill in."""
    actions = [Action("speak", "your words")]
    if protocol != "speech":
        actions += [Action("nonverbal", "your gesture"), Action("action", "your act"), Action("none")]
        if (stakes := setting.scenario.stakes) is not None:
            actions += [Action("action", write_move(move, stakes)) for move in _BINDING]
    return tuple(write_action(action, protocol) for action in (*actions, Action("leave")))
