"""What a judge is asked: dimensions with their ranges and questions, as data in TOML files.

A published name never changes its text. How a rubric becomes a prompt is in ``prompting.py``, how the
answer is read in ``verdict.py``.
"""

import tomllib
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from istar_envs.errors import ConfigError, suggest


class Band(BaseModel):
    """What the scores of one part of a dimension's range mean."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    low: int
    high: int
    meaning: Annotated[str, Field(min_length=1)]


class Dimension(BaseModel):
    """One thing that is scored, in whole numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    key: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    low: int
    high: int
    question: Annotated[str, Field(min_length=1)]
    bands: Annotated[tuple[Band, ...], Field(strict=False)] = ()
    """Parts of the range, from low to high and without a gap, with their meaning; none if empty."""

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"dimension {self.key}: low = {self.low} must be below high = {self.high}")
        return self

    @model_validator(mode="after")
    def _check_bands(self) -> Self:
        scores = [score for band in self.bands for score in range(band.low, band.high + 1)]
        if self.bands and scores != list(range(self.low, self.high + 1)):
            shown = ", ".join(f"{band.low} to {band.high}" for band in self.bands)
            raise ValueError(
                f"dimension {self.key}: the bands {shown} must cover {self.low} to {self.high} in order, "
                "each score once"
            )
        return self


class Rubric(BaseModel):
    """The dimensions of one kind of verdict, and who is scored in one call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    calls: Literal["together", "each"]
    """together: one call scores every seat; each: one call per seat."""
    dimensions: Annotated[tuple[Dimension, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        keys = self.keys
        if len(set(keys)) < len(keys):
            raise ValueError(f"dimension keys repeat: {', '.join(keys)}")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the dimensions, in order."""
        return tuple(dimension.key for dimension in self.dimensions)

    @property
    def version(self) -> str:
        """Name and a hash of the content: two rubrics with equal versions ask the same."""
        content = self.model_dump_json(exclude_defaults=True)
        return f"{self.name}#{sha256(content.encode()).hexdigest()[:8]}"

    def dimension(self, key: str) -> Dimension:
        """Return a dimension by key.

        Raises:
            ConfigError: If the rubric has no such dimension.
        """
        for dimension in self.dimensions:
            if dimension.key == key:
                return dimension
        raise ConfigError(f"rubric {self.name!r} has no dimension {key!r}.{suggest(key, self.keys)}")


@cache
def load_rubric(name: str) -> Rubric:
    """Load a shipped rubric by name, or one of your own by path.

    A file has ``calls`` and ``[[dimensions]]``, or names another rubric as ``base`` and changes its
    ``calls``, picks the ``keys`` of some of its dimensions, or gives them ``[bands]`` by key.

    Args:
        name: ``sotopia-v1``, ``goal-v1``, either with ``each`` or ``plus`` before the ``v1``, or the path
            of a ``.toml`` file.

    Raises:
        ConfigError: If it does not exist or breaks the format.
    """
    raw = read_toml("rubrics", name)
    try:
        if "base" in raw:
            raw = _derive(load_rubric(str(raw.pop("base"))), raw)
        return Rubric.model_validate({**raw, "name": name_of(name)})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise ConfigError(f"rubric {name!r}: {where}: {first['msg']}.") from error


def name_of(name: str) -> str:
    """Return the name of a data file: the name itself, or that of the file at a path."""
    return Path(name).stem if name.endswith(".toml") else name


def read_toml(folder: str, name: str) -> dict[str, Any]:
    """Read a data file of this package by name, or one of the user's by path.

    Args:
        folder: Folder of the package, ``rubrics`` or ``prompts``.
        name: Name without ending, or the path of a ``.toml`` file.

    Raises:
        ConfigError: If there is no such file or it is not TOML.
    """
    home = resources.files("istar_judges") / folder
    shipped = sorted(f.name.removesuffix(".toml") for f in home.iterdir() if f.name.endswith(".toml"))
    if name not in shipped and not (name.endswith(".toml") and Path(name).is_file()):
        raise ConfigError(
            f"no {folder.removesuffix('s')} {name!r}.{suggest(name, shipped)} "
            "Or give the path of a .toml file."
        )
    raw = (home / f"{name}.toml").read_bytes() if name in shipped else Path(name).read_bytes()
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{folder.removesuffix('s')} {name!r} cannot be read: {error}.") from error


def _derive(base: Rubric, changes: dict[str, Any]) -> dict[str, Any]:
    keys = changes.pop("keys", base.keys)
    dimensions = {key: base.dimension(key).model_dump() for key in keys}
    for key, bands in dict(changes.pop("bands", {})).items():
        if key not in dimensions:
            raise ConfigError(f"bands of {key!r}, which this rubric does not ask.{suggest(key, dimensions)}")
        dimensions[key]["bands"] = bands
    return {"calls": base.calls, "dimensions": tuple(dimensions.values()), **changes}
