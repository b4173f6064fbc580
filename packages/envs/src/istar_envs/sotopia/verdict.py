"""How far a seat reached its goal, once its dialogue is over: settled by the stakes or told by a scorer.

A failure is told as one and never as a number.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from istar_envs.episode import Episode, Outcome, Scorer, Transition
from istar_envs.errors import EnvError, IstarError
from istar_envs.sotopia.encounter import Encounter
from istar_envs.sotopia.families.outcome import MAX_GOAL
from istar_envs.sotopia.render import read_text
from istar_envs.sotopia.scene import judged

ENV_ID: Final = "istar/Sotopia-v0"
"""Environment id in the episodes that a scorer gets."""

POSITIVE: Final = 6.0
"""Goals above it are successes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a seat reached its goal.

    Attributes:
        goal: From 0 to 10; None if nobody can tell.
        detail: Why, in words.
        judge_failed: Whether a scorer was asked and could not tell.
    """

    goal: float | None = None
    detail: str = ""
    judge_failed: bool = False


UNSCORED: Final = Verdict()
"""Nobody was asked."""


@runtime_checkable
class ManyScorer(Protocol):
    """A scorer that judges many episodes at once faster than one after the other."""

    def outcomes(self, episodes: Sequence[Episode]) -> list[Outcome]:
        """Judge finished episodes, in order."""
        ...


def require_scorer(scorer: Any) -> None:
    """Refuse what cannot score goals.

    Raises:
        EnvError: If it is not callable, or its scores are not from 0 to 1.
    """
    low, high = getattr(scorer, "score_range", (0.0, 1.0))
    if not callable(scorer) or low < 0 or high > 1:
        raise EnvError(
            f"scorer {scorer!r} cannot score goals (Sotopia, option scorer). Give a callable from Episode to "
            f"Outcome with scores from 0 to 1; this one gives {low:g} to {high:g}."
        )


def verdicts(
    scorer: Scorer | None, played: Sequence[tuple[Encounter, int]], task_ids: Sequence[str]
) -> list[Verdict]:
    """Say how far seats reached their goals.

    Args:
        scorer: Asked about scenarios without stakes, all at once if it can; None leaves them unscored.
        played: Dialogues that are over, each with the seat that is asked about.
        task_ids: What was played, for the scorer.
    """
    found = [settled(encounter, seat) for encounter, seat in played]
    open_ = [place for place, verdict in enumerate(found) if verdict == UNSCORED]
    if scorer is None or not open_:
        return found
    episodes = [episode_of(*played[place], task_ids[place]) for place in open_]
    for place, verdict in zip(open_, _ask(scorer, episodes), strict=True):
        found[place] = verdict
    return found


def episode_of(encounter: Encounter, seat: int, task_id: str) -> Episode:
    """Return a finished dialogue as a scorer reads it: one transition that holds the record."""
    setting = encounter.setting
    record = json.dumps(judged(setting, encounter.state.events, seat), ensure_ascii=False)
    closing = Transition("", "", None, 0.0, True, "", info={"dialogue": record})
    return Episode(
        env_id=ENV_ID,
        task_id=task_id,
        task=read_text(setting.scenario.goals[seat], seat),
        transitions=(closing,),
        success=False,
        score=0.0,
        end="truncated" if encounter.is_truncated else "terminated",
    )


def settled(encounter: Encounter, seat: int) -> Verdict:
    """Return what the stakes say of a seat; ``UNSCORED`` without stakes."""
    if encounter.failure:
        return Verdict(detail=encounter.failure)
    results = encounter.result()
    return UNSCORED if results is None else Verdict(results[seat].goal, results[seat].reason)


def _ask(scorer: Scorer, episodes: Sequence[Episode]) -> list[Verdict]:
    if not isinstance(scorer, ManyScorer):
        return [_ask_one(scorer, episode) for episode in episodes]
    try:
        return [_read(outcome) for outcome in scorer.outcomes(episodes)]
    except IstarError as error:
        return [_failed(str(error))] * len(episodes)


def _ask_one(scorer: Scorer, episode: Episode) -> Verdict:
    try:
        return _read(scorer(episode))
    except IstarError as error:
        return _failed(str(error))


def _failed(why: str) -> Verdict:
    return Verdict(detail=f"the scorer failed: {why}", judge_failed=True)


def _read(outcome: Outcome) -> Verdict:
    if outcome.score is None:
        return _failed(f"{outcome.source}: {outcome.status}: {outcome.detail}")
    if not 0.0 <= outcome.score <= 1.0:
        return _failed(f"{outcome.source} gave {outcome.score}, which is not from 0 to 1")
    return Verdict(round(MAX_GOAL * outcome.score, 6), outcome.detail)
