"""Outcomes in files: a JSON line for each episode, seat and attack, as ``istar-judge score`` writes it."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from pydantic import TypeAdapter

from istar_envs.episode import Episode, Outcome, OutcomeStatus
from istar_judges.pair_files import read_records
from istar_judges.panel import Vote


@dataclass(frozen=True, slots=True)
class JudgedEpisode:
    """What one judge said of one episode.

    Attributes:
        trajectory_id: Id of the episode; see ``trajectory_ids``.
        env_id: Its environment.
        task_id: Its task.
        status: ``ok``, or why there is no verdict.
        source: Name of the judge with version.
        score: In the judge's range; None unless ``ok``.
        success: None unless ``ok``.
        detail: Free text for people.
        seat: The seat that was judged, or None if the episode has no seats.
        attack: Name of the attack that the episode was changed by before judging, or None.
        votes: The single verdicts behind the score, if there are several.
    """

    trajectory_id: str
    env_id: str
    task_id: str
    status: OutcomeStatus
    source: str
    score: float | None = None
    success: bool | None = None
    detail: str = ""
    seat: int | None = None
    attack: str | None = None
    votes: tuple[Vote, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a number without a verdict and a verdict without a number."""
        _ = self.outcome

    @classmethod
    def of(
        cls,
        trajectory_id: str,
        episode: Episode,
        outcome: Outcome,
        *,
        seat: int | None = None,
        attack: str | None = None,
        votes: tuple[Vote, ...] = (),
    ) -> "JudgedEpisode":
        """Put an outcome together with what it is about."""
        return cls(
            trajectory_id,
            episode.env_id,
            episode.task_id,
            **asdict(outcome),
            seat=seat,
            attack=attack,
            votes=votes,
        )

    @property
    def outcome(self) -> Outcome:
        """The outcome alone."""
        return Outcome(self.status, self.source, self.score, self.success, self.detail)

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


_ADAPTER = TypeAdapter(JudgedEpisode)


def read_outcomes(path: Path) -> tuple[JudgedEpisode, ...]:
    """Read a file of outcomes.

    Raises:
        ConfigError: If the file is missing or a line is not an outcome; names the line.
    """
    return read_records(path, _ADAPTER, "outcome")


def trajectory_ids(episodes: Iterable[Episode]) -> Iterator[tuple[str, Episode]]:
    """Give each episode its id.

    The id is a hash of the episode, so it does not depend on the order of a file; episodes that are
    equal in every field are told apart by a number.
    """
    seen: dict[str, int] = {}
    for episode in episodes:
        key = sha256(episode.to_json().encode()).hexdigest()[:16]
        seen[key] = seen.get(key, 0) + 1
        yield (key if seen[key] == 1 else f"{key}-{seen[key]}"), episode
