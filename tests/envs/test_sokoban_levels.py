import hashlib
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sokoban_search import BOXOBAN, board, fewest, needs_boxoban

from istar_envs.errors import ConfigError, EnvError, LevelGenerationFailed, MissingAsset
from istar_envs.sokoban import make_splits
from istar_envs.sokoban.board import to_text
from istar_envs.sokoban.deadlocks import dead_squares
from istar_envs.sokoban.levels import SPLITS, canonical_hash, make_level, split_of
from istar_envs.sokoban.make_splits import SIZES, split_text
from istar_envs.sokoban.presets import PRESETS
from istar_envs.sokoban.retrograde import distances
from istar_envs.sokoban.sources import FILE_MAX_STEPS, level_source

GOLDEN = {
    "istar-6x6-1": "bb2b6e8a9b49c14b",
    "ragen-simple": "d4462e78df3b0538",
    "ragen-larger": "681c057731eb3ccc",
    "vagen-1-5": "58b49f4bccdcdad3",
    "spread-6x6-1": "4b1ed02dc7e93226",
    "istar-6x6-2": "424862177581f37d",
    "istar-6x6-3": "6b3ce851ec2c7f08",
    "istar-8x8-2": "b317029dac9f4133",
}


def fingerprint(preset: str, seeds: range = range(20)) -> str:
    """Digest of everything that is known of the first levels of a preset."""
    levels = [level_source(preset).draw(seed) for seed in seeds]
    facts = [(to_text(level.layout, level.start), level.num_moves, level.num_pushes) for level in levels]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def test_hash_is_equal_for_all_symmetries_and_positions_of_a_level() -> None:
    forms = [
        "######\n#.--##\n##$-@#\n######",
        "######\n##--.#\n#@-$##\n######",  # mirrored
        "######\n##$-@#\n#.--##\n######",  # upside down
        "####\n##.#\n#$-#\n#--#\n#@##\n####",  # turned
        "########\n########\n###.--##\n####$-@#\n########",  # moved in a larger frame
    ]
    assert len({canonical_hash(*board(form)) for form in forms}) == 1


@pytest.mark.parametrize(
    "other",
    [
        "######\n#.--##\n##$@-#\n######",
        "######\n#.$-##\n##--@#\n######",
        "######\n#--.##\n##$-@#\n######",
        "######\n#.---#\n##$-@#\n######",
    ],
)
def test_hash_tells_levels_apart_by_each_piece(other: str) -> None:
    assert canonical_hash(*board(other)) != canonical_hash(*board("######\n#.--##\n##$-@#\n######"))


def test_split_follows_the_first_byte_of_the_hash() -> None:
    assert [split_of(f"{byte:02x}" + "0" * 30) for byte in (0, 204, 205, 229, 230, 255)] == [
        "train", "train", "dev", "dev", "test", "test",
    ]  # fmt: skip


def test_level_knows_its_dead_squares_and_split() -> None:
    layout, start = board("#####\n#@$.#\n#---#\n#####")
    level = make_level(layout, start, "hand#0")
    assert level.dead_squares == dead_squares(layout)
    assert level.split == split_of(level.canonical_hash)
    assert (level.num_boxes, level.num_moves, level.num_pushes) == (1, None, None)


@pytest.mark.parametrize("preset", PRESETS)
def test_levels_of_a_preset_keep_its_promises(preset: str) -> None:
    source, recipe = level_source(preset), PRESETS[preset].recipe
    for seed in range(60):
        level = source.draw(seed)
        table = distances(level.layout, recipe.num_boxes)
        assert table is not None
        assert (level.layout.height, level.layout.width) == (recipe.height, recipe.width)
        assert level.num_boxes == level.layout.targets.bit_count() == recipe.num_boxes
        assert level.num_moves == table.moves_left(level.start)
        assert level.num_pushes == fewest(level.layout, level.start, count_pushes=True)
        assert recipe.min_moves <= (level.num_moves or 0) <= min(recipe.max_moves, source.max_steps)
        assert level.canonical_hash == canonical_hash(level.layout, level.start)
        assert level.split == "train"
        assert not level.start.boxes & (level.layout.targets | level.layout.walls | level.dead_squares)
        assert source.get(level.id) == level


@pytest.mark.parametrize("preset", PRESETS)
def test_seeds_give_the_known_levels(preset: str) -> None:
    assert fingerprint(preset) == GOLDEN[preset]


def test_hash_salt_and_process_do_not_matter() -> None:
    script = (
        "from test_sokoban_levels import PRESETS, fingerprint\nprint({p: fingerprint(p) for p in PRESETS})"
    )
    for salt in ("1", "2"):
        folders = os.pathsep.join(map(str, Path(__file__).parents[:2]))
        env = {**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": folders}
        done = subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == repr(GOLDEN)


def test_concurrent_draws_equal_those_made_one_by_one() -> None:
    sources = [level_source(preset) for preset in ("istar-6x6-1", "istar-6x6-2", "vagen-1-5")]
    jobs = [(source, seed) for seed in range(200) for source in sources]
    alone = [source.draw(seed) for source, seed in jobs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda job: job[0].draw(job[1]), jobs))
    assert together == alone


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["istar-6x6-1", "istar-6x6-2"])
def test_a_hundred_thousand_concurrent_draws_never_fail_or_differ(preset: str) -> None:
    source = level_source(preset)
    alone = [source.draw(seed).canonical_hash for seed in range(50_000)]
    with ThreadPoolExecutor(8) as pool:
        together = pool.map(lambda seed: source.draw(seed).canonical_hash, range(50_000), chunksize=100)
        assert list(together) == alone


@pytest.mark.parametrize("split", SIZES)
@pytest.mark.parametrize("preset", PRESETS)
def test_shipped_list_has_the_promised_levels(preset: str, split: str) -> None:
    source = level_source(preset, split)
    ids = source.ids()
    assert ids is not None
    assert len(ids) == SIZES[split]
    levels = [source.draw(seed) for seed in range(len(ids))]
    assert [level.id for level in levels] == list(ids) == [f"{preset}/{split}#{i}" for i in range(len(ids))]
    assert len({level.canonical_hash for level in levels}) == len(levels)
    assert {level.split for level in levels} == {split}
    assert source.draw(len(ids)) == levels[0]
    for level in levels[::25]:
        table = distances(level.layout, level.num_boxes)
        assert table is not None
        assert level.num_moves == table.moves_left(level.start)
        assert level.num_pushes == fewest(level.layout, level.start, count_pushes=True)


@pytest.mark.parametrize("split", SIZES)
@pytest.mark.parametrize("preset", PRESETS)
def test_shipped_list_can_be_made_again(preset: str, split: str) -> None:
    shipped = (
        Path(sys.modules["istar_envs.sokoban"].__file__ or "").parent / "splits" / f"{preset}.{split}.txt"
    )
    assert shipped.read_text().startswith(split_text(preset, split, 12))


def test_lists_are_written_to_a_folder_until_levels_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    easy = replace(PRESETS["istar-6x6-1"], recipe=replace(PRESETS["istar-6x6-1"].recipe, max_moves=1))
    monkeypatch.setattr(make_splits, "PRESETS", {"easy": easy})
    monkeypatch.setattr(make_splits, "SIZES", {"dev": 3, "test": 10**6})
    monkeypatch.setattr(make_splits, "_STALE", 5)
    monkeypatch.setattr(sys, "argv", ["make_splits", str(tmp_path / "lists")])
    make_splits.main()
    assert len((tmp_path / "lists" / "easy.dev.txt").read_text().splitlines()) == 3
    lines = (tmp_path / "lists" / "easy.test.txt").read_text().splitlines()
    assert 3 < len(set(lines)) == len(lines) < 500
    assert {line.split()[0] for line in lines} == {"1"}


def test_range_of_optima_can_be_narrowed() -> None:
    source = level_source("istar-6x6-1", min_moves=6, max_moves=8)
    levels = [source.draw(seed) for seed in range(40)]
    assert {level.num_moves for level in levels} == {6, 7, 8}
    assert levels[3].id == "istar-6x6-1[6-8]/train#3"
    assert level_source("istar-6x6-1", "dev").get(levels[3].id) == levels[3]
    dev = level_source("istar-6x6-1", "dev", min_moves=6, max_moves=8)
    assert {dev.draw(seed).num_moves for seed in range(len(dev.ids() or []))} == {6, 7, 8}


def test_range_that_is_the_presets_own_leaves_the_levels_as_they_are() -> None:
    assert level_source("istar-6x6-1", min_moves=1, max_moves=15) == level_source("istar-6x6-1")


def test_step_limit_lowers_the_greatest_optimum() -> None:
    source = level_source("istar-6x6-1", max_steps=3)
    assert source.max_steps == 3
    assert all((source.draw(seed).num_moves or 0) <= 3 for seed in range(40))


def test_unreachable_optimum_is_an_error_with_advice() -> None:
    with pytest.raises(LevelGenerationFailed, match=r"optimum of 60 to 60 moves\. Widen min_moves"):
        level_source("spread-6x6-1", min_moves=60, max_moves=60, max_steps=60).draw(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"levels": "vagen-1-6"}, 'neither a preset nor a file. Did you mean "vagen-1-5"?'),
        ({"levels": "istar-6x6-1", "split": "tests"}, "no split 'tests'. Did you mean \"test\"?"),
        ({"levels": "istar-6x6-1", "split": "all"}, "no split 'all'. Known: dev, test, train."),
        ({"levels": "istar-6x6-1", "min_moves": 9, "max_moves": 3}, "min_moves=9, max_moves=3, max_steps=15"),
        ({"levels": "istar-6x6-1", "min_moves": 0}, "min_moves=0"),
        ({"levels": "istar-6x6-1", "max_moves": 20}, "max_moves=20, max_steps=15"),
        ({"levels": "vagen-1-5", "split": "dev", "min_moves": 12, "max_moves": 12}, "no dev level"),
    ],
)
def test_bad_options_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        level_source(**arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_any_preset_level_is_found_by_its_id_and_unknown_ids_are_named() -> None:
    train = level_source("istar-6x6-1")
    assert train.get("istar-6x6-1/train#-7") == train.draw(-7)
    assert train.get("ragen-larger/test#11") == level_source("ragen-larger", "test").draw(11)
    for unknown in ("istar-6x6-1/dev#400", "istar-6x6-9/train#1", "istar-6x6-1[1-15]/train#0", "", "a/b/c#1"):
        with pytest.raises(EnvError, match='Ids read "istar-6x6-1/train#SEED"'):
            train.get(unknown)
    with pytest.raises(EnvError, match='Did you mean "istar-6x6-1/dev#399"'):
        level_source("istar-6x6-1", "dev").get("istar-6x6-1/dev#3999")


def test_sources_can_be_pickled() -> None:
    for split in SPLITS:
        source = level_source("istar-6x6-1", split)
        assert pickle.loads(pickle.dumps(source)).draw(5) == source.draw(5)


def test_file_is_a_source_of_levels(tmp_path: Path) -> None:
    path = tmp_path / "mine.xsb"
    path.write_text("#####\n#@$.#\n#####\n\n######\n#@-$.#\n######\n")
    source = level_source(path, "all")
    assert (source.name, source.split, source.max_steps) == ("mine", "all", FILE_MAX_STEPS)
    assert list(source.ids() or []) == ["mine#0", "mine#1"]
    assert source.get("mine#1") == source.draw(1) == source.draw(-1)
    assert (source.height, source.width) == (3, 6)
    assert level_source(str(path), "all", max_steps=9).max_steps == 9
    with pytest.raises(EnvError, match=r"unknown level 'mine#2' in mine \(all\)"):
        source.get("mine#2")


def test_bad_file_options_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.xsb"
    path.write_text("#####\n#@$.#\n#####\n")
    split = level_source(path, "all").draw(0).split
    other = next(name for name in SPLITS if name != split)
    for arguments, message in [
        ({"split": "dve"}, 'Did you mean "dev"'),
        ({"split": other}, f"no level in split {other!r}. Use split 'all'"),
        ({"split": "all", "min_moves": 2}, "min_moves and max_moves work with presets only"),
        ({"split": "all", "max_steps": 0}, "max_steps=0 must be 1 or more"),
    ]:
        with pytest.raises(ConfigError) as caught:
            level_source(path, **arguments)  # type: ignore[arg-type]
        assert message in str(caught.value)
    with pytest.raises(MissingAsset, match=r"gone\.xsb"):
        level_source(tmp_path / "gone.xsb")


@needs_boxoban
def test_boxoban_file_is_split_into_three_disjoint_parts() -> None:
    parts = [level_source(BOXOBAN, split).ids() or [] for split in SPLITS]
    everything = level_source(BOXOBAN, "all").ids() or []
    assert len(everything) == 1000
    assert sorted(level_id for part in parts for level_id in part) == sorted(everything)
    assert min(map(len, parts)) >= 60  # 100 expected in dev and test; sd 9.5
