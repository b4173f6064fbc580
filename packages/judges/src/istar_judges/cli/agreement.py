"""``istar-judge agreement``: how far judges can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from istar_envs.errors import ConfigError
from istar_judges.agreement.compare import compare
from istar_judges.agreement.formats import terminal_report
from istar_judges.agreement.raters import JudgeFile, Key, audit, observe, read_labels
from istar_judges.agreement.report import write_report
from istar_judges.cli.judging import load_episodes, say
from istar_judges.outcome_files import read_outcomes
from istar_judges.sotopia import SotopiaVerifier


@dataclass(frozen=True)
class Agreement:
    """Compare judges with each other, with what can be checked by rule, and with people."""

    episodes: tyro.conf.Positional[Path]
    """JSON-lines file of the episodes that were judged, or the word canaries."""
    outcomes: tyro.conf.UseAppendAction[tuple[Path, ...]]
    """Outcomes of one judge on these episodes, written by istar-judge score; give it once for each judge."""
    human: Path | None = None
    """People's labels: JSON lines with trajectory_id, seat and score (0 to 10)."""
    scenarios: Path | None = None
    """Folder of the published SOTOPIA files, if the episodes were played in them."""
    out: Path | None = None
    """Folder for report.html, agreement.json and the pictures; none if not given."""
    resamples: int = 1000
    """Resamples of each interval."""
    seed: int = 0
    """Seed of the resamples."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace an older report."""

    def run(self) -> None:
        """Print the tables and write the report."""
        if self.resamples < 1:
            raise ConfigError(f"--resamples: must be 1 or more (got {self.resamples}).")
        if not self.outcomes:
            raise ConfigError("no outcomes to compare; give --outcomes once for each judge.")
        episodes = load_episodes(self.episodes)
        verifier = SotopiaVerifier() if self.scenarios is None else SotopiaVerifier(scenarios=self.scenarios)
        judges = _named(self.outcomes)
        keys: set[Key] = {key for judge in judges for key in (*judge.scores, *judge.failed)}
        observations = observe(episodes, keys, verifier)
        if not observations.keys:
            raise ConfigError(
                f"none of the outcomes is about an episode of {self.episodes}. Score that very file."
            )
        found = {
            "audit": audit(episodes, verifier),
            "people": {} if self.human is None else read_labels(self.human),
        }
        aligned = {name: observations.aligned(scores) for name, scores in found.items()}
        references = {name: points for name, points in aligned.items() if np.isfinite(points).any()}
        comparison = compare(judges, references, observations, num_resamples=self.resamples, seed=self.seed)
        if self.out is not None:
            say(f"report: {write_report(comparison, self.out, overwrite=self.overwrite)}")
        print(terminal_report(comparison))


def _named(paths: Sequence[Path]) -> list[JudgeFile]:
    """Read the files; each judge is called as its file is."""
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    return [JudgeFile.of(name, read_outcomes(path)) for name, path in zip(names, paths, strict=True)]
