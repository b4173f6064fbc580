"""The published files of SOTOPIA, row by row: JSON by key, JSON lists and JSON lines into typed records.

Looks at one row at a time; whether the rows fit together is for ``official.py``.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from istar_envs.errors import ConfigError, MissingAsset
from istar_envs.sotopia.records import (
    AgentProfile,
    AgeRange,
    Pairing,
    Relationship,
    RelationshipProfile,
    Scenario,
    Text,
)

PK_FIELDS: Final = ("pk", "relationship_id")
"""Names of the column with a record's id."""

_AGES: Final = re.compile(r"\[\((\d+), ?(\d+)\), ?\((\d+), ?(\d+)\)\]")
_NO_OCCUPATION: Final = re.compile(r"nan|any", re.IGNORECASE)

Pk = Annotated[str, Field(min_length=1)]
Relation = Annotated[int, Field(ge=min(Relationship), le=max(Relationship))]
RowT = TypeVar("RowT", bound="_Row")
ReadT = TypeVar("ReadT")
ValueT = TypeVar("ValueT")


class _Row(BaseModel):
    """A row of any file; columns that this package does not read are ignored."""

    model_config = ConfigDict(frozen=True)

    pk: Pk = Field(validation_alias=AliasChoices(*PK_FIELDS))
    tag: str = ""


class AgentRow(_Row):
    """A row of ``agents.json``."""

    first_name: str
    last_name: str
    age: int = Field(ge=0)
    occupation: str
    gender: str
    gender_pronoun: str
    public_info: str
    personality_and_values: str
    secret: str
    big_five: str = ""
    moral_values: tuple[str, ...] = ()
    schwartz_personal_values: tuple[str, ...] = ()
    decision_making_style: str = ""
    mbti: str = ""

    def record(self) -> AgentProfile:
        """Return the person of this row."""
        return AgentProfile(
            pk=self.pk,
            first_name=self.first_name,
            last_name=self.last_name,
            age=self.age,
            occupation=self.occupation,
            gender=self.gender,
            pronouns=self.gender_pronoun,
            public_info=self.public_info,
            personality=self.personality_and_values,
            secret=self.secret,
            big_five=self.big_five,
            moral_values=self.moral_values,
            schwartz_values=self.schwartz_personal_values,
            decision_style=self.decision_making_style,
            mbti=self.mbti,
            tag=self.tag,
        )


class ScenarioRow(_Row):
    """A row of ``envs.json`` or of ``EnvironmentProfile.json``."""

    codename: str
    source: str
    scenario: str
    agent_goals: tuple[str, str]
    relationship: Relation
    age_constraint: str | None = None
    occupation_constraint: str | None = None

    def record(self, parse: Callable[[str], Text]) -> Scenario:
        """Return the scenario of this row, without stakes.

        Args:
            parse: Turns the text of a field into segments.

        Raises:
            ValueError: If a text or a constraint cannot be read; begins with the name of the field.
        """
        return Scenario(
            pk=self.pk,
            codename=self.codename,
            source=self.source,
            context=_field("scenario", parse, self.scenario),
            goals=(
                _field("agent_goals.0", parse, self.agent_goals[0]),
                _field("agent_goals.1", parse, self.agent_goals[1]),
            ),
            relationship=Relationship(self.relationship),
            age_range=_field("age_constraint", _age_range, self.age_constraint),
            occupations=_occupations(self.occupation_constraint),
            tag=self.tag,
        )


class PairingRow(_Row):
    """A row of ``env_agent_combos.json`` or of ``EnvAgentComboStorage.json``."""

    env_id: Pk
    agent_ids: tuple[Pk, Pk]

    def record(self) -> Pairing:
        """Return the pairing of this row."""
        return Pairing(self.pk, self.env_id, self.agent_ids)


class RelationshipRow(_Row):
    """A row of ``relationship_profiles.jsonl`` or of ``RelationshipProfile.json``."""

    agent_1: Pk = Field(validation_alias=AliasChoices("agent_1_id", "agent1_id"))
    agent_2: Pk = Field(validation_alias=AliasChoices("agent_2_id", "agent2_id"))
    relationship: Relation
    background_story: str = ""

    def record(self) -> RelationshipProfile:
        """Return the relationship of this row."""
        agents = (self.agent_1, self.agent_2)
        return RelationshipProfile(
            self.pk, agents, Relationship(self.relationship), self.background_story, self.tag
        )


def read_rows(path: Path, row_type: type[RowT]) -> dict[str, RowT]:
    """Read a file of records: a JSON object by id, a JSON list, or one JSON object a line (``.jsonl``).

    Returns:
        The rows by id, in the order of the file.

    Raises:
        MissingAsset: If the file is not there.
        ConfigError: If it is not JSON, a field is missing or wrong, or an id is there twice; names the
            file, the record and the field.
    """
    rows: dict[str, RowT] = {}
    for number, (key, value) in enumerate(_entries(path), start=1):
        where = f"{path}, record {number}" + (f" ({key})" if key else "")
        try:
            row = row_type.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "record"
            raise ConfigError(
                f"{where}, field {field}: {first['msg']}. Correct it or fetch the file again."
            ) from error
        if row.pk in rows or key not in (None, row.pk):
            wrong = "is there twice" if row.pk in rows else f"is filed under {key!r}"
            raise ConfigError(f"{where}, field pk: {row.pk!r} {wrong}. Every record needs its own id.")
        rows[row.pk] = row
    return rows


def read_json(path: Path) -> Any:
    """Read a JSON file, or a list of the lines of a ``.jsonl`` file.

    Raises:
        MissingAsset: If the file is not there.
        ConfigError: If it is not JSON; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingAsset(
            f"SOTOPIA file not found: {path} ({error.strerror}). Give the folder that holds agents.json, "
            f"envs.json and the other published files."
        ) from error
    lines = path.suffix == ".jsonl"
    parts = enumerate(text.split("\n"), start=1) if lines else [(1, text)]
    values = []
    for number, part in parts:
        if lines and not part.strip():
            continue
        try:
            values.append(json.loads(part))
        except json.JSONDecodeError as error:
            line = number + error.lineno - 1
            raise ConfigError(f"{path}, line {line}: not JSON: {error.msg}. Fetch the file again.") from error
    return values if lines else values[0]


def _entries(path: Path) -> list[tuple[str | None, Any]]:
    """Return the records of a file with the key each is filed under, if any."""
    content = read_json(path)
    if isinstance(content, dict):
        return list(content.items())
    if isinstance(content, list):
        return [(_own_pk(value), value) for value in content]
    raise ConfigError(f"{path}: expected a JSON object or list of records, got {type(content).__name__}.")


def _own_pk(value: Any) -> str | None:
    pks = [value[name] for name in PK_FIELDS if name in value] if isinstance(value, dict) else []
    return str(pks[0]) if pks else None


def _field(name: str, read: Callable[[ValueT], ReadT], value: ValueT) -> ReadT:
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"field {name}: {error}") from error


def _age_range(text: str | None) -> tuple[AgeRange, AgeRange] | None:
    if text is None:
        return None
    match = _AGES.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected ages like [(18, 70), (18, 70)], got {text!r}")
    low_1, high_1, low_2, high_2 = map(int, match.groups())
    if low_1 > high_1 or low_2 > high_2:
        raise ValueError(f"an age range ends before it begins: {text!r}")
    return AgeRange(low_1, high_1), AgeRange(low_2, high_2)


def _occupations(text: str | None) -> str | None:
    """Return the occupations asked for; "nan", "any" and empty brackets ask for none."""
    words = re.findall(r"\w+", text or "")
    return text if any(not _NO_OCCUPATION.fullmatch(word) for word in words) else None
