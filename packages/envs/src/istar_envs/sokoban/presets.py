"""Named families of generated levels.

The first four follow the level distributions of earlier work, with exact search and another random
stream; the rest are our own, with optima spread evenly over a band. Levels that cannot be solved
within ``max_steps`` are never made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from istar_envs.sokoban.generator import Recipe


@dataclass(frozen=True, slots=True)
class Preset:
    """A family of levels and the step limit it is played with.

    Attributes:
        recipe: How its levels are made.
        max_steps: Steps after which an episode is truncated.
    """

    recipe: Recipe
    max_steps: int


PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "istar-6x6-1": Preset(Recipe(6, 6, 1, "swaps", 1, 15, depth=30, walk=True), 15),
        "ragen-simple": Preset(Recipe(6, 6, 1, "swaps", 1, 10, depth=300, walk=True), 10),
        "ragen-larger": Preset(Recipe(8, 8, 2, "swaps", 1, 10, depth=9, walk=True), 10),
        "vagen-1-5": Preset(Recipe(6, 6, 1, "pulls", 1, 5, depth=300), 15),
        "spread-6x6-1": Preset(Recipe(6, 6, 1, "spread", 3, 12, min_floor=10, patience=3), 24),
        "istar-6x6-2": Preset(Recipe(6, 6, 2, "spread", 5, 15, min_floor=11, patience=1), 30),
        "istar-6x6-3": Preset(Recipe(6, 6, 3, "spread", 8, 20, min_floor=13), 40),
        "istar-8x8-2": Preset(Recipe(8, 8, 2, "spread", 8, 25, min_floor=14, patience=4), 50),
    }
)
"""All presets by name."""
