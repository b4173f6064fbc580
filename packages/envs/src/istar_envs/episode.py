"""Records of what happened in an environment: what an env yields and a judge reads.

Text and images only; tokens belong to the trainer. Images are kept by content hash, the bytes
live beside the records (``ImageStore``), so that a transcript stays small and readable.
"""

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import TypeAdapter, ValidationError

from istar_envs.errors import ConfigError

EndReason = Literal["terminated", "truncated", "failed"]
OutcomeStatus = Literal["ok", "invalid", "refused", "timeout", "budget", "unavailable"]


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of an episode as the agent saw it and the environment answered.

    Attributes:
        observation: Text that the agent saw before acting ("" in a purely visual step).
        image: SHA-256 of the PNG that the agent saw, or None.
        reply: The model's text, verbatim.
        action: The action taken, by name, or None when the reply was invalid.
        reward: The environment's own reward for this step.
        valid: Whether the reply was a legal action.
        invalid_reason: Why not, or None.
        state_key: Key of the state before the action; equal iff the states are equal.
        info: JSON-ready facts of the environment after the step.
    """

    observation: str
    reply: str
    action: str | None
    reward: float
    valid: bool
    state_key: str
    invalid_reason: str | None = None
    image: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Episode:
    """All transitions of one episode and how it ended.

    Attributes:
        env_id: Registered environment id.
        task_id: What was played (level, goal, scenario); equal ids mean equal starts.
        task: The task in words.
        transitions: In order; empty if the episode failed before its first step.
        success: Whether the environment's own goal was reached.
        score: Environment score in [0, 1].
        end: ``terminated`` (the world ended), ``truncated`` (a limit) or ``failed`` (broken).
        final_observation: Text after the last step.
        error: What broke, when ``end`` is ``failed``.
    """

    env_id: str
    task_id: str
    task: str
    transitions: tuple[Transition, ...]
    success: bool
    score: float
    end: EndReason
    final_observation: str = ""
    error: str | None = None

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of the environment's rewards."""
        return sum(t.reward for t in self.transitions)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-ready values."""
        return asdict(self)

    def to_json(self) -> str:
        """Return one line of JSON that ``from_json`` reads back to an equal episode.

        Half of a surrogate pair, which no UTF-8 file can hold, is written as U+FFFD.
        """
        return valid_text(json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":")))

    @classmethod
    def from_json(cls, line: str | bytes) -> "Episode":
        """Read an episode from its JSON form.

        Raises:
            pydantic.ValidationError: If a field is missing or has the wrong type.
        """
        return _EPISODE.validate_json(line)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a verifier or judge says of an episode; there is a number only if it could tell.

    Attributes:
        status: ``ok``, or why there is no verdict.
        score: The judged result, in the judge's declared range; None unless ``ok``.
        success: Whether the result counts as a success; None unless ``ok``.
        source: Who says so (verifier or judge name with version).
        detail: Free text for people.
    """

    status: OutcomeStatus
    source: str
    score: float | None = None
    success: bool | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        """Refuse a number without a verdict and a verdict without a number."""
        has_number = self.score is not None and self.success is not None
        has_none = self.score is None and self.success is None
        if not (has_number if self.status == "ok" else has_none):
            raise ValueError(
                f"outcome of {self.source}: status {self.status!r} with score={self.score!r}, "
                f"success={self.success!r}; give both with status 'ok' and neither otherwise"
            )


class Scorer(Protocol):
    """Anything that turns an episode into an outcome."""

    def __call__(self, episode: Episode) -> Outcome:
        """Judge one finished episode."""
        ...


_EPISODE = TypeAdapter(Episode)


def valid_text(text: str) -> str:
    """Return text that UTF-8 can hold: lone surrogates become U+FFFD, everything else stays."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def write_episodes(path: Path, episodes: Iterable[Episode]) -> None:
    """Append episodes to a JSON-lines file, one per line."""
    with path.open("a", encoding="utf-8") as out:
        for episode in episodes:
            out.write(episode.to_json() + "\n")


def read_episodes(path: Path) -> Iterator[Episode]:
    """Read a JSON-lines file of episodes.

    Raises:
        ConfigError: If the file is missing or a line is not an episode; names the line.
    """
    try:
        lines = path.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read episodes: {path} ({error.strerror}). Check the path.") from error
    with lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield Episode.from_json(line)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                raise ConfigError(
                    f"{path}, line {number}: not an episode: {where or 'line'}: {first['msg']}. "
                    f"Each line must be one JSON episode as written by istar."
                ) from error


class ImageStore:
    """Images by content hash in a folder; equal pictures are stored once.

    Args:
        folder: Where the PNG files go; created on the first write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, png: bytes) -> str:
        """Store PNG bytes and return their SHA-256 in hex."""
        key = hashlib.sha256(png).hexdigest()
        target = self.folder / f"{key}.png"
        if not target.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = target.with_suffix(".part")
            partial.write_bytes(png)
            partial.replace(target)
        return key

    def get(self, key: str) -> bytes:
        """Return the PNG bytes of a hash.

        Raises:
            KeyError: If no such image was stored.
        """
        try:
            return (self.folder / f"{key}.png").read_bytes()
        except FileNotFoundError as error:
            raise KeyError(key) from error


class RecentImages(ImageStore):
    """Images by content hash in memory, for any number of threads; the oldest go when there are too many.

    Args:
        most: How many are kept.
    """

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._known: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, png: bytes) -> str:
        """Keep PNG bytes as the newest and return their SHA-256 in hex."""
        key = hashlib.sha256(png).hexdigest()
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = png
            if len(self._known) > self._most:
                del self._known[next(iter(self._known))]
        return key

    def get(self, key: str) -> bytes:
        """Return the PNG bytes of a hash.

        Raises:
            KeyError: If no such image is kept.
        """
        return self._known[key]
