"""``istar-judge pairs``: preference pairs from the episodes of a file."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from pydantic import ValidationError

from istar_envs.episode import Episode, Outcome
from istar_envs.errors import ConfigError
from istar_judges.base import Scale
from istar_judges.cli.judging import Judged, judge_by_rule, load_episodes, say, seat_of, summary
from istar_judges.outcome_files import JudgedEpisode, read_outcomes
from istar_judges.pair_datasets import write_dataset, write_parquet
from istar_judges.pair_files import (
    PreferenceExample,
    preference_example,
    write_pairs,
    write_preference_examples,
)
from istar_judges.pairs import (
    Label,
    PairRule,
    PairSet,
    PairWeights,
    PreferencePair,
    content_key,
    make_pairs,
    weigh_pairs,
)
from istar_judges.soft_labels import score_errors


@dataclass(frozen=True)
class Pairs:
    """Judge the episodes of a file and pair those of one task, better over worse."""

    episodes: tyro.conf.Positional[Path]
    """JSON-lines file of episodes."""
    out: Path
    """File for the pairs; a folder with format dataset."""
    layout: Literal["pairs", "messages"] = "pairs"
    """pairs: ids, weight and target; messages: prompt, chosen and rejected as DPO trainers read them."""
    format: Literal["jsonl", "parquet", "dataset"] = "jsonl"
    """dataset: a folder that Hugging Face datasets loads (layout messages)."""
    outcomes: Path | None = None
    """Outcomes of these episodes, written by istar-judge score; instead of a verifier."""
    verifier: str | None = None
    """Who judges: sokoban, sotopia or webshop; by default the one of each episode's environment."""
    catalogue: Path | None = None
    """Folder of the WebShop catalogue, if it is not one of the package's own."""
    scenarios: Path | None = None
    """Folder of the published SOTOPIA files, if the episodes were played in them."""
    scale: Scale = "success"
    """The score: 1 or 0 for success, or the return of the environment."""
    label: Label = "threshold"
    """threshold: one score is above the threshold, one not; success: one is a success, one not;
    rank: higher; margin: higher by the margin."""
    threshold: float = 0.0
    """Scores above it are successes (label threshold)."""
    margin: float = 0.0
    """How much higher the score must be (label margin)."""
    sharpness: float | None = None
    """Soft labels: target = sigmoid(sharpness * score gap); None for hard labels."""
    noise: tyro.conf.FlagCreatePairsOff[bool] = False
    """Soft labels from the scatter of the judge's own votes (needs outcomes of several samples)."""
    pair_set: PairSet = "all"
    """all; one_to_one: each episode in at most one pair; best_worst: one pair per task."""
    weights: PairWeights = "group"
    """group: every task weighs the same; pair: every pair weighs the same."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the output if it exists."""

    def run(self) -> None:
        """Write the pairs and say how many there are."""
        rule = self._rule()
        self._check()
        episodes = load_episodes(self.episodes)
        recorded = None if self.outcomes is None else _recorded(self.outcomes, episodes)
        judged = self._judge(episodes, recorded)
        errors = self._errors(recorded)
        groups = _group(judged)
        per_group = [_pairs_of(group_id, members, rule, errors) for group_id, members in groups.items()]
        pairs = weigh_pairs(per_group, self.weights)
        self._write(pairs, judged)
        say(summary(outcome for _, outcome in judged.values()))
        say(f"{len(pairs)} pairs from {sum(map(bool, per_group))} of {len(groups)} tasks: {self.out}")

    def _judge(self, episodes: dict[str, Episode], recorded: Mapping[str, JudgedEpisode] | None) -> Judged:
        if recorded is None:
            options = {"catalogue": self.catalogue, "scenarios": self.scenarios}
            return judge_by_rule(episodes, self.verifier, self.scale, options)
        return {key: (episode, recorded[key].outcome) for key, episode in episodes.items()}

    def _errors(self, recorded: Mapping[str, JudgedEpisode] | None) -> dict[str, float] | None:
        """Return the standard error of every score, if soft labels come from noise."""
        if not self.noise:
            return None
        records = (recorded or {}).items()
        votes = {key: [vote.score for vote in r.votes] for key, r in records if r.status == "ok"}
        try:
            return score_errors(votes)
        except ValueError as error:
            raise ConfigError(f"--noise: {error}. Score with --samples 2 or more.") from error

    def _check(self) -> None:
        if self.noise and (self.outcomes is None or self.sharpness is not None):
            raise ConfigError("--noise needs --outcomes with votes, and no --sharpness.")
        if self.format == "dataset" and self.layout != "messages":
            raise ConfigError(f"--format dataset holds messages, not {self.layout}. Give --layout messages.")

    def _write(self, pairs: Sequence[PreferencePair], judged: Judged) -> None:
        if self.layout == "pairs":
            write = write_parquet if self.format == "parquet" else write_pairs
            write(self.out, pairs, overwrite=self.overwrite)
            return
        examples = [preference_example(judged[p.preferred][0], judged[p.rejected][0]) for p in pairs]
        self._write_examples(examples)

    def _write_examples(self, examples: Sequence[PreferenceExample]) -> None:
        match self.format:
            case "dataset":
                write_dataset(self.out, examples, overwrite=self.overwrite)
            case "parquet":
                write_parquet(self.out, examples, overwrite=self.overwrite)
            case "jsonl":
                write_preference_examples(self.out, examples, overwrite=self.overwrite)

    def _rule(self) -> PairRule:
        try:
            return PairRule(**{name: getattr(self, name) for name in PairRule.model_fields})
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:
                raise ConfigError(f"{first['ctx']['error']}.") from error
            raise ConfigError(f"--{first['loc'][0]}: {first['msg']} (got {first['input']}).") from error


def _recorded(path: Path, episodes: Mapping[str, Episode]) -> dict[str, JudgedEpisode]:
    """Find the outcome of each episode, of its own seat and without attacks, in a file."""
    found: dict[str, JudgedEpisode] = {}
    for record in read_outcomes(path):
        episode = episodes.get(record.trajectory_id)
        if episode is not None and record.attack is None and record.seat in (None, seat_of(episode)):
            found[record.trajectory_id] = record
    missing = [key for key in episodes if key not in found]
    if missing:
        raise ConfigError(
            f"{path} has no outcome of {len(missing)} of the {len(episodes)} episodes, such as {missing[0]}. "
            "Score the same file of episodes."
        )
    return found


def _group(judged: Judged) -> dict[str, Judged]:
    groups: dict[str, Judged] = defaultdict(dict)
    for key, (episode, outcome) in judged.items():
        groups[f"{episode.env_id}:{episode.task_id}"][key] = (episode, outcome)
    return groups


def _pairs_of(
    group_id: str, members: Judged, rule: PairRule, errors: Mapping[str, float] | None
) -> tuple[PreferencePair, ...]:
    outcomes: Mapping[str, Outcome] = {key: outcome for key, (_, outcome) in members.items()}
    keys = {key: content_key(episode) for key, (episode, _) in members.items()}
    return make_pairs(outcomes, group_id=group_id, rule=rule, content_keys=keys, errors=errors)
