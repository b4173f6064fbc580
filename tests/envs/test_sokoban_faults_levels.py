"""Faults of earlier systems (spec §8) in levels, solvers and file formats that must not come back."""

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from sokoban_search import BOXOBAN, board, fewest, needs_boxoban, random_board

from istar_envs.errors import LevelFormatError
from istar_envs.sokoban.bits import cells_of, field_of
from istar_envs.sokoban.board import Layout, State, is_solved, to_text
from istar_envs.sokoban.formats import parse_xsb, read_levels
from istar_envs.sokoban.levels import SPLITS, canonical_hash, split_of
from istar_envs.sokoban.presets import PRESETS
from istar_envs.sokoban.reverse import Rule, scored_positions
from istar_envs.sokoban.solver import solve_moves, solve_pushes
from istar_envs.sokoban.sources import level_source


def test_f01_levels_do_not_depend_on_the_salt_of_hash() -> None:
    script = (
        "from istar_envs.sokoban.sources import level_source\n"
        "print([level_source('istar-6x6-3').draw(seed).canonical_hash for seed in range(8)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("0", "77")
    }
    assert len(outputs) == 1


def test_f02_drawing_levels_leaves_the_global_generators_alone() -> None:
    random.seed(5)
    before, numpy_before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    levels = [level_source(preset).draw(3) for preset in PRESETS]
    assert random.getstate() == before
    assert np.random.get_state()[1].tolist() == numpy_before  # type: ignore[index]
    random.seed(6)
    assert [level_source(preset).draw(3) for preset in PRESETS] == levels


@pytest.mark.parametrize("preset", PRESETS)
def test_f03_the_test_levels_are_not_the_first_train_levels(preset: str) -> None:
    test = level_source(preset, "test")
    held_out = {test.draw(seed).canonical_hash for seed in range(512)}
    train = level_source(preset)
    assert not held_out & {train.draw(seed).canonical_hash for seed in range(128)}


def test_f04_concurrent_resets_give_whole_and_equal_levels() -> None:
    source = level_source("istar-6x6-2")
    alone = [source.draw(seed) for seed in range(256)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(source.draw, range(256))) == alone
    for level in alone:
        assert level.layout.targets.bit_count() == level.start.boxes.bit_count() == 2


def test_f05_splits_share_no_level_up_to_symmetry() -> None:
    hashes = {}
    for split in ("dev", "test"):
        sources = [level_source(preset, split) for preset in PRESETS]
        hashes[split] = {s.draw(seed).canonical_hash for s in sources for seed in range(len(s.ids() or []))}
    hashes["train"] = {
        level_source(preset).draw(seed).canonical_hash for preset in PRESETS for seed in range(100)
    }
    assert len(hashes["test"]) > 2000
    for first, second in combinations(SPLITS, 2):
        assert not hashes[first] & hashes[second]


def test_f06_levels_can_be_kept_to_a_band_of_optima() -> None:
    source = level_source("spread-6x6-1", min_moves=8, max_moves=12)
    moves = Counter(source.draw(seed).num_moves for seed in range(100))
    assert set(moves) == {8, 9, 10, 11, 12}


@pytest.mark.parametrize("preset", PRESETS)
def test_f11_generation_never_fails(preset: str) -> None:
    source = level_source(preset)
    for seed in range(10_000, 10_250):
        source.draw(seed)


def test_f12_a_box_that_starts_on_a_target_is_kept_there() -> None:
    layout, start = board("######\n#*$.-#\n#@---#\n######")
    assert (start.boxes & layout.targets).bit_count() == 1
    assert not is_solved(layout, start)


@pytest.mark.parametrize("preset", PRESETS)
def test_f26_no_level_needs_more_steps_than_its_limit(preset: str) -> None:
    for split in SPLITS:
        source = level_source(preset, split)
        assert all((source.draw(seed).num_moves or 99) <= source.max_steps for seed in range(100))


def _reached(layout: Layout, player: int, depth: int) -> dict[tuple[int, ...], int]:
    solved = (player, *cells_of(layout.targets))
    return {position: score for score, position in scored_positions(layout, solved, "swaps", depth)}


def test_f27_search_depth_counts_positions_on_a_line_of_play() -> None:
    layout, _ = board("########\n#.$@---#\n########")
    assert _reached(layout, 10, 1) == {}
    # Box on 9, player drags it right: 11 with box 10, then 12 with box 11, …
    assert _reached(layout, 10, 2) == {(11, 10): 1}
    assert _reached(layout, 10, 4) == {(11, 10): 1, (12, 11): 2, (13, 12): 3}
    assert max(_reached(layout, 10, 300).values()) == 4


@pytest.mark.parametrize("rule", ["swaps", "pulls"])
@pytest.mark.parametrize("axis", [0, 1])
def test_f28_positions_and_scores_do_not_depend_on_the_order_of_actions(rule: Rule, axis: int) -> None:
    flip = np.flip(np.arange(49).reshape(7, 7), axis).ravel().tolist()
    num_positions = 0
    for seed in range(160):
        drawn = random_board(seed, 7, 7, 2)
        if drawn is None:
            continue
        layout, _ = drawn
        walls, targets = (
            [flip[cell] for cell in cells_of(field)] for field in (layout.walls, layout.targets)
        )
        flipped = Layout(7, 7, field_of(walls), field_of(targets))
        free = next(cells_of(~(layout.walls | layout.targets) & (1 << 49) - 1))
        solved = (free, *cells_of(layout.targets))
        plain = {position: score for score, position in scored_positions(layout, solved, rule, 20)}
        mirrored = scored_positions(flipped, tuple(flip[cell] for cell in solved), rule, 20)
        assert {tuple(flip[cell] for cell in position): score for score, position in mirrored} == plain
        num_positions += len(plain)
    assert num_positions > 1000


def _rows(layout: Layout, start: State) -> list[str]:
    return to_text(layout, start).split("\n")


@pytest.mark.parametrize("preset", ["istar-6x6-1", "vagen-1-5", "istar-6x6-2"])
def test_f29_the_stored_optimum_is_that_of_plain_search(preset: str) -> None:
    source = level_source(preset)
    for seed in range(25):
        level = source.draw(seed)
        assert level.num_moves == fewest(level.layout, level.start, count_pushes=False)
        assert level.num_pushes == fewest(level.layout, level.start, count_pushes=True)


def test_f33_a_level_file_is_read_once_and_with_all_its_pieces(tmp_path: Path) -> None:
    path = tmp_path / "levels.txt"
    path.write_text("; 0\n######\n#+$*-#\n######\n\n; 1\n######\n#.$@-#\n######\n\n")
    source = level_source(path, "all")
    path.unlink()
    first, second = source.draw(0), source.draw(1)
    assert first.start.player in list(cells_of(first.layout.targets))
    assert first.num_boxes == 2
    assert second.num_boxes == 1


@needs_boxoban
def test_f35_every_level_of_a_file_is_loaded_once() -> None:
    source = level_source(BOXOBAN, "all")
    levels = [source.draw(seed) for seed in range(1000)]
    assert len({level.canonical_hash for level in levels}) == 1000
    text = BOXOBAN.read_text().rstrip("\n")
    last = read_levels(BOXOBAN)[999]
    assert (levels[999].layout, levels[999].start) == (last.layout, last.start)
    assert text.endswith("\n".join(_rows(last.layout, last.start)).replace("-", " "))
    assert hashlib.sha256(BOXOBAN.read_bytes()).hexdigest().startswith("52cd811a")


def test_f37_each_level_of_a_file_has_its_own_size_and_the_step_limit_is_fixed(tmp_path: Path) -> None:
    path = tmp_path / "levels.xsb"
    path.write_text("#####\n#@$.#\n#####\n\n#######\n#-----#\n#@-$*.#\n#######\n")
    source = level_source(path, "all")
    sizes = [(level.layout.height, level.layout.width) for level in map(source.draw, range(2))]
    assert sizes == [(3, 5), (4, 7)]
    assert source.max_steps == 120


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("#-####\n#-$.@#\n######", 1),
        ("######\n-@$.-#\n######", 2),
        ("######\n#.$@-#\n#-####", 3),
    ],
)
def test_f39_a_level_open_at_an_edge_is_refused(text: str, line: int) -> None:
    with pytest.raises(LevelFormatError, match=f"line {line}: the player can leave the board"):
        parse_xsb(text)


def test_f39_solvers_stay_on_boards_whose_pieces_touch_the_outer_wall() -> None:
    layout, start = board("#####\n#.$@#\n#####")
    assert solve_moves(layout, start) == [2]
    solution = solve_pushes(layout, start)
    assert solution is not None
    assert solution.num_pushes == 1


@needs_boxoban
def test_f41_equal_levels_of_two_files_fall_in_one_split(tmp_path: Path) -> None:
    levels = read_levels(BOXOBAN)[:60]
    turned = tmp_path / "turned.xsb"
    boards = ["\n".join(row[::-1] for row in _rows(level.layout, level.start)) for level in levels]
    turned.write_text("\n\n".join(boards))
    for level, copy in zip(levels, read_levels(turned), strict=True):
        assert copy.layout != level.layout
        hashes = [canonical_hash(item.layout, item.start) for item in (level, copy)]
        assert hashes[0] == hashes[1]
        assert split_of(hashes[0]) == split_of(hashes[1])
