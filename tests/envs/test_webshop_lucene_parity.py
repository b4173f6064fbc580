"""The own search ranks exactly as Lucene does: the same fifty products in the same order, ties included."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from istar_envs.webshop.build import build_store
from istar_envs.webshop.catalog import Catalog
from istar_envs.webshop.goals import GoalBook
from istar_envs.webshop.official import read_official
from istar_envs.webshop.products import Product
from istar_envs.webshop.search import Bm25
from made_environment import made_by
from official_data import WEBSHOP, needs_webshop

pytestmark = pytest.mark.slow
NUM_QUERIES = 600
SCRIPTS = [
    "café",
    "naïve",
    "★",
    "❤\ufe0f",
    "東京",
    "タワー",
    "ひら",
    "한국",
    "ไทย",
    "שלום",
    "أهلا",
    "½",
    "10²",
    "👍🏽",
]
ENGLISH = "hopping relational women's falling o'clock 2.5 60.00 x:y snake_case a.b the with shoes".split()
VOCABULARY = [*ENGLISH, *SCRIPTS, *(f"w{number}" for number in range(300))]
CHANCES = 1 / np.arange(5, len(VOCABULARY) + 5)
CHANCES /= CHANCES.sum()


@pytest.fixture(scope="module")
def lucene_python() -> Path:
    """An interpreter with Lucene."""
    return made_by("lucene_env.sh", ".venv-lucene")


def assert_same_rankings(python: Path, store: Path, queries: list[str]) -> None:
    asked, answered = store.with_name("queries.json"), store.with_name("rankings.json")
    asked.write_text(json.dumps(queries), encoding="utf-8")
    script = Path(__file__).with_name("lucene_rankings.py")
    subprocess.run([python, script, store, asked, answered], check=True, timeout=3600)
    engine = Bm25(store)
    rankings = [tuple(ranking) for ranking in json.loads(answered.read_text(encoding="utf-8"))]
    differing = [
        query for query, ranking in zip(queries, rankings, strict=True) if engine.search(query) != ranking
    ]
    hits = sum(map(len, rankings))
    print(f"\n{len(queries) - len(differing)} of {len(queries)} queries ranked alike, {hits} hits in all")
    assert hits > 10 * len(queries)
    assert differing == []


def text(generator: np.random.Generator, most: int) -> str:
    return " ".join(generator.choice(VOCABULARY, generator.integers(1, most), p=CHANCES))


def made_up_product(generator: np.random.Generator, asin: str, description: str) -> Product:
    return Product(
        asin=asin,
        title=text(generator, 4),
        description=description,
        bullets=(),
        category="garden",
        query="",
        breadcrumb="",
        prices=(1.0,),
        is_priced=True,
        image="",
        rating=None,
        options=(),
        attributes=("x",),
    )


def test_made_up_products_in_many_scripts_rank_as_in_lucene(tmp_path, lucene_python):
    generator = np.random.default_rng(0)
    descriptions = [text(generator, 3 if number % 2 else 200) for number in range(400)]
    asins = [f"B{number:09d}" for number in generator.permutation(2000)]
    products = [made_up_product(generator, asin, descriptions[at % 400]) for at, asin in enumerate(asins)]
    build_store(tmp_path / "store", products, name="made-up")
    queries = [text(generator, 20) for _ in range(NUM_QUERIES)]
    assert_same_rankings(lucene_python, tmp_path / "store", queries)


@needs_webshop
def test_official_instructions_rank_as_in_lucene(tmp_path, lucene_python):
    build_store(tmp_path / "store", read_official(WEBSHOP), name="official")
    goals = GoalBook(Catalog(tmp_path / "store"), "synthetic", scoring="compat")
    texts = dict.fromkeys(goals.goal(index).text for index in range(len(goals)))
    assert_same_rankings(lucene_python, tmp_path / "store", list(texts)[: 2 * NUM_QUERIES])
