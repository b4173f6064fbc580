"""Random levels: a carved room, targets, and a start found by playing backwards.

Three rules choose the start. ``swaps`` and ``pulls`` follow the distributions of levels used in
earlier work (spec §2.1, §2.2) with an exact breadth-first search in place of a depth-limited
depth-first one; ``spread`` draws the optimum first, then a start with that optimum. Every draft is
solved exactly before it is handed out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final, Literal

from istar_envs.errors import LevelGenerationFailed
from istar_envs.seeding import CounterRng, derive_seed
from istar_envs.sokoban.bits import cells_of, field_of
from istar_envs.sokoban.board import Layout, State
from istar_envs.sokoban.deadlocks import dead_squares
from istar_envs.sokoban.levels import Level, Split, canonical_hash, split_of
from istar_envs.sokoban.retrograde import Distances, distances
from istar_envs.sokoban.reverse import Rule, reverse_starts
from istar_envs.sokoban.solver import fewest_pushes

MAX_TRIES: Final = 4000
"""Rooms tried before a request is given up; presets need a few, so only odd ranges fail."""
_ROOMS = 200
"""Rooms carved for one attempt; a preset needs a few to have enough floor."""
_PICKS: Final[dict[Split, int]] = {"train": 3, "dev": 32, "test": 32}
"""Starts drawn from one room in search of one in the split; a tenth of all levels is dev, a tenth test."""
_TURN = 0.35
"""Probability that the carving walk draws a new direction."""
_DIRECTIONS: Final = ((-1, 0), (1, 0), (0, -1), (0, 1))
_STAMPS: Final = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
"""Cells opened around each stop of the carving walk, as (row, column) offsets."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a level is made.

    Attributes:
        height: Rows, border included.
        width: Columns, border included.
        num_boxes: Boxes and targets.
        rule: How the start is chosen.
        min_moves: Least optimum of a level.
        max_moves: Greatest optimum of a level.
        depth: Positions on the longest line of reverse play; ``spread`` needs none.
        walk: Whether the player strolls away from the box at the end; not for ``spread``.
        min_floor: Least number of floor cells.
        patience: For ``spread``, rooms tried for the optimum drawn first; after them any other
            optimum in the range will do.
    """

    height: int
    width: int
    num_boxes: int
    rule: Rule | Literal["spread"]
    min_moves: int
    max_moves: int
    depth: int = 0
    walk: bool = False
    min_floor: int = 0
    patience: int = 0


def generate(recipe: Recipe, seed: int, split: Split, level_id: str) -> Level:
    """Make a level; equal arguments give equal levels in every process and thread.

    Args:
        recipe: What to make.
        seed: Any integer.
        split: Split that the level's canonical hash must fall in.
        level_id: Name of the level.

    Returns:
        A level solved exactly, with an optimum in the recipe's range.

    Raises:
        LevelGenerationFailed: If no room had a fitting start, as when the range of optima is out
            of reach for the size.
    """
    optima = range(recipe.min_moves, recipe.max_moves + 1)
    is_spread = recipe.rule == "spread"
    wanted = _drawn(CounterRng(derive_seed(seed, "optimum")), optima, len(optima)) if is_spread else []
    for attempt in range(MAX_TRIES):
        rng = CounterRng(derive_seed(seed, "room", attempt))
        level = _attempt(recipe, rng, split, wanted[: 1 if attempt < recipe.patience else None], level_id)
        if level is not None:
            return level
    raise LevelGenerationFailed(
        f"{level_id}: none of {MAX_TRIES} rooms of {recipe.height}×{recipe.width} with {recipe.num_boxes} "
        f"box(es) has a {split} level with an optimum of {recipe.min_moves} to {recipe.max_moves} moves. "
        f"Widen min_moves and max_moves or choose a larger preset."
    )


def _attempt(recipe: Recipe, rng: CounterRng, split: Split, wanted: list[int], level_id: str) -> Level | None:
    """Make a level from one room, or return None if the room is no use."""
    floor = _room(rng, recipe)
    if not floor:
        return None
    if recipe.rule == "spread":
        starts = _spread_starts(rng, floor, recipe, wanted)
    else:
        starts = _reverse_starts(rng, floor, recipe, recipe.rule)
    tried = set()
    for layout, start in islice(starts, _PICKS[split]):
        if start in tried:
            continue
        tried.add(start)
        level_hash = canonical_hash(layout, start)
        if split_of(level_hash) != split:
            continue
        table = _table(layout)
        num_moves = table.moves_left(start)
        if num_moves is None or not recipe.min_moves <= num_moves <= recipe.max_moves:
            continue
        num_pushes = fewest_pushes(layout, start)
        return Level(layout, start, level_id, num_moves, num_pushes, dead_squares(layout), level_hash)
    return None


def _reverse_starts(
    rng: CounterRng, floor: int, recipe: Recipe, rule: Rule
) -> Iterator[tuple[Layout, State]]:
    """Draw player and targets anywhere and yield starts that reverse play scores highest."""
    player, *targets = _drawn(rng, cells_of(floor), recipe.num_boxes + 1)
    layout = _layout(recipe, floor, targets)
    starts = reverse_starts(rng, layout, (player, *targets), rule, depth=recipe.depth, walk=recipe.walk)
    return ((layout, start) for start in starts)


def _spread_starts(
    rng: CounterRng, floor: int, recipe: Recipe, wanted: list[int]
) -> Iterator[tuple[Layout, State]]:
    """Draw targets that boxes can leave and yield starts with the first wanted optimum there is.

    No box starts on a target.
    """
    targets = _drawn(rng, cells_of(_pullable(floor, recipe.width)), recipe.num_boxes)
    if len(targets) < recipe.num_boxes:
        return
    layout = _layout(recipe, floor, targets)
    table = _table(layout)
    offered = table.positions(~layout.targets)
    found = next((offered[moves] for moves in wanted if moves in offered), 0)
    while found:
        yield layout, table.pick(found, rng.below(found.bit_count()))


def _table(layout: Layout) -> Distances:
    """Return the table of a generated layout."""
    table = distances(layout, layout.targets.bit_count())
    if table is None:
        raise ValueError(
            f"a recipe of {layout.height}×{layout.width} has too many boxes to be solved exactly"
        )
    return table


def _layout(recipe: Recipe, floor: int, targets: list[int]) -> Layout:
    """Wall in a floor."""
    walls = (1 << recipe.height * recipe.width) - 1 & ~floor
    return Layout(recipe.height, recipe.width, walls, field_of(targets))


def _room(rng: CounterRng, recipe: Recipe) -> int:
    """Carve rooms until one is large enough for the recipe; return its floor, 0 if none was."""
    for _ in range(_ROOMS):
        floor = carve_room(rng, recipe.height, recipe.width)
        if floor.bit_count() >= max(recipe.min_floor, recipe.num_boxes + 2):
            return floor
    return 0


def carve_room(rng: CounterRng, height: int, width: int) -> int:
    """Carve a connected room by a random walk that opens cells around each stop.

    Args:
        rng: Source of randomness.
        height: Rows, border included; at least 3.
        width: Columns, border included; at least 3.

    Returns:
        Bit field of the floor.
    """
    steps, stamps = _carving(height, width)
    cell = (1 + rng.below(height - 1)) * width + 1 + rng.below(width - 1)
    direction = rng.below(4)
    floor = 0
    for _ in range(int(1.7 * (height + width))):
        word = rng.next_u64()
        if word >> 40 < _TURN * 2**24:
            direction = word >> 38 & 3
        cell = steps[direction][cell]
        floor |= stamps[cell][(word & 0xFFFFFFFF) * 5 >> 32]
    return floor


@lru_cache(maxsize=32)
def _carving(height: int, width: int) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Tabulate the carving walk for a size.

    Returns:
        For each direction and cell the next cell, kept off the border; and for each cell the bit
        fields of the stamps around it, cut at the border.
    """
    board = [(row, col) for row in range(height) for col in range(width)]

    def clamped(row: int, col: int) -> int:
        return min(max(row, 1), height - 2) * width + min(max(col, 1), width - 2)

    def cut(row: int, col: int, stamp: tuple[tuple[int, int], ...]) -> int:
        opened = ((row + down, col + right) for down, right in stamp)
        return sum(1 << r * width + c for r, c in opened if 0 < r < height - 1 and 0 < c < width - 1)

    steps = tuple(
        tuple(clamped(row + down, col + right) for row, col in board) for down, right in _DIRECTIONS
    )
    return steps, tuple(tuple(cut(row, col, stamp) for stamp in _STAMPS) for row, col in board)


def _pullable(floor: int, width: int) -> int:
    """Return the cells from which a box can be pulled at least one step."""
    found = 0
    for step in (1, width):
        found |= floor & (floor >> step & floor >> 2 * step | floor << step & floor << 2 * step)
    return found


def _drawn(rng: CounterRng, items: Iterable[int], count: int) -> list[int]:
    """Draw up to ``count`` of the items, none twice, in random order."""
    left = list(items)
    return [left.pop(rng.below(len(left))) for _ in range(min(count, len(left)))]
