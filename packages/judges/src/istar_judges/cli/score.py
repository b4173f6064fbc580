"""``istar-judge score``: the outcome of every episode of a file."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from istar_envs.episode import Episode
from istar_judges.base import Scale
from istar_judges.cli.judging import judge_by_rule, load_episodes, say, seat_of, summary
from istar_judges.cli.models import Model
from istar_judges.outcome_files import JudgedEpisode
from istar_judges.pair_files import write_lines


@dataclass(frozen=True)
class Score:
    """Judge every episode of a file; one JSON line per episode, in the file's order."""

    episodes: tyro.conf.Positional[Path]
    """JSON-lines file of episodes, or the word canaries for built-in dialogues with known results."""
    verifier: str | None = None
    """Who judges: sokoban, sotopia or webshop; by default the one of each episode's environment."""
    catalogue: Path | None = None
    """Folder of the WebShop catalogue, if it is not one of the package's own."""
    scenarios: Path | None = None
    """Folder of the published SOTOPIA files, if the episodes were played in them."""
    scale: Scale = "success"
    """The score: 1 or 0 for success, or the return of the environment."""
    asked: tyro.conf.OmitArgPrefixes[Model] = field(default_factory=Model)
    """Judge dialogues by asking a model instead."""
    out: Path | None = None
    """File for the outcomes; standard output if not given."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the output if it exists."""

    def run(self) -> None:
        """Write the outcomes and say how many there are."""
        records = self._judge(load_episodes(self.episodes))
        lines = [record.to_json() for record in records]
        if self.out is None:
            sys.stdout.writelines(f"{line}\n" for line in lines)
        else:
            write_lines(self.out, lines, overwrite=self.overwrite)
        noun = "episodes" if self.asked.model is None else "verdicts"
        say(summary((record.outcome for record in records), noun))

    def _judge(self, episodes: dict[str, Episode]) -> list[JudgedEpisode]:
        if self.asked.model is not None:
            return self.asked.judge(episodes)
        options = {"catalogue": self.catalogue, "scenarios": self.scenarios}
        judged = judge_by_rule(episodes, self.verifier, self.scale, options)
        return [JudgedEpisode.of(key, e, outcome, seat=seat_of(e)) for key, (e, outcome) in judged.items()]
