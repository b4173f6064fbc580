"""``istar-judge score | pairs``: judge files of episodes and make preference pairs from them."""

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import tyro
from pydantic import ValidationError

from istar_envs.episode import Episode, Outcome, read_episodes
from istar_envs.errors import ConfigError, IstarError, suggest
from istar_judges.base import Scale
from istar_judges.pair_files import preference_example, write_lines, write_pairs, write_preference_examples
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
from istar_judges.verifiers import VERIFIERS, make_verifier, verifier_of

_Judged = dict[str, tuple[Episode, Outcome]]


@dataclass(frozen=True)
class Score:
    """Judge every episode of a file; one JSON line per episode, in the file's order."""

    episodes: tyro.conf.Positional[Path]
    """JSON-lines file of episodes."""
    verifier: str | None = None
    """Who judges: sokoban or webshop; by default the one of each episode's environment."""
    catalogue: Path | None = None
    """Folder of the WebShop catalogue, if it is not one of the package's own."""
    scale: Scale = "success"
    """The score: 1 or 0 for success, or the return of the environment."""
    out: Path | None = None
    """File for the outcomes; standard output if not given."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the output if it exists."""

    def run(self) -> None:
        """Write the outcomes and say how many there are."""
        judged = _judge(self.episodes, self.verifier, self.scale, self.catalogue)
        lines = [_outcome_line(key, episode, outcome) for key, (episode, outcome) in judged.items()]
        if self.out is None:
            sys.stdout.writelines(f"{line}\n" for line in lines)
        else:
            write_lines(self.out, lines, overwrite=self.overwrite)
        _say(_summary(outcome for _, outcome in judged.values()))


@dataclass(frozen=True)
class Pairs:
    """Judge the episodes of a file and pair those of one task, better over worse."""

    episodes: tyro.conf.Positional[Path]
    """JSON-lines file of episodes."""
    out: Path
    """File for the pairs, JSON lines."""
    layout: Literal["pairs", "messages"] = "pairs"
    """pairs: ids, weight and target; messages: prompt, chosen and rejected as DPO trainers read them."""
    verifier: str | None = None
    """Who judges: sokoban or webshop; by default the one of each episode's environment."""
    catalogue: Path | None = None
    """Folder of the WebShop catalogue, if it is not one of the package's own."""
    scale: Scale = "success"
    """The score: 1 or 0 for success, or the return of the environment."""
    label: Label = "threshold"
    """threshold: one score is above the threshold, one not; rank: higher; margin: higher by the margin."""
    threshold: float = 0.0
    """Scores above it are successes (label threshold)."""
    margin: float = 0.0
    """How much higher the score must be (label margin)."""
    sharpness: float | None = None
    """Soft labels: target = sigmoid(sharpness * score gap); None for hard labels."""
    pair_set: PairSet = "all"
    """all; one_to_one: each episode in at most one pair; best_worst: one pair per task."""
    weights: PairWeights = "group"
    """group: every task weighs the same; pair: every pair weighs the same."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the output if it exists."""

    def run(self) -> None:
        """Write the pairs and say how many there are."""
        rule = self._rule()
        judged = _judge(self.episodes, self.verifier, self.scale, self.catalogue)
        groups = _group(judged)
        per_group = [_pairs_of(group_id, members, rule) for group_id, members in groups.items()]
        pairs = weigh_pairs(per_group, self.weights)
        if self.layout == "pairs":
            write_pairs(self.out, pairs, overwrite=self.overwrite)
        else:
            examples = (preference_example(judged[p.preferred][0], judged[p.rejected][0]) for p in pairs)
            write_preference_examples(self.out, examples, overwrite=self.overwrite)
        _say(_summary(outcome for _, outcome in judged.values()))
        _say(f"{len(pairs)} pairs from {sum(map(bool, per_group))} of {len(groups)} tasks: {self.out}")

    def _rule(self) -> PairRule:
        try:
            return PairRule(**{name: getattr(self, name) for name in PairRule.model_fields})
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:
                raise ConfigError(f"{first['ctx']['error']}.") from error
            raise ConfigError(f"--{first['loc'][0]}: {first['msg']} (got {first['input']}).") from error


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: Arguments without the program's name; those of the process if None.

    Returns:
        The exit code: 0, or 2 after an error that the user can fix.
    """
    command: Score | Pairs = tyro.cli(
        Annotated[Score, tyro.conf.subcommand("score")] | Annotated[Pairs, tyro.conf.subcommand("pairs")],
        prog="istar-judge",
        description="Judge files of episodes and make preference pairs from them.",
        args=args,
    )
    try:
        command.run()
    except IstarError as error:
        _say(f"istar-judge: {error}")
        return 2
    except BrokenPipeError:  # the reader of standard output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _judge(path: Path, verifier: str | None, scale: Scale, catalogue: Path | None) -> _Judged:
    """Judge a file of episodes: (episode, outcome) by trajectory id, in the file's order.

    The id is a hash of the episode, so it does not depend on the order of the file; episodes that
    are equal in every field are told apart by a number.
    """
    options = {} if catalogue is None else {"catalogue": catalogue}
    judges = {name: make_verifier(name, scale, options) for name in VERIFIERS}
    if verifier is not None and verifier not in VERIFIERS:
        raise ConfigError(f"unknown verifier {verifier!r}.{suggest(verifier, VERIFIERS)}")
    judged: _Judged = {}
    seen: Counter[str] = Counter()
    for episode in read_episodes(path):
        key = sha256(episode.to_json().encode()).hexdigest()[:16]
        seen[key] += 1
        judged[key if seen[key] == 1 else f"{key}-{seen[key]}"] = (
            episode,
            judges[verifier or verifier_of(episode.env_id)](episode),
        )
    return judged


def _group(judged: _Judged) -> dict[str, _Judged]:
    groups: dict[str, _Judged] = defaultdict(dict)
    for key, (episode, outcome) in judged.items():
        groups[f"{episode.env_id}:{episode.task_id}"][key] = (episode, outcome)
    return groups


def _pairs_of(group_id: str, members: _Judged, rule: PairRule) -> tuple[PreferencePair, ...]:
    outcomes: Mapping[str, Outcome] = {key: outcome for key, (_, outcome) in members.items()}
    keys = {key: content_key(episode) for key, (episode, _) in members.items()}
    return make_pairs(outcomes, group_id=group_id, rule=rule, content_keys=keys)


def _outcome_line(key: str, episode: Episode, outcome: Outcome) -> str:
    ids = {"trajectory_id": key, "env_id": episode.env_id, "task_id": episode.task_id}
    return json.dumps({**ids, **asdict(outcome)}, ensure_ascii=False)


def _summary(outcomes: Iterable[Outcome]) -> str:
    listed = list(outcomes)
    statuses = Counter(outcome.status for outcome in listed)
    counts = ", ".join(f"{number} {status}" for status, number in sorted(statuses.items())) or "none"
    return f"{len(listed)} episodes: {counts}; {sum(o.success is True for o in listed)} successes"


def _say(text: str) -> None:
    print(text, file=sys.stderr)
