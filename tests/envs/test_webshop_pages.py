"""Pages in every form: text, rich text, plain data and address."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from webshop_shop import LAMP, ODD, make_goal, make_option, make_product, small_shop

from istar_envs.webshop.labels import Button
from istar_envs.webshop.pages import build_page
from istar_envs.webshop.products import Score
from istar_envs.webshop.render import to_structured, to_text, to_text_rich, url_of
from istar_envs.webshop.session import PageKind, State

TEXT = "Find me a red lamp, and price lower than 40.00 dollars"
GOAL = make_goal(LAMP, TEXT)
COMPAT = small_shop(show_attributes=True)
STRICT = small_shop("strict")
SCORE = Score(0.8, 1.0, 1.0, 0.5, 1.0, 1.0, True, True, True)

ITEM = State(PageKind.ITEM, "lamp", asin=LAMP.asin)
CHOSEN = State(PageKind.ITEM, "lamp", asin=LAMP.asin, chosen=(("color", "red"), ("size", "large")))


def page_of(state, shop=COMPAT, score=None):
    return build_page(shop, GOAL, state, score)


def sub_page(kind, asin=LAMP.asin):
    return page_of(State(kind, "lamp", asin=asin))


def test_text_of_the_search_page():
    assert to_text(page_of(State())) == f"WebShop [SEP] Instruction: [SEP] {TEXT} [SEP] Search"


def test_text_of_a_results_page():
    shop = small_shop(page_size=2)
    assert to_text(page_of(State(PageKind.RESULTS, "lamp", 2), shop)) == (
        f"Instruction: [SEP] {TEXT} [SEP] Back to Search [SEP] Page 2 (Total results: 24) [SEP] < Prev [SEP] "
        "Next > [SEP] B000000100 [SEP] Lamp Number 0 [SEP] $0.5 [SEP] "
        "B000000101 [SEP] Lamp Number 1 [SEP] $1.5"
    )


def test_text_of_results_without_a_hit():
    assert to_text(page_of(State(PageKind.RESULTS, "zzz"))) == (
        f"Instruction: [SEP] {TEXT} [SEP] Back to Search [SEP] Page 1 (Total results: 0)"
    )


def test_text_of_an_item():
    assert to_text(page_of(ITEM)) == (
        f"Instruction: [SEP] {TEXT} [SEP] Back to Search [SEP] < Prev [SEP] "
        "color [SEP] red [SEP] blue [SEP] size [SEP] small [SEP] large [SEP] "
        "Acme Red Lamp [SEP] Price: $9.98 to $12.98 [SEP] Rating: N.A. [SEP] "
        "Description [SEP] Features [SEP] Reviews [SEP] Attributes [SEP] Buy Now"
    )


def test_chosen_options_stand_before_the_options_of_the_item():
    assert to_text(page_of(CHOSEN)).startswith(
        f"Instruction: [SEP] {TEXT} [SEP] Back to Search [SEP] < Prev [SEP] "
        "You have chosen color: red [SEP] You have chosen size: large [SEP] color [SEP] red [SEP] blue"
    )
    assert to_text(page_of(CHOSEN), show_chosen=False) == to_text(page_of(ITEM))


@pytest.mark.parametrize(
    ("kind", "asin", "lines"),
    [
        (PageKind.DESCRIPTION, LAMP.asin, ["About Acme Red Lamp."]),
        (PageKind.DESCRIPTION, ODD.asin, []),
        (PageKind.FEATURES, LAMP.asin, ["first feature", "second feature"]),
        (PageKind.FEATURES, ODD.asin, ["", "padded"]),
        (PageKind.REVIEWS, LAMP.asin, []),
        (
            PageKind.ATTRIBUTES,
            LAMP.asin,
            ["sturdy", "light weight", "Category: garden", "Query: things", "Path: Home › Things › Plain"],
        ),
    ],
)
def test_text_of_sub_pages(kind, asin, lines):
    head = ["Instruction:", TEXT, "Back to Search", "< Prev"]
    assert to_text(sub_page(kind, asin)) == " [SEP] ".join(head + lines)
    rich = ["Instruction:", TEXT, "[button] Back to Search [button_]", "[button] < Prev [button_]"]
    assert to_text_rich(sub_page(kind, asin)) == "\n".join(rich + lines)


def test_the_last_page_shows_the_score_and_nothing_of_the_target():
    state = State(PageKind.DONE, "lamp", asin=ODD.asin)
    page = page_of(state, score=SCORE)
    assert to_text(page) == "Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] 0.8"
    assert to_text_rich(page) == "Thank you for shopping with us!\nYour score (min 0.0, max 1.0)\n0.8"
    assert to_text(page_of(state)) == "Thank you for shopping with us!"


def test_rich_text_of_the_search_page():
    assert to_text_rich(page_of(State())) == f"WebShop\nInstruction:\n{TEXT}\n[button] Search [button_]"


def test_rich_text_marks_opened_products():
    shop = small_shop(page_size=2)
    state = State(PageKind.RESULTS, "lamp", 2, opened=frozenset({"B000000101"}))
    assert to_text_rich(page_of(state, shop)) == "\n".join(
        [
            "Instruction:",
            TEXT,
            "[button] Back to Search [button_]",
            "Page 2 (Total results: 24)",
            "[button] < Prev [button_]",
            "[button] Next > [button_]",
            "",
            "[button] B000000100 [button_]",
            "Lamp Number 0",
            "$0.5",
            "",
            "[clicked button] B000000101 [clicked button_]",
            "Lamp Number 1",
            "$1.5",
        ]
    )


def test_rich_text_of_an_item_names_chosen_values_with_the_last_option_on_top():
    assert to_text_rich(page_of(CHOSEN)) == "\n".join(
        [
            "You have clicked large.",
            "You have clicked red.",
            "Instruction:",
            TEXT,
            "[button] Back to Search [button_]",
            "[button] < Prev [button_]",
            "color",
            "  [clicked button] red [clicked button_]",
            "  [button] blue [button_]",
            "size",
            "  [button] small [button_]",
            "  [clicked button] large [clicked button_]",
            "Acme Red Lamp",
            "Price: $9.98 to $12.98",
            "Rating: N.A.",
            "[button] Description [button_]",
            "[button] Features [button_]",
            "[button] Reviews [button_]",
            "[button] Attributes [button_]",
            "[button] Buy Now [button_]",
        ]
    )


def test_structured_results_are_json_with_products():
    shop = small_shop(page_size=1)
    state = State(PageKind.RESULTS, "lamp", 2, opened=frozenset({ODD.asin}))
    data = to_structured(page_of(state, shop))
    assert json.loads(json.dumps(data)) == data
    assert data["page"] == "results"
    assert (data["query"], data["number"], data["total"]) == ("lamp", 2, 24)
    assert data["buttons"] == ["Back to Search", "< Prev", "Next >"]
    assert data["products"] == [
        {"asin": ODD.asin, "title": "Acme Odd Lamp", "price": "$100.0", "opened": True}
    ]


def test_structured_item_is_json_with_options():
    data = to_structured(page_of(CHOSEN))
    assert json.loads(json.dumps(data)) == data
    assert data["options"] == [
        {"name": "color", "values": ["red", "blue"], "chosen": "red"},
        {"name": "size", "values": ["small", "large"], "chosen": "large"},
    ]
    assert (data["title"], data["price"], data["rating"]) == ("Acme Red Lamp", "$9.98 to $12.98", "N.A.")
    assert to_structured(page_of(ITEM))["options"][0]["chosen"] is None


def test_structured_pages_all_have_the_same_keys():
    states = [State(kind, "lamp", asin=LAMP.asin) for kind in PageKind]
    keys = {tuple(to_structured(page_of(state, score=SCORE))) for state in states}
    assert len(keys) == 1


def test_structured_last_page_has_the_score():
    assert to_structured(page_of(State(PageKind.DONE, asin=LAMP.asin), score=SCORE))["score"] == 0.8
    assert to_structured(page_of(ITEM))["score"] is None


@pytest.mark.parametrize(
    ("state", "url"),
    [
        (State(), "/"),
        (State(PageKind.RESULTS, "red lamp", 2), "/search?q=red+lamp&page=2"),
        (ITEM, "/item/B000000001?q=lamp&page=1"),
        (CHOSEN, "/item/B000000001?q=lamp&page=1"),
        (State(PageKind.FEATURES, "lamp", 3, "B000000001"), "/item/B000000001/features?q=lamp&page=3"),
        (State(PageKind.DONE, "lamp", asin="B000000001"), "/done"),
    ],
)
def test_address_of_a_page(state, url):
    assert url_of(state) == url


@pytest.mark.parametrize("query", ["a/b?c&d=e#f%20", "größe 灯", "<script>", "..", '"quoted"'])
def test_any_query_stands_in_an_address(query):
    parts = urlsplit(url_of(State(PageKind.ITEM, query, 2, "../x")))
    assert parse_qs(parts.query) == {"q": [query], "page": ["2"]}
    assert parts.path == "/item/..%2Fx"


def test_a_chosen_value_with_a_picture_changes_the_picture():
    assert page_of(ITEM).image == LAMP.image
    assert page_of(CHOSEN).image == "https://pictures.example/red.jpg"
    blue = State(PageKind.ITEM, "lamp", asin=LAMP.asin, chosen=(("color", "blue"),))
    assert page_of(blue).image == LAMP.image


def test_of_several_chosen_pictures_the_last_option_gives_it():
    options = tuple(make_option(name, "a", images=(f"{name}.jpg",)) for name in ("color", "style", "size"))
    shop = small_shop(products=(make_product("B1", options=options),))
    state = State(PageKind.ITEM, "thing", asin="B1", chosen=(("color", "a"), ("style", "a")))
    assert page_of(state, shop).image == "style.jpg"


def test_the_strict_edition_has_ratings_no_reviews_and_says_when_a_price_is_missing():
    assert to_text(page_of(ITEM, STRICT)).endswith(
        "Acme Red Lamp [SEP] Price: $9.98 to $12.98 [SEP] Rating: 4.5 [SEP] "
        "Description [SEP] Features [SEP] Buy Now"
    )
    odd = State(PageKind.ITEM, "lamp", asin=ODD.asin)
    assert to_text(page_of(odd, STRICT)).endswith(
        "Acme Odd Lamp [SEP] Price: not stated [SEP] Description [SEP] Features [SEP] Buy Now"
    )
    results = to_text(page_of(State(PageKind.RESULTS, "odd"), STRICT))
    assert results.endswith("Acme Odd Lamp [SEP] Price: not stated")


def test_the_compat_edition_shows_an_unpriced_product_at_100_dollars():
    odd = State(PageKind.ITEM, "lamp", asin=ODD.asin)
    assert " [SEP] Price: $100.0 [SEP] Rating: N.A. [SEP] " in to_text(page_of(odd))
    assert to_text(page_of(State(PageKind.RESULTS, "odd"))).endswith("Acme Odd Lamp [SEP] $100.0")


def test_a_product_without_title_leaves_no_gap():
    shop = small_shop(products=(make_product("B1", " ", description="lamp"),))
    assert to_text(page_of(State(PageKind.RESULTS, "lamp"), shop)).endswith("B1 [SEP] $9.5")
    assert "< Prev [SEP] Price: $9.5" in to_text(page_of(State(PageKind.ITEM, "lamp", asin="B1"), shop))


def test_only_the_search_page_has_a_search_box_and_the_end_has_no_button():
    pages = {kind: page_of(State(kind, "lamp", asin=LAMP.asin)) for kind in PageKind}
    assert [kind for kind, page in pages.items() if page.has_search_box] == [PageKind.SEARCH]
    assert [kind for kind, page in pages.items() if Button.BACK not in page.buttons] == [
        PageKind.SEARCH,
        PageKind.DONE,
    ]
    assert pages[PageKind.DONE].buttons == ()
