"""Make the fixed dev and test lists of all presets: ``python -m istar_envs.sokoban.make_splits``.

Levels of a list are distinct up to rotation and reflection. A preset that has fewer levels than
asked for gives all that turn up.
"""

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from istar_envs.seeding import derive_seed
from istar_envs.sokoban.formats import write_rle
from istar_envs.sokoban.generator import generate
from istar_envs.sokoban.levels import Level, Split
from istar_envs.sokoban.presets import PRESETS

SIZES: Final[dict[Split, int]] = {"dev": 400, "test": 512}
"""Levels per list."""
_STALE: Final = 3000
"""Draws without a new level after which a preset counts as exhausted."""


def split_levels(preset: str, split: Split) -> Iterator[Level]:
    """Yield distinct levels of a preset's split until no new ones turn up.

    Args:
        preset: Name of the preset.
        split: Which split.

    Yields:
        Levels with ids ``preset/split#index``.
    """
    recipe = PRESETS[preset].recipe
    seen: set[str] = set()
    seed = last_new = 0
    while seed - last_new <= _STALE:
        level = generate(recipe, derive_seed(seed, preset, split), split, f"{preset}/{split}#{len(seen)}")
        seed += 1
        if level.canonical_hash not in seen:
            seen.add(level.canonical_hash)
            last_new = seed
            yield level


def split_text(preset: str, split: Split, size: int) -> str:
    """Return a list as text: one line of optimal moves, pushes and run-length encoded board each."""
    levels = islice(split_levels(preset, split), size)
    return "".join(
        f"{level.num_moves} {level.num_pushes} {write_rle(level.layout, level.start)}\n" for level in levels
    )


def main() -> None:
    """Write all lists into a folder."""
    parser = argparse.ArgumentParser(description="Make the fixed dev and test lists of all Sokoban presets.")
    parser.add_argument("out", type=Path, nargs="?", default=Path(__file__).parent / "splits", help="folder")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for preset in PRESETS:
        for split, size in SIZES.items():
            (out / f"{preset}.{split}.txt").write_text(split_text(preset, split, size), encoding="utf-8")


if __name__ == "__main__":
    main()
