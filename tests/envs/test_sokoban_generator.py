from dataclasses import replace

import numpy as np
import pytest

from istar_envs.errors import LevelGenerationFailed
from istar_envs.seeding import CounterRng
from istar_envs.sokoban import generator
from istar_envs.sokoban.board import State
from istar_envs.sokoban.generator import Recipe, carve_room, generate
from istar_envs.sokoban.levels import Level
from istar_envs.sokoban.presets import PRESETS
from istar_envs.sokoban.sources import level_source


def drawn(preset: str, count: int, **options: int) -> list[Level]:
    source = level_source(preset, **options)
    return [source.draw(seed) for seed in range(count)]


def moves_of(levels: list[Level]) -> np.ndarray:
    return np.array([level.num_moves for level in levels])


@pytest.mark.parametrize(("size", "mean"), [(6, 10.1), (8, 17.8), (10, 25.8)])
def test_rooms_are_connected_and_as_large_as_in_earlier_work(size: int, mean: float) -> None:
    rng = CounterRng(3)
    sizes = []
    for _ in range(400):
        floor = carve_room(rng, size, size)
        region = floor & -floor
        for _ in range(size * size):
            region |= (region << 1 | region >> 1 | region << size | region >> size) & floor
        assert region == floor
        border = sum(1 << r * size + c for r in range(size) for c in range(size) if {r, c} & {0, size - 1})
        assert floor & border == 0
        sizes.append(floor.bit_count())
    # Standard deviation of one room is 3, 5 and 7 cells: a tolerance of 4 standard errors.
    assert np.mean(sizes) == pytest.approx(mean, abs=4 * size / 2 / 20)


# The reference figures come from 2,000 levels of each earlier generator (spec §9). Our tolerances
# are 0.3 moves on the mean (4 standard errors of 1,500 draws, plus the exact search going a little
# farther), one move on quantiles, and 3 points on shares (4 standard errors of a share of 8%).


def test_istar_levels_are_as_hard_as_in_earlier_work() -> None:
    levels = drawn("istar-6x6-1", 1500)
    moves = moves_of(levels)
    assert moves.mean() == pytest.approx(4.1, abs=0.3)
    assert list(np.percentile(moves, [50, 90, 99])) == pytest.approx([4, 7, 10], abs=1)
    assert (moves == 1).mean() == pytest.approx(0.08, abs=0.03)
    assert (moves <= 5).mean() == pytest.approx(0.77, abs=0.05)
    assert np.mean([level.num_pushes for level in levels]) == pytest.approx(2.1, abs=0.15)
    assert len({level.canonical_hash for level in levels}) > 600


def test_ragen_simple_levels_are_as_hard_as_in_earlier_work_within_its_budget() -> None:
    moves = moves_of(drawn("ragen-simple", 1000))
    assert moves.mean() == pytest.approx(4.1, abs=0.3)
    assert list(np.percentile(moves, [50, 90])) == pytest.approx([4, 7], abs=1)
    assert moves.max() <= 10


def test_ragen_larger_levels_are_as_hard_as_in_earlier_work_within_its_budget() -> None:
    levels = drawn("ragen-larger", 600)
    moves = moves_of(levels)
    assert moves.mean() == pytest.approx(5.8, abs=0.5)
    assert list(np.percentile(moves, [50, 90, 99])) == pytest.approx([6, 8, 10], abs=1)
    assert moves.max() <= 10
    assert np.mean([level.num_pushes for level in levels]) == pytest.approx(3.2, abs=0.4)


def test_vagen_levels_are_the_easy_part_of_the_base_generators() -> None:
    easy = moves_of(drawn("vagen-1-5", 1500))
    assert (easy.min(), easy.max()) == (1, 5)
    # In the base generator 28.6% of the levels take one move and 87% at most five.
    assert (easy == 1).mean() == pytest.approx(0.286 / 0.87, abs=0.05)
    every = moves_of(drawn("vagen-1-5", 1500, max_moves=15))
    assert every.mean() == pytest.approx(3.3, abs=0.3)
    assert (every <= 5).mean() == pytest.approx(0.87, abs=0.03)


@pytest.mark.parametrize("preset", ["spread-6x6-1", "istar-6x6-2", "istar-6x6-3", "istar-8x8-2"])
def test_own_presets_spread_their_optima_over_the_range(preset: str) -> None:
    recipe = PRESETS[preset].recipe
    moves = moves_of(drawn(preset, 500))
    num_optima = recipe.max_moves - recipe.min_moves + 1
    counts = np.bincount(moves, minlength=recipe.max_moves + 1)[recipe.min_moves :]
    even = 500 / num_optima
    assert len(counts) == num_optima
    assert counts.min() > 0.3 * even
    assert counts.max() < 2 * even


def test_smaller_recipes_of_any_shape_work() -> None:
    recipe = Recipe(5, 9, 2, "spread", 3, 10, min_floor=8, patience=1)
    levels = [generate(recipe, seed, "test", "mine#0") for seed in range(10)]
    assert {(level.layout.height, level.layout.width) for level in levels} == {(5, 9)}
    assert {level.split for level in levels} == {"test"}


def test_seeds_and_splits_are_independent_streams() -> None:
    recipe = PRESETS["istar-6x6-2"].recipe
    assert generate(recipe, 1, "train", "a") == generate(recipe, 1, "train", "a")
    assert generate(recipe, 1, "train", "a") != generate(recipe, 2, "train", "a")
    assert generate(recipe, 1, "train", "a").start != generate(recipe, 1, "dev", "a").start


def test_recipe_too_large_to_solve_is_refused() -> None:
    with pytest.raises(ValueError, match="too many boxes to be solved exactly"):
        generate(Recipe(12, 12, 4, "spread", 1, 9, min_floor=50), 0, "train", "huge#0")


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(6, 6, 1, "spread", 1, 9, min_floor=17),  # more floor than there are cells
        Recipe(3, 4, 1, "spread", 1, 9),  # nowhere to pull a box to
    ],
)
def test_rooms_of_no_use_are_given_up(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "MAX_TRIES", 3)
    with pytest.raises(LevelGenerationFailed, match="small#0: none of 3 rooms"):
        generate(recipe, 0, "train", "small#0")


def test_player_walks_away_from_the_box_about_half_the_time() -> None:
    recipe = PRESETS["istar-6x6-1"].recipe

    def touching(start: State) -> bool:
        return any(start.boxes >> start.player + step & 1 for step in (-6, 6, -1, 1))

    def share(walk: bool) -> float:
        levels = [generate(replace(recipe, walk=walk), seed, "train", "x") for seed in range(600)]
        return float(np.mean([touching(level.start) for level in levels]))

    assert share(walk=False) == 1
    assert share(walk=True) == pytest.approx(0.59, abs=0.08)  # spec §9; 4 standard errors
