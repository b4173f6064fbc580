"""Whether a judge still says what it said: the canaries judged anew, beside the truth and an earlier pass.

Verdicts must come from the model itself: a judge with a cache repeats what it said and never drifts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

from istar_envs.episode import Episode
from istar_envs.errors import ConfigError
from istar_envs.sotopia.families.outcome import MAX_GOAL
from istar_judges.canaries import canary_episodes
from istar_judges.dialogue import dialogue_of
from istar_judges.outcome_files import JudgedEpisode, trajectory_ids
from istar_judges.panel import Panel
from istar_judges.results import GOAL, ScoreRule

SHIFT_LIMIT: Final = 0.5
"""Points by which the mean score may move; more is drift if it is above twice its standard error too."""
CHANGED_LIMIT: Final = 0.1
"""Share of canaries whose success may be told differently."""
FAILED_LIMIT: Final = 0.05
"""Share of canaries that may be left without a verdict."""


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """What a pass over the canaries found; scores are in points, NaN stands for what cannot be told.

    Attributes:
        num: Canaries with a verdict.
        num_failed: Canaries without one.
        error: Mean distance of the scores from the settled goals.
        contradicted_frac: Share of verdicts that tell success otherwise than the settled goals do.
        shift: Mean change of the scores since the earlier pass.
        shift_error: Standard error of ``shift``.
        changed_frac: Share of the canaries judged in both passes whose success is told differently.
    """

    num: int
    num_failed: int
    error: float
    contradicted_frac: float
    shift: float = math.nan
    shift_error: float = math.nan
    changed_frac: float = math.nan

    @property
    def failed_frac(self) -> float:
        """Share of canaries without a verdict."""
        return self.num_failed / (self.num + self.num_failed)

    @property
    def findings(self) -> tuple[str, ...]:
        """Say in words why the judge is not the one it was; empty if it seems to be."""
        found = []
        if abs(self.shift) > max(SHIFT_LIMIT, 2 * self.shift_error):
            found.append(f"scores moved by {self.shift:+.2f} points on average (more than {SHIFT_LIMIT})")
        if self.changed_frac > CHANGED_LIMIT:
            found.append(
                f"{self.changed_frac:.0%} of the verdicts on success changed (more than {CHANGED_LIMIT:.0%})"
            )
        if self.failed_frac > FAILED_LIMIT:
            total = self.num + self.num_failed
            found.append(f"{self.num_failed} of {total} have no verdict (more than {FAILED_LIMIT:.0%})")
        return tuple(found)


def judge_canaries(panel: Panel) -> tuple[JudgedEpisode, ...]:
    """Let a judge score the canaries, each from the seat that it was played from.

    Raises:
        JudgeError: If the judge can never judge them.
    """
    episodes = _canaries()
    ballots = panel.judge_many(list(episodes.values()))
    return tuple(
        JudgedEpisode.of(key, episode, tally.outcome, seat=dialogue_of(episode).seat, votes=tally.votes)
        for (key, episode), ballot in zip(episodes.items(), ballots, strict=True)
        for tally in [panel.tally(episode, ballot)]
    )


def canary_report(
    judged: Sequence[JudgedEpisode], earlier: Sequence[JudgedEpisode] = (), *, rule: ScoreRule = GOAL
) -> CanaryReport:
    """Compare a pass over the canaries with the settled goals, and with an earlier pass.

    Args:
        judged: What ``judge_canaries`` returned.
        earlier: The same of the earlier pass; empty if there is none.
        rule: How the judge's scores became outcomes. Only the dimension ``goal`` has a settled truth.

    Raises:
        ConfigError: If the earlier pass is another judge's, or about other episodes.
    """
    if earlier:
        _require_same(judged, earlier)
    now = {record.trajectory_id: record for record in judged if record.status == "ok"}
    goals = {key: MAX_GOAL * episode.score for key, episode in _canaries().items()}
    settled = [(r, goals[key]) for key, r in now.items() if key in goals and rule.dimension == GOAL.dimension]
    then = {record.trajectory_id: record for record in earlier if record.status == "ok"}
    both = [(record, then[key]) for key, record in now.items() if key in then]
    shifts = [rule.divisor * ((record.score or 0.0) - (old.score or 0.0)) for record, old in both]
    return CanaryReport(
        num=len(now),
        num_failed=len(judged) - len(now),
        error=_mean([abs(rule.divisor * (record.score or 0.0) - goal) for record, goal in settled]),
        contradicted_frac=_mean([record.success != (goal > rule.threshold) for record, goal in settled]),
        shift=_mean(shifts),
        shift_error=stdev(shifts) / math.sqrt(len(shifts)) if len(shifts) > 1 else math.nan,
        changed_frac=_mean([record.success != old.success for record, old in both]),
    )


def _canaries() -> Mapping[str, Episode]:
    return dict(trajectory_ids(canary_episodes()))


def _require_same(judged: Sequence[JudgedEpisode], earlier: Sequence[JudgedEpisode]) -> None:
    """Refuse to call it drift when another judge, or other episodes, are compared."""
    sources, before = ({record.source for record in records} for records in (judged, earlier))
    if sources != before:
        raise ConfigError(
            f"the earlier pass is by {', '.join(sorted(before))}, this one by {', '.join(sorted(sources))}. "
            "Compare a judge with itself under equal settings, or keep a new pass."
        )
    if {record.trajectory_id for record in judged} != {record.trajectory_id for record in earlier}:
        raise ConfigError(
            "the earlier pass is not about the same canaries: they may have changed with the package. "
            "Keep a new pass."
        )


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
