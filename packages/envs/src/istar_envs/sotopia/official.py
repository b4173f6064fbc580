"""The published scenarios of SOTOPIA and their pairings, checked and put together.

The files come from a folder that the user names; none is part of this package. Sets are told apart by
the ids of scenarios, never by the place of a row.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from istar_envs.errors import ConfigError
from istar_envs.sotopia.drafts import name_people, parse_draft
from istar_envs.sotopia.markup import parse_markup
from istar_envs.sotopia.official_rows import (
    AgentRow,
    PairingRow,
    RelationshipRow,
    ScenarioRow,
    read_json,
    read_rows,
)
from istar_envs.sotopia.official_stakes import stated_stakes
from istar_envs.sotopia.records import AgentProfile, Pairing, Relationship, Scenario, Setting

Subset = Literal["all", "hard", "drafts"]
"""The 90 test scenarios, the 14 hard ones of them, or the drafts for training."""

AGENTS: Final = "agents.json"
ID_LISTS: Final = "env_ids.json"
USED_IDS: Final = "used_env.json"
HARD_POSITIONS: Final = "sotopia_hard.json"
"""Rows of the test set's pairings; only checked against the ids of the hard scenarios."""

Relations = Mapping[frozenset[str], frozenset[Relationship]]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a set of scenarios is and how much of it there is."""

    scenarios: str
    pairings: str
    relationships: str
    num_scenarios: int
    num_pairings: int
    pairings_each: int


_TEST: Final = _Layout(
    "envs.json", "env_agent_combos.json", "relationship_profiles.jsonl", 90, num_pairings=450, pairings_each=5
)
_DRAFTS: Final = _Layout(
    "pi-drafts/EnvironmentProfile.json",
    "pi-drafts/EnvAgentComboStorage.json",
    "pi-drafts/RelationshipProfile.json",
    num_scenarios=386,
    num_pairings=2510,
    pairings_each=10,
)
_NUM_AGENTS: Final = 40
_NUM_RELATIONSHIPS: Final = 120
_NUM_HARD: Final = 14
_NUM_TRAIN_IDS: Final = 410


def load_official(folder: Path, *, subset: Subset) -> tuple[Setting, ...]:
    """Load a published set of settings, with the counts it was published with.

    Draft texts are cleaned and name the people; scenarios whose texts state points, prices or a friend in
    common carry them as stakes.

    Args:
        folder: Holds ``agents.json`` and the files beside it; drafts are in its folder ``pi-drafts``.
        subset: ``"all"`` for 90 × 5 settings, ``"hard"`` for 14 × 5, ``"drafts"`` for 2,510.

    Returns:
        One setting per pairing, in the order of the file; its id is the id of the pairing.

    Raises:
        MissingAsset: If a file is not there.
        ConfigError: If a record breaks its format, two records contradict each other, or records are
            missing; names the file, the record and the field.
    """
    is_draft = subset == "drafts"
    layout = _DRAFTS if is_draft else _TEST
    agents = {pk: row.record() for pk, row in read_rows(folder / AGENTS, AgentRow).items()}
    scenarios = _scenarios(folder / layout.scenarios, is_draft=is_draft)
    pairings = {pk: row.record() for pk, row in read_rows(folder / layout.pairings, PairingRow).items()}
    relations = _relations(folder / layout.relationships, agents)
    _check_count(folder / AGENTS, agents, _NUM_AGENTS)
    _check_count(folder / layout.scenarios, scenarios, layout.num_scenarios)
    _check_count(folder / layout.pairings, pairings, layout.num_pairings)
    for pairing in pairings.values():
        _check_pairing(folder / layout.pairings, pairing, scenarios, agents, relations)
    _check_spread(folder / layout.pairings, pairings.values(), layout.pairings_each)
    hard = frozenset() if is_draft else _checked_hard_ids(folder, scenarios, tuple(pairings.values()))
    return tuple(
        _setting(pairing, scenarios[pairing.scenario_pk], agents, is_draft=is_draft)
        for pairing in pairings.values()
        if subset != "hard" or pairing.scenario_pk in hard
    )


def read_id_lists(path: Path) -> dict[str, tuple[str, ...]]:
    """Read named lists of scenario ids, such as ``used_env.json``.

    Raises:
        MissingAsset: If the file is not there.
        ConfigError: If it is something else, or an id is in a list twice.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected lists of ids by name, got {type(content).__name__}.")
    for name, pks in content.items():
        if not isinstance(pks, list) or not all(isinstance(pk, str) for pk in pks):
            raise ConfigError(f"{path}, list {name}: expected a list of ids. Fetch the file again.")
        if len(set(pks)) < len(pks):
            twice = Counter(pks).most_common(1)[0][0]
            raise ConfigError(f"{path}, list {name}: id {twice} is there twice. Fetch the file again.")
    return {name: tuple(pks) for name, pks in content.items()}


def _scenarios(path: Path, *, is_draft: bool) -> dict[str, Scenario]:
    scenarios = {}
    for number, (pk, row) in enumerate(read_rows(path, ScenarioRow).items(), start=1):
        try:
            scenario = row.record(parse_draft if is_draft else parse_markup)
        except ValueError as error:
            raise ConfigError(f"{path}, record {number} ({pk}), {error}. Correct the text.") from error
        scenarios[pk] = replace(scenario, stakes=stated_stakes(scenario))
    return scenarios


def _relations(path: Path, agents: Mapping[str, AgentProfile]) -> Relations:
    """Return what every two people are to each other; a pair may be more than one thing."""
    rows = read_rows(path, RelationshipRow)
    _check_count(path, rows, _NUM_RELATIONSHIPS)
    relations: defaultdict[frozenset[str], set[Relationship]] = defaultdict(set)
    for number, row in enumerate(rows.values(), start=1):
        profile = row.record()
        for pk in profile.agent_pks:
            if pk not in agents:
                raise ConfigError(f"{path}, record {number} ({row.pk}): agent {pk} is not in {AGENTS}.")
        relations[frozenset(profile.agent_pks)].add(profile.relationship)
    return {pair: frozenset(kinds) for pair, kinds in relations.items()}


def _setting(
    pairing: Pairing, scenario: Scenario, agents: Mapping[str, AgentProfile], *, is_draft: bool
) -> Setting:
    first, second = pairing.agent_pks
    people = (agents[first], agents[second])
    return Setting(name_people(scenario, people) if is_draft else scenario, people, pairing.pk)


def _check_count(path: Path, records: Collection[object], expected: int) -> None:
    if len(records) != expected:
        raise ConfigError(
            f"{path}: {len(records)} records, published were {expected}. Fetch the file again; "
            f"a set of another size is another benchmark."
        )


def _check_pairing(
    path: Path,
    pairing: Pairing,
    scenarios: Mapping[str, Scenario],
    agents: Mapping[str, AgentProfile],
    relations: Relations,
) -> None:
    """Check that the people of a pairing exist and fit the scenario; occupations are never kept to."""
    where = f"{path}, record {pairing.pk}"
    scenario = scenarios.get(pairing.scenario_pk)
    if scenario is None:
        raise ConfigError(f"{where}, field env_id: no scenario {pairing.scenario_pk}. Correct the id.")
    missing = [pk for pk in pairing.agent_pks if pk not in agents]
    if missing:
        raise ConfigError(f"{where}, field agent_ids: no person {missing[0]}. Correct the id.")
    kinds = relations.get(frozenset(pairing.agent_pks), frozenset())
    if scenario.relationship not in kinds:
        raise ConfigError(
            f"{where}, field agent_ids: the two are {_names(kinds)}, scenario {scenario.pk} needs "
            f"{scenario.relationship.name}. Pair people with that relationship."
        )
    for pk, ages in zip(pairing.agent_pks, scenario.age_range or (), strict=False):
        if not ages.low <= agents[pk].age <= ages.high:
            raise ConfigError(
                f"{where}, field agent_ids: {pk} is {agents[pk].age}, scenario {scenario.pk} asks for ages "
                f"{ages.low} to {ages.high}. Pair somebody of that age."
            )


def _names(kinds: Collection[Relationship]) -> str:
    return " and ".join(kind.name for kind in sorted(kinds)) or "nothing to each other"


def _check_spread(path: Path, pairings: Collection[Pairing], each: int) -> None:
    """Check that each scenario that is played has the published number of different pairs, in slot order."""
    pairs = {(pairing.scenario_pk, pairing.agent_pks) for pairing in pairings}
    for pk, count in Counter(scenario_pk for scenario_pk, _ in pairs).items():
        if count != each:
            raise ConfigError(
                f"{path}: scenario {pk} has {count} different pairs of people, published: {each}."
            )


def _checked_hard_ids(
    folder: Path, scenarios: Collection[str], pairings: tuple[Pairing, ...]
) -> frozenset[str]:
    """Check every list of ids against the test set and return the ids of the hard scenarios."""
    path, used_path = folder / ID_LISTS, folder / USED_IDS
    lists, used = read_id_lists(path), read_id_lists(used_path)
    hard = frozenset(_named(lists, path, "sotopia_hard_env_id"))
    _check_count(path, hard, _NUM_HARD)
    _check_ids(path, _named(lists, path, "sotopia_env_id"), scenarios)
    _check_ids(used_path, _named(used, used_path, "sotopia_env"), scenarios)
    _check_ids(used_path, _named(used, used_path, "sotopia_hard_env"), hard)
    _check_ids(folder / HARD_POSITIONS, _ids_at(folder / HARD_POSITIONS, pairings), hard)
    train = [pk for name, pks in used.items() if not name.startswith("sotopia") for pk in pks]
    if len(train) != _NUM_TRAIN_IDS or len(set(train) - set(scenarios)) != _NUM_TRAIN_IDS:
        raise ConfigError(
            f"{used_path}: the training lists must name {_NUM_TRAIN_IDS} different scenarios, none of the "
            f"test set. Fetch the file again."
        )
    return hard


def _ids_at(path: Path, pairings: tuple[Pairing, ...]) -> set[str]:
    """Return the scenarios of the pairings at the positions that a file lists."""
    positions = read_json(path)
    rows = range(len(pairings))
    if not isinstance(positions, list) or not all(type(row) is int and row in rows for row in positions):
        raise ConfigError(f"{path}: expected a list of positions from 0 to {len(rows) - 1}.")
    return {pairings[row].scenario_pk for row in positions}


def _named(lists: Mapping[str, tuple[str, ...]], path: Path, name: str) -> tuple[str, ...]:
    if name not in lists:
        raise ConfigError(f"{path}: no list {name!r}. Known: {', '.join(sorted(lists))}.")
    return lists[name]


def _check_ids(path: Path, named: Collection[str], expected: Collection[str]) -> None:
    odd = set(named) ^ set(expected)
    if odd:
        raise ConfigError(
            f"{path}: scenario {min(odd)} is here or in the other files, but not in both. Fetch them again."
        )
