"""What the commands share: reading episodes and judging them by rule."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from istar_envs.episode import Episode, Outcome, read_episodes
from istar_envs.errors import ConfigError, suggest
from istar_judges.base import Scale
from istar_judges.canaries import canary_episodes
from istar_judges.dialogue import dialogue_of
from istar_judges.errors import JudgeError
from istar_judges.outcome_files import trajectory_ids
from istar_judges.verifiers import VERIFIERS, make_verifier, verifier_of

CANARIES = Path("canaries")
"""In place of a file: the episodes that come with the package."""

Judged = dict[str, tuple[Episode, Outcome]]
"""(episode, outcome) by trajectory id, in the file's order."""


def load_episodes(path: Path) -> dict[str, Episode]:
    """Read a file of episodes by trajectory id, in order; ``canaries`` names the built-in ones.

    Raises:
        ConfigError: If the file is missing or a line is not an episode.
    """
    is_built_in = path == CANARIES and not path.exists()
    return dict(trajectory_ids(canary_episodes() if is_built_in else read_episodes(path)))


def judge_by_rule(
    episodes: dict[str, Episode], verifier: str | None, scale: Scale, folders: Mapping[str, Path | None]
) -> Judged:
    """Judge episodes by the named verifier, or each by that of its environment.

    Args:
        episodes: Episodes by trajectory id.
        verifier: Name of the verifier or None.
        scale: What the score is.
        folders: Folders of data by option of the environments; None for the package's own.

    Raises:
        ConfigError: If the verifier is unknown.
    """
    options = {name: folder for name, folder in folders.items() if folder is not None}
    judges = {name: make_verifier(name, scale, options) for name in VERIFIERS}
    if verifier is not None and verifier not in VERIFIERS:
        raise ConfigError(f"unknown verifier {verifier!r}.{suggest(verifier, VERIFIERS)}")
    return {
        key: (episode, judges[verifier or verifier_of(episode.env_id)](episode))
        for key, episode in episodes.items()
    }


def seat_of(episode: Episode) -> int | None:
    """Return the seat that an episode is about; None if it has no seats or failed before it told."""
    try:
        return dialogue_of(episode).seat
    except JudgeError:
        return None


def summary(outcomes: Iterable[Outcome], noun: str = "episodes") -> str:
    """Count outcomes by status."""
    listed = list(outcomes)
    statuses = Counter(outcome.status for outcome in listed)
    counts = ", ".join(f"{number} {status}" for status, number in sorted(statuses.items())) or "none"
    return f"{len(listed)} {noun}: {counts}; {sum(o.success is True for o in listed)} successes"


def say(text: str) -> None:
    """Tell the user something."""
    print(text, file=sys.stderr)
