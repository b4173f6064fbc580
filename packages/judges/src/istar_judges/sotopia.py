"""How far both people of a dialogue really reached their goals, where that can be checked.

The setting is looked up anew and what is at stake in it settled by the recorded actions; what anybody
says, and what the record claims, counts for nothing. Scenarios without stakes are for model judges.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from istar_envs.episode import Episode, Outcome
from istar_envs.errors import ConfigError, EnvError
from istar_envs.sotopia.book import FAMILIES, MIX, NUM_TASKS, family_setting, open_book
from istar_envs.sotopia.dialogue import MAX_ARGUMENT, PASS, Action, Event
from istar_envs.sotopia.families.outcome import MAX_GOAL, GoalResult, settle
from istar_envs.sotopia.records import Setting
from istar_judges.base import Scale, require_scale
from istar_judges.dialogue import Turn, dialogue_of, turns_of
from istar_judges.errors import JudgeError

GOAL_THRESHOLD: Final = 6.0
"""Goals above it are successes."""

_SEAT: Final = re.compile(r"/seat([01])$")
_OWN: Final = re.compile(rf"({'|'.join(FAMILIES)})/({'|'.join(NUM_TASKS)})/(\d{{1,9}})")
_UNSEEN: Final = "did nothing"


_own_setting = lru_cache(maxsize=1024)(family_setting)


@dataclass(frozen=True, slots=True)
class SotopiaVerifier:
    """How far a person reached the goal of a checkable scenario.

    Those are the own families, and the published scenarios with stated points, target prices or a friend
    in common. Only proposals and acceptances that the partner perceived bind.

    Args:
        scale: ``success`` (1.0 for a goal above 6 of 10, else 0.0) or ``return`` (the goal / 10).
        scenarios: Folder of the published files, for episodes that were played in them.
        perspective: Whose goal: a seat, or ``player``, the seat that the episode is about.

    Raises:
        ConfigError: If ``scale`` is unknown.
    """

    scale: Scale = "success"
    scenarios: str | Path = MIX
    perspective: int | Literal["player"] = "player"

    def __post_init__(self) -> None:
        """Refuse an unknown scale."""
        require_scale(self.scale, "SOTOPIA verifier")

    @property
    def name(self) -> str:
        """Name with version."""
        return "sotopia-verifier/1"

    @property
    def score_range(self) -> tuple[float, float]:
        """``(0, 1)``."""
        return 0.0, 1.0

    @classmethod
    def of_env(cls, scale: Scale, options: Mapping[str, Any]) -> "SotopiaVerifier":
        """Make the verifier of an environment with the given keyword arguments."""
        return cls(scale, options.get("scenarios", MIX))

    def __call__(self, episode: Episode) -> Outcome:
        """Judge one episode.

        Returns:
            An ``ok`` outcome, or ``invalid`` without a number if the episode failed, its scenario cannot be
            found or has nothing to check, or its record cannot be understood.

        Raises:
            JudgeError: If the episode is one of another world, or about no seat.
        """
        goals = self.goals(episode)
        if isinstance(goals, str):
            return Outcome("invalid", self.name, detail=goals)
        seat = self._seat(episode)
        goal, success = goals[seat].goal, goals[seat].goal > GOAL_THRESHOLD
        notes = [] if success == episode.success else [f"the record claims success={episode.success}"]
        score = float(success) if self.scale == "success" else goal / MAX_GOAL
        detail = "; ".join([goals[seat].reason, *notes])
        return Outcome("ok", self.name, score=score, success=success, detail=detail)

    def goals(self, episode: Episode) -> tuple[GoalResult, GoalResult] | str:
        """Settle what is at stake in an episode, for both seats; a text says why that is impossible.

        Raises:
            JudgeError: If the episode is one of another world or holds no dialogue.
        """
        if "sotopia" not in episode.env_id.lower():
            raise JudgeError(
                f"an episode of {episode.env_id} (task {episode.task_id}) came to the SOTOPIA verifier. "
                "Judge it with the verifier of its own world."
            )
        if episode.end == "failed":
            return f"the episode failed: {episode.error or 'no reason recorded'}"
        try:
            setting = self.setting(episode)
        except (ConfigError, EnvError) as error:
            return f"the scenario cannot be found: {error}"
        if setting.scenario.stakes is None:
            return "nothing in this scenario can be checked; ask a model judge"
        events = _events(turns_of(episode), setting)
        return events if isinstance(events, str) else settle(setting.scenario.stakes, events)

    def setting(self, episode: Episode) -> Setting:
        """Look up what an episode was played in.

        Raises:
            ConfigError: If it cannot be found.
            MissingAsset: If a published file is missing.
        """
        task = without_seat(episode.task_id)
        return _own_setting(task) if _OWN.fullmatch(task) else open_book(self.scenarios).setting(task)

    def _seat(self, episode: Episode) -> int:
        seat = _player(episode) if self.perspective == "player" else self.perspective
        if seat not in (0, 1):
            raise JudgeError(
                f"perspective={self.perspective!r} names no seat of the episode of task {episode.task_id!r}. "
                "Set perspective to 0 or 1."
            )
        return seat


def without_seat(task_id: str) -> str:
    """Return the task of an episode without the seat that was played: ``"division/test/7"``."""
    return _SEAT.sub("", task_id)


def _player(episode: Episode) -> int | None:
    """Return the seat that the task is about, or else the one that the record names."""
    named = _SEAT.search(episode.task_id)
    return int(named[1]) if named else dialogue_of(episode).seat


def _events(turns: tuple[Turn, ...], setting: Setting) -> tuple[Event, ...] | str:
    """Read the actions out of what the other seat perceived, or say what cannot be understood."""
    events = []
    for number, turn in enumerate(turns, start=1):
        event = _event(turn, number, setting)
        if event is None:
            return f"entry {number} of the record is no action as this world writes it"
        events.append(event)
    return tuple(events)


def _event(turn: Turn, number: int, setting: Setting) -> Event | None:
    """Read one entry. Only physical actions matter here, so everything else becomes a pass."""
    if turn.seat not in (0, 1):
        return None
    if turn.kind != "action":
        return Event(turn.turn or number, turn.seat, PASS)
    name = re.escape(setting.agents[turn.seat].name)
    found = re.fullmatch(rf"(?:Turn \d+: )?{name} (?:\[action\] (.*)|{_UNSEEN})", turn.text, re.DOTALL)
    if found is None:
        return None
    return Event(turn.turn or number, turn.seat, Action("action", (found[1] or "")[:MAX_ARGUMENT]))
