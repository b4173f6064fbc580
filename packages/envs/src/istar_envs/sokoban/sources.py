"""Where levels come from: an endless generator, a fixed list, or a file.

A split never shares a level with another, rotations and reflections included: what decides is the
canonical hash of the level, in every source alike.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Final, Protocol

from istar_envs.errors import ConfigError, EnvError, suggest
from istar_envs.seeding import derive_seed
from istar_envs.sokoban.formats import parse_xsb, read_levels
from istar_envs.sokoban.generator import Recipe, generate
from istar_envs.sokoban.levels import SPLITS, Level, Split, make_level
from istar_envs.sokoban.presets import PRESETS

FILE_MAX_STEPS: Final = 120
"""Step limit of levels from a file, unless another is asked for."""
_ID: Final = re.compile(
    r"(?P<name>(?P<preset>[^/\[]+)(?:\[(?P<low>\d+)-(?P<high>\d+)\])?)/(?P<split>\w+)#-?\d+"
)


class LevelSource(Protocol):
    """A set of levels with names; safe to share between threads."""

    @property
    def name(self) -> str:
        """Preset or file stem."""
        ...

    @property
    def split(self) -> str:
        """``train``, ``dev``, ``test``, or ``all`` for a whole file."""
        ...

    @property
    def max_steps(self) -> int:
        """Steps after which an episode on these levels is truncated."""
        ...

    @property
    def height(self) -> int:
        """Rows of the highest level, border included."""
        ...

    @property
    def width(self) -> int:
        """Columns of the widest level, border included."""
        ...

    def draw(self, seed: int) -> Level:
        """Return the level of a seed: the same one in every process and thread."""
        ...

    def ids(self) -> Sequence[str] | None:
        """Return the ids of a fixed set of levels in order; None if it is endless."""
        ...

    def get(self, level_id: str) -> Level:
        """Return the level of an id.

        Raises:
            EnvError: If there is no such level.
        """
        ...


@dataclass(frozen=True, slots=True)
class GeneratedLevels:
    """The endless train split of a preset; ids are ``name/train#seed``.

    Attributes:
        name: Preset, followed by ``[min-max]`` if the range of optima is not the preset's.
        recipe: How the levels are made.
        max_steps: Step limit.
        split: Always ``train``.
    """

    name: str
    recipe: Recipe
    max_steps: int
    split: Split = "train"

    @property
    def height(self) -> int:
        """Rows of every level."""
        return self.recipe.height

    @property
    def width(self) -> int:
        """Columns of every level."""
        return self.recipe.width

    def draw(self, seed: int) -> Level:
        """Make the level of a seed; equal in every process and thread."""
        return generate(
            self.recipe, derive_seed(seed, self.name, self.split), self.split, f"{self.name}/train#{seed}"
        )

    def ids(self) -> None:
        """Return None: there is a level for every integer."""
        return

    def get(self, level_id: str) -> Level:
        """Return the level of an id of this or any other preset.

        Raises:
            EnvError: If there is no such level.
        """
        prefix, _, seed = level_id.rpartition("#")
        if prefix == f"{self.name}/train" and re.fullmatch(r"-?\d+", seed):
            return self.draw(int(seed))
        return _find(level_id, self)


@dataclass(frozen=True, slots=True)
class ListedLevels:
    """A fixed list of levels; seeds count through it and start again at its end.

    Attributes:
        name: Preset or file stem.
        split: Which part of the levels this is.
        max_steps: Step limit.
        levels: The levels, each with its id.
    """

    name: str
    split: str
    max_steps: int
    levels: tuple[Level, ...] = field(repr=False)

    @property
    def height(self) -> int:
        """Rows of the highest level."""
        return max(level.layout.height for level in self.levels)

    @property
    def width(self) -> int:
        """Columns of the widest level."""
        return max(level.layout.width for level in self.levels)

    def draw(self, seed: int) -> Level:
        """Return level number ``seed`` modulo the length of the list."""
        return self.levels[seed % len(self.levels)]

    def ids(self) -> Sequence[str]:
        """Return all ids in order."""
        return [level.id for level in self.levels]

    def get(self, level_id: str) -> Level:
        """Return the level of an id of this list or any preset.

        Raises:
            EnvError: If there is no such level.
        """
        found = next((level for level in self.levels if level.id == level_id), None)
        return found or _find(level_id, self)


def level_source(
    levels: str | Path,
    split: str = "train",
    *,
    min_moves: int | None = None,
    max_moves: int | None = None,
    max_steps: int | None = None,
) -> LevelSource:
    """Open a source of levels.

    Args:
        levels: Name of a preset, or path of an XSB or Boxoban file.
        split: ``train`` (endless for presets), ``dev`` or ``test`` (fixed lists); for files also
            ``all``.
        min_moves: Least optimum; presets only, default the preset's.
        max_moves: Greatest optimum; presets only, default the preset's.
        max_steps: Step limit; default the preset's, or ``FILE_MAX_STEPS``.

    Returns:
        The source. It draws nothing before it is asked.

    Raises:
        ConfigError: If an option is unknown or out of range.
        MissingAsset: If the file cannot be read.
        LevelFormatError: If the file is malformed.
    """
    preset = PRESETS.get(str(levels))
    if preset is None:
        return _file_source(levels, split, min_moves, max_moves, max_steps)
    if split not in SPLITS:
        raise ConfigError(f"levels {levels!r} have no split {split!r}.{suggest(split, SPLITS)}")
    steps = preset.max_steps if max_steps is None else max_steps
    low = preset.recipe.min_moves if min_moves is None else min_moves
    high = min(preset.recipe.max_moves, steps) if max_moves is None else max_moves
    if not 1 <= low <= high <= steps:
        raise ConfigError(
            f"levels {levels!r}: min_moves={low}, max_moves={high}, max_steps={steps}; "
            f"they must be 1 or more and not decrease, so that every level can be solved in time."
        )
    name = str(levels)
    if split == "train":
        recipe = replace(preset.recipe, min_moves=low, max_moves=high)
        return GeneratedLevels(name if recipe == preset.recipe else f"{name}[{low}-{high}]", recipe, steps)
    listed = tuple(level for level in _shipped(name, split) if low <= (level.num_moves or 0) <= high)
    if not listed:
        raise ConfigError(
            f"no {split} level of {name!r} has an optimum of {low} to {high} moves. Widen the range."
        )
    return ListedLevels(name, split, steps, listed)


def _file_source(
    levels: str | Path, split: str, min_moves: int | None, max_moves: int | None, max_steps: int | None
) -> ListedLevels:
    """Open a level file."""
    path = Path(levels)
    if not path.exists() and not path.suffix:
        raise ConfigError(
            f"levels {str(levels)!r} are neither a preset nor a file.{suggest(str(levels), PRESETS)}"
        )
    if split not in (*SPLITS, "all"):
        raise ConfigError(f"level file {path} has no split {split!r}.{suggest(split, (*SPLITS, 'all'))}")
    if min_moves is not None or max_moves is not None:
        raise ConfigError(
            f"level file {path}: min_moves and max_moves work with presets only. Leave them out."
        )
    steps = FILE_MAX_STEPS if max_steps is None else max_steps
    if steps < 1:
        raise ConfigError(f"level file {path}: max_steps={steps} must be 1 or more.")
    boards = enumerate(read_levels(path))
    made = (make_level(board.layout, board.start, f"{path.stem}#{index}") for index, board in boards)
    kept = tuple(level for level in made if split in ("all", level.split))
    if not kept:
        raise ConfigError(f"level file {path} has no level in split {split!r}. Use split 'all'.")
    return ListedLevels(path.stem, split, steps, kept)


@lru_cache(maxsize=32)
def _shipped(preset: str, split: str) -> tuple[Level, ...]:
    """Read a fixed list of the package: lines of optimal moves, pushes and the board."""
    text = files("istar_envs.sokoban").joinpath("splits", f"{preset}.{split}.txt").read_text("utf-8")
    levels = []
    for index, line in enumerate(text.splitlines()):
        moves, pushes, rle = line.split()
        board = parse_xsb(rle)[0]
        level_id = f"{preset}/{split}#{index}"
        levels.append(
            make_level(board.layout, board.start, level_id, num_moves=int(moves), num_pushes=int(pushes))
        )
    return tuple(levels)


def _find(level_id: str, asked: LevelSource) -> Level:
    """Return a preset's level by id, whatever source was asked.

    Raises:
        EnvError: If there is no such level.
    """
    parts = _ID.fullmatch(level_id)
    if parts and parts["preset"] in PRESETS and parts["split"] in SPLITS:
        bounds = {"min_moves": int(parts["low"]), "max_moves": int(parts["high"])} if parts["low"] else {}
        source = level_source(parts["preset"], parts["split"], **bounds)
        if source.name == parts["name"] and level_id in (source.ids() or [level_id]):
            return source.get(level_id)
    known = asked.ids()
    hint = suggest(level_id, known) if known else f' Ids read "{asked.name}/train#SEED".'
    raise EnvError(f"unknown level {level_id!r} in {asked.name} ({asked.split}).{hint}")
