"""Who rated what: judges' outcome files, the deterministic audit and people's labels, side by side.

Every rater's scores become one array over the same observations, in points from 0 to 10, NaN where the
rater said nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from istar_envs.episode import Episode
from istar_envs.errors import ConfigError, EnvError
from istar_judges.agreement.statistics import Floats
from istar_judges.dialogue import dialogue_of
from istar_judges.dialogue_judge import words_of
from istar_judges.errors import JudgeError
from istar_judges.outcome_files import JudgedEpisode
from istar_judges.pair_files import read_records
from istar_judges.sotopia import SotopiaVerifier, without_seat

POINTS: Final = 10.0
"""Points of a score of 1."""

Key = tuple[str, int | None]
"""An observation: trajectory id and seat."""


@dataclass(frozen=True, slots=True)
class Observations:
    """What was rated, in a fixed order.

    Attributes:
        keys: Trajectory id and seat.
        clusters: Scenario of each.
        words: Words that the seat said; NaN where there is no dialogue.
    """

    keys: tuple[Key, ...]
    clusters: tuple[str, ...]
    words: Floats

    @property
    def seats(self) -> Floats:
        """Seat of each observation; NaN where there are no seats."""
        return np.asarray([np.nan if seat is None else float(seat) for _, seat in self.keys])

    def aligned(self, values: Mapping[Key, float]) -> Floats:
        """Return values in the order of the observations, NaN where there is none."""
        return np.asarray([values.get(key, np.nan) for key in self.keys], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class JudgeFile:
    """One judge's outcomes of one pass.

    Attributes:
        name: Short name for tables.
        source: The judge's own name with version.
        scores: Points of each observation.
        failed: Status of each observation without a verdict.
        votes: Points of the single verdicts, and whether the last seat came first in each.
        attacked: Points under each attack.
    """

    name: str
    source: str
    scores: Mapping[Key, float]
    failed: Mapping[Key, str]
    votes: Mapping[Key, tuple[tuple[float, bool], ...]]
    attacked: Mapping[str, Mapping[Key, float]]

    @classmethod
    def of(cls, name: str, records: Sequence[JudgedEpisode]) -> "JudgeFile":
        """Sort a judge's outcomes.

        Raises:
            ConfigError: If the file is empty, mixes judges or has two verdicts on one observation.
        """
        sources = sorted({record.source for record in records})
        if len(sources) != 1:
            raise ConfigError(
                f"outcomes {name}: {len(sources)} judges in one file ({', '.join(sources) or 'none'}). "
                "Give one file for each judge."
            )
        seen = Counter((record.trajectory_id, record.seat, record.attack) for record in records)
        twice = next((key for key, number in seen.items() if number > 1), None)
        if twice is not None:
            raise ConfigError(f"outcomes {name}: two outcomes of trajectory {twice[0]}, seat {twice[1]}.")
        attacked: dict[str, dict[Key, float]] = defaultdict(dict)
        for record in records:
            if record.attack is not None and record.score is not None:
                attacked[record.attack][_key(record)] = POINTS * record.score
        plain = [record for record in records if record.attack is None]
        return cls(
            name,
            sources[0],
            {_key(record): POINTS * record.score for record in plain if record.score is not None},
            {_key(record): record.status for record in plain if record.status != "ok"},
            {_key(r): tuple((POINTS * v.score, v.swapped) for v in r.votes) for r in plain if r.votes},
            dict(attacked),
        )


class HumanLabel(BaseModel):
    """A line of a file of people's labels; several labels of one observation are averaged."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    trajectory_id: str
    seat: int | None = None
    score: Annotated[float, Field(ge=0.0, le=POINTS, allow_inf_nan=False)]
    """How far the goal was reached, 0 to 10."""


def read_labels(path: Path) -> dict[Key, float]:
    """Read people's labels: JSON lines with ``trajectory_id``, ``seat`` and ``score`` from 0 to 10.

    Raises:
        ConfigError: If the file is missing or a line is not a label; names the line.
    """
    scores: dict[Key, list[float]] = defaultdict(list)
    for label in read_records(path, TypeAdapter(HumanLabel), "human label"):
        scores[label.trajectory_id, label.seat].append(label.score)
    return {key: mean(values) for key, values in scores.items()}


def observe(episodes: Mapping[str, Episode], keys: Iterable[Key], verifier: SotopiaVerifier) -> Observations:
    """Describe what was rated.

    Args:
        episodes: Episodes by trajectory id.
        keys: Observations; those of other episodes are left out.
        verifier: Knows the scenarios.
    """
    known = sorted({key for key in keys if key[0] in episodes}, key=lambda key: (key[0], str(key[1])))
    clusters = {name: _cluster(episodes[name], verifier) for name in {name for name, _ in known}}
    words = [_words(episodes[name], seat) for name, seat in known]
    return Observations(
        tuple(known), tuple(clusters[name] for name, _ in known), np.asarray(words, dtype=np.float64)
    )


def audit(episodes: Mapping[str, Episode], verifier: SotopiaVerifier) -> dict[Key, float]:
    """Settle both seats' goals of every episode where that is possible, in points."""
    goals: dict[Key, float] = {}
    for name, episode in episodes.items():
        try:
            found = verifier.goals(episode)
        except JudgeError:  # an episode of another world
            continue
        if not isinstance(found, str):
            goals |= {(name, seat): found[seat].goal for seat in (0, 1)}
    return goals


def _key(record: JudgedEpisode) -> Key:
    return record.trajectory_id, record.seat


def _cluster(episode: Episode, verifier: SotopiaVerifier) -> str:
    try:
        return verifier.setting(episode).scenario.pk
    except (ConfigError, EnvError):
        return without_seat(episode.task_id)


def _words(episode: Episode, seat: int | None) -> float:
    if seat is None:
        return np.nan
    try:
        return float(words_of(dialogue_of(episode), seat))
    except JudgeError:
        return np.nan
