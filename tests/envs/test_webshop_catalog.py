import copy
import gc
import json
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from istar_envs import cache
from istar_envs.cache import cache_folder
from istar_envs.errors import ConfigError, EnvError, MissingAsset
from istar_envs.webshop import build, catalog, sources
from istar_envs.webshop.build import STALE_S, build_store
from istar_envs.webshop.catalog import Catalog, decode_product, encode_product, shared_catalog
from istar_envs.webshop.products import Annotation, OptionGroup, Product
from istar_envs.webshop.sources import open_catalogue
from official_data import WEBSHOP, needs_webshop

STOOL = Product(
    asin="B00000STOL",
    title="Oak Stool – “low”",
    description="",
    bullets=("Strong", ""),
    category="garden",
    query="bar stools",
    breadcrumb="Home › Stools",
    prices=(9.98, 12.98),
    is_priced=True,
    image="https://example.org/1.jpg",
    rating=4.5,
    options=(OptionGroup("color", ("red", "blue"), ("https://example.org/red.jpg", "")),),
    attributes=("oak", "strong"),
    instruction="Find me oak stools",
    instruction_attributes=("oak",),
    annotations=(Annotation("i want a stool", ("oak",), ("red",), ("color: red",)),),
)
LAMP = Product(
    asin="0123456789",
    title="Lamp",
    description="Shines.",
    bullets=(),
    category="garden",
    query="lamps",
    breadcrumb="",
    prices=(100.0,),
    is_priced=False,
    image="",
    rating=None,
    options=(),
    attributes=("DUMMY_ATTR",),
)
SHELF = replace(LAMP, asin="B00SHELF", title="Shelf")
PRODUCTS = (STOOL, LAMP, SHELF)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of three products."""
    build_store(tmp_path / "shop", PRODUCTS, name="three")
    return tmp_path / "shop"


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTAR_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_survives_its_record(product: Product) -> None:
    assert decode_product(encode_product(product)) == product


def test_a_catalogue_returns_what_was_built(store: Path) -> None:
    shop = Catalog(store)
    assert [shop.product(row) for row in range(len(shop))] == list(PRODUCTS)
    assert [shop.asin(row) for row in range(len(shop))] == ["B00000STOL", "0123456789", "B00SHELF"]
    assert (shop.name, shop.folder) == ("three", store)


def test_rows_are_found_by_asin_in_any_case(store: Path) -> None:
    shop = Catalog(store)
    assert [shop.row(asin) for asin in ("b00000stol", "0123456789", "B00sHELF")] == [0, 1, 2]


@pytest.mark.parametrize(
    "asin", ["", "B", "B00SHELF1", "ZZZZZZZZZZZZ", "B00ſHELF", "\x00", "B00SHELF\x00", "日本"]
)
def test_an_unknown_asin_has_no_row(store: Path, asin: str) -> None:
    assert Catalog(store).row(asin) is None


def test_many_asins_are_all_found(tmp_path: Path) -> None:
    asins = [f"B{number * 7919 % 100_003:06d}" for number in range(300)]
    build_store(tmp_path / "shop", (replace(LAMP, asin=asin) for asin in asins), name="many")
    shop = Catalog(tmp_path / "shop")
    assert [shop.row(asin) for asin in asins] == list(range(300))
    order = np.load(tmp_path / "shop" / "asin_order.npy")
    assert [asins[row] for row in order] == sorted(asins)


def test_the_index_is_given_the_texts_and_the_rank_of_each_asin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, ranks = [], []

    class Recorder:
        def __init__(self, folder: Path) -> None:
            assert folder.name == "index"

        def add(self, text: str) -> None:
            texts.append(text)

        def finish(self, asin_rank: Any) -> None:
            ranks.extend(asin_rank)

    monkeypatch.setattr(build, "IndexWriter", Recorder)
    build_store(tmp_path / "shop", PRODUCTS, name="three")
    assert texts == [product.search_text for product in PRODUCTS]
    assert ranks == [1, 0, 2]


@pytest.mark.parametrize("row", [-1, 3, 10**9])
def test_a_row_outside_the_catalogue_is_an_index_error(store: Path, row: int) -> None:
    with pytest.raises(IndexError, match="outside the 3 products of catalogue 'three'"):
        Catalog(store).product(row)


def test_recent_products_are_kept_but_not_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "CACHED_PRODUCTS", 2)
    build_store(tmp_path / "shop", PRODUCTS, name="three")
    shop = Catalog(tmp_path / "shop")
    first = shop.product(0)
    assert shop.product(0) is first
    shop.product(1)
    shop.product(2)
    assert shop.product(0) is not first


def test_the_fingerprint_is_of_the_products_alone(tmp_path: Path) -> None:
    prints = []
    for name, products in (("a", PRODUCTS), ("b", PRODUCTS), ("c", PRODUCTS[::-1])):
        build_store(tmp_path / name, products, name=name)
        prints.append(Catalog(tmp_path / name).fingerprint)
    assert prints[0] == prints[1] != prints[2]


def test_equal_products_give_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        build_store(tmp_path / name, PRODUCTS, name="same")
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert len(files) > 6
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_the_store_counts_its_products_and_goals(store: Path) -> None:
    meta = json.loads((store / "meta.json").read_text(encoding="utf-8"))
    assert (meta["products"], meta["goals"]) == (3, {"synthetic": 2, "human": 1})


def test_copies_and_unpickled_catalogues_are_the_shared_one(store: Path) -> None:
    shop = shared_catalog(store)
    assert copy.deepcopy(shop) is shop
    assert pickle.loads(pickle.dumps(shop)) is shop
    assert len(pickle.dumps(shop)) < 1000


def test_a_catalogue_that_was_replaced_is_opened_anew(store: Path, tmp_path: Path) -> None:
    old = shared_catalog(store)
    store.rename(tmp_path / "old")
    build_store(store, PRODUCTS[:1], name="one")
    assert len(shared_catalog(store)) == 1
    assert old.product(2) == SHELF


def test_a_catalogue_that_nobody_holds_closes_its_file(store: Path) -> None:
    shop = Catalog(store)
    handle = shop._file
    os.fstat(handle)
    del shop
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_threads_read_the_same_products(store: Path) -> None:
    shop, wrong = Catalog(store), []

    def read(seed: int) -> None:
        for row in np.random.default_rng(seed).integers(3, size=300):
            if shop.product(int(row)) != PRODUCTS[row] or shop.row(PRODUCTS[row].asin) != row:
                wrong.append(row)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_folder_without_a_store_is_a_missing_asset(tmp_path: Path) -> None:
    for opening in (Catalog, shared_catalog):
        with pytest.raises(MissingAsset, match=r"no catalogue store in .*: meta\.json is missing"):
            opening(tmp_path / "shop")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["products.bin", "offsets.npy", "asins.npy", "goals-human.npy"])
def test_a_file_of_another_size_is_noticed_at_opening(store: Path, name: str) -> None:
    size = (store / name).stat().st_size
    _cut(store / name)
    with pytest.raises(
        ConfigError, match=rf"{name} has {size - 1} bytes instead of {size}\. Delete the folder"
    ):
        Catalog(store)


def test_a_lost_index_file_is_noticed_at_opening(store: Path) -> None:
    name = next(name for name in json.loads((store / "meta.json").read_bytes())["files"] if "index/" in name)
    (store / name).unlink()
    with pytest.raises(ConfigError, match=f"{name} has no bytes instead of"):
        Catalog(store)


def test_an_older_store_must_be_built_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "FORMAT", catalog.FORMAT + 1)
    with pytest.raises(ConfigError, match=r"its format is \d, this program reads \d\. Delete the folder and"):
        Catalog(store)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "files": 3}'])
def test_a_damaged_description_is_noticed_at_opening(store: Path, text: str) -> None:
    (store / "meta.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"meta\.json cannot be read .* build the store again"):
        Catalog(store)


def test_overwritten_files_are_named(store: Path) -> None:
    (store / "products.bin").write_bytes(b"x" * (store / "products.bin").stat().st_size)
    with pytest.raises(ConfigError, match="product 1 cannot be read"):
        Catalog(store).product(1)
    (store / "offsets.npy").write_bytes(b"x" * (store / "offsets.npy").stat().st_size)
    with pytest.raises(ConfigError, match=r"offsets\.npy is no array file"):
        Catalog(store)


def test_building_twice_changes_nothing(store: Path) -> None:
    before = (store / "meta.json").stat().st_ino
    build_store(store, PRODUCTS, name="three")
    assert (store / "meta.json").stat().st_ino == before
    assert [path.name for path in store.parent.iterdir()] == ["shop"]


def test_a_store_of_other_products_is_not_overwritten(store: Path) -> None:
    with pytest.raises(ConfigError, match="holds a store of other products"):
        build_store(store, PRODUCTS[:2], name="two")
    assert len(Catalog(store)) == 3
    assert [path.name for path in store.parent.iterdir()] == ["shop"]


def test_a_folder_in_use_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()

    def never() -> Iterator[Product]:
        raise AssertionError
        yield

    for folder in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ConfigError, match="is in use and is no catalogue store"):
            build_store(folder, never(), name="x")


def test_an_empty_folder_becomes_the_store(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    build_store(tmp_path / "shop", PRODUCTS, name="three")
    assert len(Catalog(tmp_path / "shop")) == 3


@pytest.mark.parametrize(
    ("products", "message"),
    [
        ((), "'x' has no products"),
        ((STOOL, LAMP, STOOL), "products 0 and 2 of 'x' have the same asin B00000STOL"),
        ((replace(LAMP, asin="b1"),), "product 0 of 'x': 'b1' is no asin"),
        ((replace(LAMP, asin="12345678901"),), "is no asin"),
        ((replace(LAMP, asin="Ä"),), "is no asin"),
    ],
)
def test_a_failed_build_leaves_nothing(tmp_path: Path, products: tuple[Product, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_store(tmp_path / "shop", products, name="x")
    assert not list(tmp_path.iterdir())


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvError, match=r"cannot build catalogue store .*ISTAR_CACHE"):
        build_store(tmp_path / "file" / "shop", PRODUCTS, name="x")


def test_a_build_in_progress_is_invisible_and_spared(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Product]:
        yield STOOL
        assert not (tmp_path / "shop").exists()
        build_store(tmp_path / "shop", PRODUCTS, name="three")
        yield from (LAMP, SHELF)

    build_store(tmp_path / "shop", interrupted(), name="three")
    assert len(Catalog(tmp_path / "shop")) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]


def test_only_old_drafts_of_the_same_store_are_removed(tmp_path: Path) -> None:
    names = ("shop.1.draft", "shop.2.draft", "shop2.1.draft")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "products.bin").touch()
        old = time.time() - STALE_S - 60
        os.utime(tmp_path / name / "products.bin", (old, old))
        os.utime(tmp_path / name, (old, old))
    os.utime(tmp_path / "shop.2.draft" / "products.bin")
    build_store(tmp_path / "shop", PRODUCTS, name="three")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shop", "shop.2.draft", "shop2.1.draft"]


def _build_slowly(folder: Path, barrier: "multiprocessing.synchronize.Barrier") -> None:
    def slow() -> Iterator[Product]:
        barrier.wait(300)
        yield from PRODUCTS

    build_store(folder, slow(), name="three")


def test_processes_that_build_the_same_store_all_succeed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    workers = [context.Process(target=_build_slowly, args=(tmp_path / "shop", barrier)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]
    assert len(Catalog(tmp_path / "shop")) == 3


def test_the_shipped_catalogue_opens_by_name() -> None:
    shop = open_catalogue("generated")
    assert len(shop) == 1000
    assert open_catalogue("generated") is shop


@pytest.mark.usefixtures("_own_cache")
def test_a_generated_catalogue_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = open_catalogue("generated-30")
    assert (len(shop), shop.name) == (30, "generated-30")
    assert shop.folder.parent == tmp_path / "cache" / "webshop"
    monkeypatch.setattr(sources, "build_store", None)
    assert open_catalogue("generated-30") is shop


def test_the_folder_of_a_store_opens_it(store: Path) -> None:
    shop = open_catalogue(store)
    assert open_catalogue(str(store)) is shop


def _official(folder: Path) -> Path:
    record = {"asin": "B1", "name": "Lamp", "category": "garden", "query": "lamps"}
    folder.mkdir(exist_ok=True)
    (folder / "items_shuffle.json").write_text(json.dumps([record]), encoding="utf-8")
    (folder / "items_ins_v2.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.mark.usefixtures("_own_cache")
def test_official_files_are_built_once_and_again_when_they_change(tmp_path: Path) -> None:
    folder = _official(tmp_path / "data")
    shop = open_catalogue(folder)
    assert (shop.name, shop.product(0).title) == ("items_shuffle", "Lamp")
    assert open_catalogue(folder / "items_shuffle.json") is shop
    copied = _official(tmp_path / "copy")
    assert open_catalogue(copied) is shop
    for phrase in ("bright", "strong"):
        text = json.dumps({"B1": {"attributes": [phrase]}})
        (folder / "items_ins_v2.json").write_text(text, encoding="utf-8")
        assert open_catalogue(folder).product(0).attributes == (phrase,)


@pytest.mark.usefixtures("_own_cache")
def test_broken_official_files_leave_no_store(tmp_path: Path) -> None:
    folder = _official(tmp_path / "data")
    (folder / "items_shuffle.json").write_text('[{"asin": "B1"}]', encoding="utf-8")
    with pytest.raises(ConfigError, match='record 1, field "name"'):
        open_catalogue(folder)
    assert [path.name for path in (tmp_path / "cache" / "webshop").iterdir()] == ["known"]


@pytest.mark.parametrize("name", ["generate", "generated-0", "generated--1", "no/such/folder", "generated-x"])
def test_an_unknown_catalogue_is_answered_with_what_there_is(name: str) -> None:
    with pytest.raises(MissingAsset, match=r'no catalogue ".*" (Did you mean|Known)|Or give the folder'):
        open_catalogue(name)


def test_an_empty_folder_is_no_catalogue(tmp_path: Path) -> None:
    with pytest.raises(MissingAsset, match="istar-envs fetch webshop"):
        open_catalogue(tmp_path)


@needs_webshop
@pytest.mark.usefixtures("_own_cache")
def test_the_official_store_holds_the_official_products() -> None:
    shop = open_catalogue(WEBSHOP)
    products = list(sources.read_official(WEBSHOP))
    assert [shop.product(row) for row in range(len(shop))] == products
    meta = json.loads((shop.folder / "meta.json").read_text(encoding="utf-8"))
    assert meta["goals"] == {"synthetic": 6910, "human": 13}


def test_the_cache_folder_is_the_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTAR_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_folder() == tmp_path / "a"
    monkeypatch.delenv("ISTAR_CACHE")
    assert cache_folder() == tmp_path / "b" / "istar"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "istar"
    assert cache_folder().is_dir()


def test_a_named_cache_folder_that_cannot_be_made_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ISTAR_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ConfigError, match="environment variable ISTAR_CACHE"):
        cache_folder()


def test_a_home_that_cannot_be_written_gives_way_to_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("ISTAR_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(cache.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = cache_folder()
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)
    assert "ISTAR_CACHE" in caplog.text
    monkeypatch.setattr(cache.os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    (tmp_path / f"istar-{os.stat(tmp_path).st_uid + 1}").mkdir()
    with pytest.raises(ConfigError, match="Set ISTAR_CACHE to a folder of your own"):
        cache_folder()
