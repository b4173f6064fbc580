"""Speed of the shop's search. Run with `python -m pytest benchmarks/bench_webshop_search.py -s`.

The large index holds 1.2 million generated products (ISTAR_BENCH_PRODUCTS sets another number) and takes
some minutes to build. Times are CPU times of one core, so that other jobs on the machine do not count.
"""

import os
import resource
from pathlib import Path
from time import process_time

import numpy as np
import pytest

from istar_envs.webshop.generator import generate_products
from istar_envs.webshop.index_writer import IndexWriter
from istar_envs.webshop.search import Bm25

NUM_PRODUCTS = int(os.environ.get("ISTAR_BENCH_PRODUCTS", "1200000"))
NUM_QUERIES = 500
ENDING = ", and price lower than 50.00 dollars"


def build(folder: Path, num_products: int) -> tuple[float, list[str]]:
    """Index generated products; return the seconds of the writer alone and some instructions."""
    writer, seconds, instructions = IndexWriter(folder / "index"), 0.0, []
    every = max(1, num_products // (4 * NUM_QUERIES))
    for row, product in enumerate(generate_products(num_products, seed=0)):
        text = product.search_text
        start = process_time()
        writer.add(text)
        seconds += process_time() - start
        if row % every == 0 and product.instruction:
            instructions.append(product.instruction + ENDING)
    start = process_time()
    writer.finish(np.random.default_rng(0).permutation(num_products).astype(np.int32))
    return seconds + process_time() - start, instructions[:NUM_QUERIES]


def search_times(engine: Bm25, queries: list[str]) -> np.ndarray:
    """Seconds of each search, when the index is in memory and the analysis of words is warm."""
    times = np.zeros(len(queries))
    for _ in range(2):
        for number, query in enumerate(queries):
            start = process_time()
            engine.search(query)
            times[number] = process_time() - start
    return times


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float, list[str]]:
    folder = tmp_path_factory.mktemp("large")
    seconds, queries = build(folder, NUM_PRODUCTS)
    return folder, seconds, queries


def test_building_the_large_index(large: tuple[Path, float, list[str]]) -> None:
    folder, seconds, _ = large
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    size_mb = sum(file.stat().st_size for file in (folder / "index").iterdir()) / 2**20
    print(
        f"\n{NUM_PRODUCTS:,} products indexed in {seconds:.0f} s (bar 480 s), {size_mb:.0f} MB on disk, "
        f"peak {peak_gb:.2f} GB (bar 2.5 GB)"
    )
    assert seconds <= 480
    assert peak_gb <= 2.5


def test_searching_the_large_index(large: tuple[Path, float, list[str]]) -> None:
    folder, _, queries = large
    start = process_time()
    engine = Bm25(folder)
    opened_ms = 1e3 * (process_time() - start)
    median, p99 = 1e3 * np.percentile(search_times(engine, queries), [50, 99])
    words = np.median([len(query.split()) for query in queries])
    print(
        f"\n{len(queries)} instructions of {words:.0f} words in {NUM_PRODUCTS:,} products: "
        f"median {median:.1f} ms (bar 50 ms), p99 {p99:.1f} ms (bar 200 ms); opened in {opened_ms:.1f} ms"
    )
    assert median <= 50
    assert p99 <= 200


def test_searching_a_small_index(tmp_path: Path) -> None:
    _, queries = build(tmp_path, 1000)
    mean = 1e3 * search_times(Bm25(tmp_path), queries).mean()
    print(f"\n{len(queries)} instructions in 1,000 products: mean {mean:.3f} ms (bar 0.3 ms)")
    assert mean <= 0.3
