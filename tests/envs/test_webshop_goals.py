"""Goal lists, price caps, hidden prices and splits of small hand-made catalogues."""

import copy
import dataclasses
import logging
import os
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webshop_shop import make_option, make_product

from istar_envs.errors import EnvError
from istar_envs.webshop import goals as goals_module
from istar_envs.webshop import splits
from istar_envs.webshop.build import build_store
from istar_envs.webshop.catalog import Catalog
from istar_envs.webshop.goals import GoalBook
from istar_envs.webshop.prices import cap_text, compat_price, draw_cap, strict_price
from istar_envs.webshop.products import Annotation, Purchase
from istar_envs.webshop.scoring import score_strict

PLAIN = make_product(
    "B0PLAIN",
    "Plain Lamp",
    instruction="Find me plain lamps",
    instruction_attributes=("sturdy",),
    prices=(9.5,),
)
SHIRT = make_product(
    "B0SHIRT",
    "Cotton Shirt",
    instruction="Find me soft shirts",
    instruction_attributes=("soft", "sturdy"),
    options=(make_option("size", "s", "m", "s"), make_option("color", "red", "blue")),
    prices=(11.0, 39.0),
    annotations=(
        Annotation(".i want a red shirt.", ("sturdy",), ("S", "Red"), ("size: s", "color: red")),
        Annotation("no attributes here", (), ("red",), ()),
        Annotation("a soft one", ("soft", "sturdy"), ("huge", "blue"), ("color: blue",)),
    ),
)
SILENT = make_product("B0SILENT", "Silent Lamp", instruction="", instruction_attributes=())
VAGUE = make_product("B0VAGUE", "Vague Lamp", instruction="Find me something", instruction_attributes=())
FREE = make_product(
    "B0FREE",
    "Free Lamp",
    instruction="Find me free lamps",
    instruction_attributes=("sturdy",),
    prices=(100.0,),
    is_priced=False,
)
PRODUCTS = (PLAIN, SHIRT, SILENT, VAGUE, FREE)


def make_catalog(folder, products=PRODUCTS):
    build_store(folder / "store", products, name="hand-made")
    return Catalog(folder / "store")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    return make_catalog(tmp_path_factory.mktemp("goals"))


def book(catalog, kind="synthetic", scoring="compat", seed=0):
    return GoalBook(catalog, kind, scoring=scoring, seed=seed)


def every_goal(goals):
    return [goals.goal(index) for index in range(len(goals))]


# The list


def test_list_is_the_catalogue_order_shuffled_with_the_published_seed(catalog):
    listed = [("B0PLAIN", ())]
    for color in ("red", "blue"):
        listed += [("B0SHIRT", (("color", color), ("size", size))) for size in ("s", "m", "s")]
    listed.append(("B0FREE", ()))
    random.Random(233).shuffle(listed)
    assert [(goal.target.asin, goal.options) for goal in every_goal(book(catalog))] == listed


def test_human_list_has_every_annotation_with_attributes_in_shuffled_order(catalog):
    listed = [".i want a red shirt.", "a soft one"]
    random.Random(233).shuffle(listed)
    goals = every_goal(book(catalog, "human"))
    assert [goal.text.partition(", and price")[0] for goal in goals] == [text.strip(".") for text in listed]
    assert {goal.kind for goal in goals} == {"human"}


def test_index_of_a_goal_is_its_position(catalog):
    assert [goal.index for goal in every_goal(book(catalog))] == list(range(8))


def test_text_names_options_and_cap(catalog):
    by_options = {goal.options: goal for goal in every_goal(book(catalog)) if goal.target == SHIRT}
    goal = by_options[("color", "red"), ("size", "m")]
    assert goal.text == f"Find me soft shirts with color: red, and size: m{cap_text(goal.price_upper)}"
    plain = next(goal for goal in every_goal(book(catalog)) if goal.target == PLAIN)
    assert plain.text == f"Find me plain lamps{cap_text(plain.price_upper)}"


def test_weight_is_the_mean_rarity_of_the_attributes(catalog):
    goals = book(catalog)
    # "sturdy" is wanted by all 8 goals, "soft" by the 6 of the shirt.
    expected = [(1 / 6 + 1 / 8) / 2 if goal.target == SHIRT else 1 / 8 for goal in every_goal(goals)]
    assert goals.weights == pytest.approx(expected)
    assert goals.weights.dtype == np.float32
    assert not goals.weights.flags.writeable


def test_human_goals_weigh_the_same(catalog):
    assert book(catalog, "human").weights.tolist() == [1.0, 1.0]


def test_option_group_without_values_leaves_no_goal(tmp_path):
    empty = dataclasses.replace(SHIRT, options=(make_option("size"), make_option("color", "red")))
    assert len(book(make_catalog(tmp_path, (empty,)))) == 0


def test_catalogue_may_have_no_goals_at_all(tmp_path):
    catalog = make_catalog(tmp_path, (SILENT,))
    for kind in ("synthetic", "human"):
        assert len(book(catalog, kind)) == len(book(catalog, kind).weights) == 0


def test_absurd_number_of_combinations_is_cut_and_said(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(goals_module, "MOST_COMBINATIONS", 4)
    with caplog.at_level(logging.WARNING):
        goals = book(make_catalog(tmp_path, (SHIRT,)))
    assert len(goals) == 4
    assert "B0SHIRT has 6 option combinations; only the first 4" in caplog.text


def test_goal_out_of_range_is_refused_with_the_range(catalog):
    for index in (-1, 8):
        with pytest.raises(EnvError, match=f'no goal {index}: catalogue "hand-made" has 8 synthetic goals'):
            book(catalog).goal(index)


def test_numpy_integers_name_goals_too(catalog):
    goal = book(catalog).goal(np.int32(3))
    assert type(goal.index) is int
    assert goal == book(catalog).goal(3)


def test_unknown_kind_or_scoring_is_refused_with_the_nearest_name(catalog):
    with pytest.raises(EnvError, match=r"no goals 'humans' \(WebShop.*Did you mean \"human\""):
        book(catalog, "humans")
    with pytest.raises(EnvError, match=r"no scoring 'strikt' \(WebShop.*Did you mean \"strict\""):
        book(catalog, scoring="strikt")


def test_goals_cannot_be_changed(catalog):
    goal = book(catalog).goal(0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        goal.text = "another"
    assert isinstance(goal.options, tuple)
    assert isinstance(goal.attributes, tuple)


def test_pickled_or_copied_book_has_the_same_goals(catalog):
    goals = book(catalog, "human", "strict", seed=5)
    for twin in (pickle.loads(pickle.dumps(goals)), copy.deepcopy(goals)):
        assert every_goal(twin) == every_goal(goals)
    assert len(pickle.dumps(goals)) < 1000


def test_global_generators_are_left_alone(tmp_path):
    random.seed(7)
    np.random.seed(7)
    before, np_before = random.getstate(), np.random.get_state()[1].tolist()
    every_goal(book(make_catalog(tmp_path)))
    assert random.getstate() == before
    assert np.random.get_state()[1].tolist() == np_before


# Caps and prices


def test_goals_are_equal_in_every_process(catalog):
    script = (
        "import sys, hashlib; from pathlib import Path\n"
        "from istar_envs.webshop.catalog import Catalog; from istar_envs.webshop.goals import GoalBook\n"
        "catalog = Catalog(Path(sys.argv[1]))\n"
        "names = [(kind, scoring) for kind in ('synthetic', 'human') for scoring in ('compat', 'strict')]\n"
        "books = [GoalBook(catalog, kind, scoring=scoring) for kind, scoring in names]\n"
        "goals = [repr((book.goal(i), book.price(book.goal(i).target))) for book in books "
        "for i in range(len(book))]\n"
        "print(hashlib.sha256(''.join(goals).encode()).hexdigest())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script, str(catalog.folder)],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        )
        for salt in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout != ""


def test_goals_of_one_product_share_their_cap_and_seeds_differ(catalog):
    caps = {goal.price_upper for goal in every_goal(book(catalog)) if goal.target == SHIRT}
    assert len(caps) == 1
    by_seed = {tuple(goal.price_upper for goal in every_goal(book(catalog, seed=seed))) for seed in range(9)}
    assert len(by_seed) > 1


def test_cap_is_the_second_to_fourth_multiple_of_ten_above_the_price():
    draws = [draw_cap(20.0, stream) for stream in range(6000)]
    assert set(draws) == {40.0, 50.0, 60.0}
    shares = [draws.count(cap) / 6000 for cap in (40.0, 50.0, 60.0)]
    assert shares == pytest.approx([1 / 6, 1 / 3, 1 / 2], abs=0.02)


@pytest.mark.parametrize(
    ("price", "caps"), [(979.99, {990.0}), (969.0, {980.0, 990.0}), (0.5, {20.0, 30.0, 40.0})]
)
def test_caps_end_at_990(price, caps):
    assert {draw_cap(price, stream) for stream in range(60)} == caps


@pytest.mark.parametrize("price", [980.0, 989.0, 990.0, 5000.0, float("inf")])
def test_dear_products_have_no_cap_and_no_price_text(price):
    assert draw_cap(price, 0) is None
    assert cap_text(None) == ""


@pytest.mark.property
@given(st.floats(0.01, 970.0), st.integers(0, 2**63 - 1))
@settings(max_examples=100, deadline=None)
def test_cap_is_above_the_price(price, stream):
    cap = draw_cap(price, stream)
    assert price < cap <= price + 40.0


def test_hidden_price_is_the_price_a_draw_in_the_range_or_100():
    assert compat_price(PLAIN, 0) == 9.5
    assert compat_price(FREE, 0) == 100.0
    drawn = [compat_price(dataclasses.replace(SHIRT, asin=f"B{i}"), 0) for i in range(2000)]
    assert 11.0 <= min(drawn) < 12.0
    assert 38.0 < max(drawn) <= 39.0
    assert sum(drawn) / 2000 == pytest.approx(25.0, abs=0.6)
    assert compat_price(SHIRT, 0) == compat_price(SHIRT, 0) != compat_price(SHIRT, 1)


def test_strict_price_is_the_lowest_shown_or_unknown():
    assert strict_price(SHIRT) == 11.0
    assert strict_price(FREE) == float("inf")


def test_price_of_a_book_follows_its_scoring(catalog):
    assert book(catalog, scoring="strict").price(SHIRT) == 11.0
    assert book(catalog, seed=4).price(SHIRT) == compat_price(SHIRT, 4)


# Strict goals


def test_strict_goal_keeps_only_what_its_target_satisfies(catalog):
    shirt = next(goal for goal in every_goal(book(catalog, scoring="strict")) if goal.target == SHIRT)
    assert shirt.attributes == ("sturdy",)
    assert shirt.price_upper in {30.0, 40.0, 50.0}


def test_strict_goal_on_an_unpriced_product_has_no_cap(catalog):
    free = next(goal for goal in every_goal(book(catalog, scoring="strict")) if goal.target == FREE)
    assert (free.price_upper, free.text) == (None, "Find me free lamps")


def test_human_options_have_names_in_strict_goals_only(catalog):
    published = {goal.text[:6]: goal.options for goal in every_goal(book(catalog, "human"))}
    assert published == {"i want": (("", "S"), ("", "Red")), "a soft": (("", "huge"), ("", "blue"))}
    named = {goal.text[:6]: goal.options for goal in every_goal(book(catalog, "human", "strict"))}
    assert named == {"i want": (("size", "s"), ("color", "red")), "a soft": (("color", "blue"),)}


def test_value_of_two_options_gets_the_name_that_its_writer_saw(tmp_path):
    note = Annotation("red please", ("sturdy",), ("red", "red", "red"), ("trim: red",))
    options = (make_option("color", "red"), make_option("trim", "red"))
    product = dataclasses.replace(SHIRT, options=options, annotations=(note,))
    goal = book(make_catalog(tmp_path, (product,)), "human", "strict").goal(0)
    assert goal.options == (("trim", "red"), ("color", "red"))


@pytest.mark.parametrize("kind", ["synthetic", "human"])
def test_buying_what_a_strict_goal_asks_for_scores_exactly_one(catalog, kind):
    for goal in every_goal(book(catalog, kind, "strict")):
        assert score_strict(Purchase(goal.target, dict(goal.options)), goal).total == 1.0


# Splits


@pytest.mark.parametrize(
    ("scheme", "name", "first", "last", "size"),
    [
        ("webshop-original", "test", 0, 499, 500),
        ("webshop-original", "dev", 500, 1499, 1000),
        ("webshop-original", "train", 1500, 1999, 500),
        ("istar", "test", 0, 499, 500),
        ("istar", "train", 500, 1999, 1500),
    ],
)
def test_published_splits_are_ranges_of_the_list(scheme, name, first, last, size):
    chosen = splits.choose(scheme, name, np.zeros(2000, np.uint8))
    assert (chosen[0], chosen[-1], len(chosen), chosen.dtype) == (first, last, size, np.int32)


def test_published_test_split_of_a_short_list_is_the_whole_list(catalog):
    assert book(catalog).split("istar", "test").tolist() == list(range(8))


def test_empty_split_is_refused_with_the_number_of_goals(catalog):
    with pytest.raises(
        EnvError, match=r'split "dev" of scheme "webshop-original" is empty.*only 8 synthetic'
    ):
        book(catalog).split("webshop-original", "dev")


def test_istar_scheme_has_no_dev_split(catalog):
    with pytest.raises(EnvError, match=r'scheme "istar" has no split "dev".*Known: test, train'):
        book(catalog).split("istar", "dev")


def test_unknown_scheme_or_split_is_refused_with_the_nearest_name(catalog):
    with pytest.raises(EnvError, match=r'no split scheme "strikt".*Did you mean "strict"'):
        book(catalog).split("strikt", "test")
    with pytest.raises(EnvError, match=r'no split "trian".*Did you mean "train"'):
        book(catalog).split("strict", "trian")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """400 products: every text of a synthetic instruction and of a human one is used by two of them."""
    products = [
        dataclasses.replace(
            PLAIN,
            asin=f"B{number}",
            instruction=f"Find me  Lamp {number % 200}" if number < 200 else f"find me lamp {number % 200}",
            annotations=(Annotation(f"lamp {number % 200}.", ("sturdy",), (), ()),),
        )
        for number in range(400)
    ]
    return make_catalog(tmp_path_factory.mktemp("many"), products)


@pytest.mark.parametrize("kind", ["synthetic", "human"])
def test_strict_splits_share_neither_product_nor_text(many, kind):
    goals = book(many, kind)
    parts = {name: [goals.goal(i) for i in goals.split("strict", name)] for name in splits.STRICT_CODES}
    for seen in (
        lambda goal: goal.target.asin,
        lambda goal: " ".join(goal.text.lower().split(", and price")[0].split()),
    ):
        groups = [{seen(goal) for goal in part} for part in parts.values()]
        assert sum(map(len, groups)) == len(set.union(*groups))


def test_strict_synthetic_splits_take_all_goals_about_eight_to_one_to_one(many):
    sizes = {name: len(book(many).split("strict", name)) for name in splits.STRICT_CODES}
    assert sum(sizes.values()) == 400
    assert 290 <= sizes["train"] <= 350
    assert min(sizes["dev"], sizes["test"]) >= 20


def test_repeated_human_text_stays_where_it_counts_most():
    train, dev, test = (splits.STRICT_CODES[name] for name in ("train", "dev", "test"))
    codes = np.array([train, test, dev, train, train, dev], np.uint8)
    texts = np.array([1, 1, 1, 2, 3, 3])
    gone = splits.NOWHERE
    assert splits.without_repeats(codes, texts).tolist() == [gone, test, gone, train, gone, dev]
