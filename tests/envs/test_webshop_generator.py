"""The generated catalogue: equal in every process, with the published statistics, and good to shop."""

import hashlib
import itertools
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from istar_envs.webshop import generator
from istar_envs.webshop.catalog import Catalog, encode_product
from istar_envs.webshop.cleaning import words_in
from istar_envs.webshop.generator import MOST_COMBINATIONS, SHARES, generate_products
from istar_envs.webshop.goals import GoalBook
from istar_envs.webshop.make_catalogue import NUM_PRODUCTS, SHIPPED, make_catalogue
from istar_envs.webshop.products import Product
from istar_envs.webshop.search import Bm25
from istar_envs.webshop.sources import open_catalogue
from istar_envs.webshop.wordlists import DEPARTMENTS, Family, load_department, title_case

MOST_BYTES = 4_000_000


@pytest.fixture(scope="module")
def products() -> list[Product]:
    return list(generate_products(1000))


@pytest.fixture(scope="module")
def families() -> list[Family]:
    pairs = itertools.chain.from_iterable(load_department(name).kinds for name in DEPARTMENTS)
    return list({id(family): family for family, _ in pairs}.values())


def text_of(product: Product) -> str:
    """Title, description and bullets as whole words."""
    return "".join(map(words_in, (product.title, product.description, *product.bullets)))


def combinations(product: Product) -> int:
    return math.prod(len(group.values) for group in product.options)


def test_a_longer_catalogue_begins_with_the_shorter_one(products):
    assert list(generate_products(50)) == products[:50]


def test_another_seed_gives_other_products(products):
    others = list(generate_products(50, seed=1))
    assert not {p.asin for p in others} & {p.asin for p in products}
    assert all(ours.title != theirs.title for ours, theirs in zip(products, others, strict=False))


def test_products_stream_one_by_one():
    stream = generate_products(10**9)
    assert isinstance(stream, Iterator)
    assert next(stream).asin != next(stream).asin


def test_no_products_and_negative_counts():
    assert list(generate_products(0)) == []
    with pytest.raises(ValueError, match="cannot have -1 products"):
        next(generate_products(-1))


def test_every_process_makes_the_same_products(products):
    script = (
        "import hashlib; from istar_envs.webshop.catalog import encode_product;"
        "from istar_envs.webshop.generator import generate_products;"
        "print(hashlib.sha256(b''.join(map(encode_product, generate_products(100)))).hexdigest())"
    )
    digests = set()
    for salt in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": salt}
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True
        )
        digests.add(run.stdout)
    here = hashlib.sha256(b"".join(map(encode_product, products[:100]))).hexdigest()
    assert digests == {f"{here}\n"}


def test_asins_are_six_characters_and_differ():
    asins = {generator._asin(12345, i) for i in range(200_000)}
    assert len(asins) == 200_000
    assert all(len(asin) == 6 and asin[0] == "G" for asin in asins)
    assert not set("".join(asins)) - set("G0123456789ABCDEFGHJKMNPQRSTVWXYZ")


def test_asins_differ_because_each_step_of_theirs_is_one_to_one():
    assert all(factor % 2 == 1 for factor in generator._ODD)
    assert math.gcd(generator._STEP, 1000) == 1


def test_every_thousand_has_the_published_department_shares(products):
    assert Counter(product.category for product in products) == SHARES
    second = itertools.islice(generate_products(2000), 1000, 2000)
    assert Counter(product.category for product in second) == SHARES
    assert len({product.category for product in products[:20]}) == len(DEPARTMENTS)


def test_options_are_as_common_as_published(products):
    groups = Counter(len(product.options) for product in products)
    assert groups[1] == pytest.approx(245, abs=30)
    assert groups[2] == pytest.approx(165, abs=30)
    assert 3 <= groups[3] <= 30
    sizes = [len(group.values) for product in products for group in product.options]
    assert min(sizes) == 3
    assert max(sizes) == 9
    assert {"color", "size", "style", "flavor name", "scent", "fit type"} <= {
        group.name for product in products for group in product.options
    }


def test_prices_descriptions_and_paths_are_as_published(products):
    assert sum(len(product.prices) == 2 for product in products) == pytest.approx(93, abs=25)
    assert sum(not product.is_priced for product in products) == pytest.approx(89, abs=25)
    assert sum(product.description == "" for product in products) == pytest.approx(301, abs=45)
    assert sum(product.breadcrumb == "" for product in products) == pytest.approx(22, abs=15)
    assert all(" › " in product.breadcrumb for product in products if product.breadcrumb)
    assert len({product.query for product in products}) == pytest.approx(246, abs=20)


def test_attributes_and_instructions_are_as_common_as_published(products):
    counts = [len(product.attributes) for product in products]
    assert counts.count(0) == pytest.approx(185, abs=35)
    assert sum(counts) / 1000 == pytest.approx(2.83, abs=0.2)
    assert sum(product.instruction != "" for product in products) == pytest.approx(415, abs=45)
    assert sum(len(product.annotations) for product in products) == pytest.approx(60, abs=20)


def test_goals_are_thousands_and_no_product_has_too_many(products):
    instructed = [combinations(product) for product in products if product.instruction]
    assert 4000 <= sum(instructed) <= 7000
    assert max(map(combinations, generate_products(5000, seed=3))) <= MOST_COMBINATIONS


def test_prices_are_sensible(products):
    for product in products:
        assert len(product.prices) in (1, 2)
        assert 1 <= product.prices[0] < 1100
        assert list(product.prices) == sorted(set(product.prices))
        if not product.is_priced:
            assert product.prices == (100.0,)
        assert all(round(price, 2) == price for price in product.prices)
        assert product.rating is not None
        assert 2.7 <= product.rating <= 5.0


def test_titles_and_bullets_have_a_readable_length():
    for product in generate_products(4000, seed=5):
        assert 6 <= len(product.title.split()) <= 14
        assert 3 <= len(product.bullets) <= 5
        assert len(set(product.bullets)) == len(product.bullets)


def test_texts_have_no_unfilled_slots_or_loose_spaces():
    for product in generate_products(4000, seed=5):
        notes = [note.instruction for note in product.annotations]
        for text in (product.title, product.description, product.instruction, *product.bullets, *notes):
            assert text == " ".join(text.split())
            assert not set("{}") & set(text)
            assert ".." not in text


def test_option_values_differ_and_are_lower_case():
    for product in generate_products(4000, seed=5):
        names = [group.name for group in product.options]
        assert len(set(names)) == len(names)
        for group in product.options:
            assert len(set(group.values)) == len(group.values) == len(group.images)
            assert all(value and value == value.strip().lower() for value in group.values)


def test_some_values_are_easy_to_confuse(products):
    offers = [set(group.values) for product in products for group in product.options]
    for pair in ({"large", "x-large"}, {"navy", "navy blue"}, {"lavender", "lavender vanilla"}):
        assert any(pair <= values for values in offers)


def test_every_attribute_stands_in_the_text():
    for product in generate_products(4000, seed=5):
        text = text_of(product)
        assert len(set(product.attributes)) == len(product.attributes)
        for attribute in product.attributes:
            assert words_in(attribute) in text


def test_instructions_ask_for_what_the_product_has(products):
    for product in products:
        assert bool(product.instruction) == bool(product.instruction_attributes)
        if product.instruction:
            assert 2 <= len(product.instruction_attributes) <= 3
            assert set(product.instruction_attributes) <= set(product.attributes)
            asked = words_in(product.instruction)
            assert all(words_in(part) in asked for part in (*product.instruction_attributes, product.query))


def test_annotations_ask_for_what_the_product_has():
    notes = [(p, note) for p in generate_products(4000, seed=5) for note in p.annotations]
    assert len({note.instruction for _, note in notes}) > 0.95 * len(notes)
    for product, note in notes:
        offered = {f"{group.name}: {value}" for group in product.options for value in group.values}
        assert note.attributes
        assert set(note.attributes) <= set(product.attributes)
        assert set(note.shown) <= offered
        assert len(note.shown) == len(product.options)
        assert {*note.values} <= {shown.split(": ", 1)[1] for shown in note.shown}
        asked = words_in(note.instruction)
        assert all(words_in(part) in asked for part in (*note.attributes, *note.values, product.query))


def test_products_of_one_query_compete(products):
    queries = Counter(product.query for product in products)
    assert sum(count >= 3 for count in queries.values()) > 120
    rivals = [p for p in products if p.query == queries.most_common(1)[0][0]]
    assert len({p.attributes for p in rivals}) > len(rivals) // 2
    assert len({p.title for p in rivals}) == len(rivals)


@pytest.fixture(scope="module")
def shipped() -> Catalog:
    return open_catalogue("generated")


def test_the_shipped_catalogue_is_what_the_generator_makes_now(shipped, products):
    assert len(shipped) == NUM_PRODUCTS == len(products)
    assert [shipped.product(row) for row in range(len(shipped))] == products
    assert shipped.name == "generated"


def test_the_shipped_catalogue_is_small(shipped):
    files = [path for path in SHIPPED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    assert shipped.folder == SHIPPED.resolve()


def test_the_shipped_store_can_be_made_again_in_place(shipped, tmp_path):
    folder = tmp_path / "store"
    for _ in range(2):
        assert make_catalogue(folder).fingerprint == shipped.fingerprint
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(SHIPPED) for path in SHIPPED.rglob("*") if path.is_file())
    for name in names:
        assert (folder / name).read_bytes() == (SHIPPED / name).read_bytes()


def test_search_finds_the_target_of_most_instructions(shipped):
    engine, goals = Bm25(shipped.folder), GoalBook(shipped, "synthetic", scoring="strict")
    places = []
    for index in range(500):
        goal = goals.goal(index)
        query = goal.text.split(", and price lower than")[0]
        rows = engine.search(query, k=50)
        row = shipped.row(goal.target.asin)
        places.append(rows.index(row) if row in rows else 50)
    assert 0.5 <= sum(place == 0 for place in places) / 500 <= 0.72
    assert sum(place < 10 for place in places) / 500 > 0.9
    assert sum(place < 50 for place in places) / 500 >= 0.98


def test_every_strict_goal_keeps_all_it_asks_for(shipped):
    for kind in ("synthetic", "human"):
        strict = GoalBook(shipped, kind, scoring="strict")
        compat = GoalBook(shipped, kind, scoring="compat")
        for index in range(min(len(strict), 400)):
            assert strict.goal(index).attributes == compat.goal(index).attributes
            assert len(strict.goal(index).options) == len(compat.goal(index).options)


def test_every_line_holds_its_attribute(families):
    traits = {trait for family in families for axis in family.axes for trait in axis}
    assert len({trait.attribute for trait in traits}) > 400
    for trait in traits:
        assert len(trait.lines) == 2
        for line in trait.lines:
            assert words_in(trait.attribute) in words_in(line), trait
            assert not line.endswith(".")


def test_heads_of_bullets_name_no_attribute(families):
    traits = {trait for family in families for axis in family.axes for trait in axis}
    attributes = {words_in(trait.attribute) for trait in traits}
    heads = "".join(words_in(trait.head) for trait in traits)
    assert not [attribute for attribute in attributes if attribute in heads]


def test_families_are_rich_enough(families):
    for family in families:
        attributes = [trait.attribute for axis in family.axes for trait in axis]
        assert len(set(attributes)) == len(attributes), family.breadcrumb
        assert len(family.axes) >= 6
        assert len({choice.name for choice in family.choices}) == len(family.choices) >= 2
        assert all(len(kind.nouns) >= 2 for kind in family.kinds)
        assert 0 < family.price[0] < family.price[1]
        assert len(family.offers) == 3
        assert len(family.lines) == 4


def test_parts_of_a_title_fit_into_fourteen_words(families):
    for family in families:
        assert all(len(look.split()) <= 2 for look in family.looks)
        assert all(len(kind_title.split()) <= 4 for kind in family.kinds for kind_title in kind.titles)
        for trait in itertools.chain.from_iterable(family.axes):
            assert len(trait.title.split()) <= (4 if trait.preposition else 3), trait


def test_every_kind_of_product_can_occur():
    for name in DEPARTMENTS:
        assert math.gcd(len(load_department(name).kinds), generator._SPREAD) == 1


def test_queries_are_unique_and_lower_case(families):
    queries = [kind.query for family in families for kind in family.kinds]
    assert len(set(queries)) == len(queries) > 250
    assert all(query == query.lower().strip() for query in queries)


def test_title_case_keeps_small_words_and_acronyms():
    assert title_case("women's shoes for wide feet") == "Women's Shoes for Wide Feet"
    assert title_case("with USB C port") == "with USB C Port"
