"""The visit as a state machine: grammar, labels, every page's actions, and the shop behind them."""

import copy
import pickle
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webshop_shop import LAMP, ODD, PRODUCTS, make_goal, make_option, make_product, small_shop

from istar_envs.errors import EnvError
from istar_envs.language import InvalidAction
from istar_envs.webshop.labels import choice_groups, clean
from istar_envs.webshop.pages import build_page
from istar_envs.webshop.products import Purchase
from istar_envs.webshop.render import to_structured, to_text, to_text_rich, url_of
from istar_envs.webshop.session import (
    MAX_QUERY,
    SEARCH_EXAMPLE,
    Action,
    PageKind,
    State,
    admissible,
    advance,
    parse_action,
)

SHOPS = {
    "compat": small_shop(show_attributes=True),
    "strict": small_shop("strict", page_size=4),
}
RESULTS = State(PageKind.RESULTS, "lamp")
SETTINGS = settings(max_examples=100, deadline=None)

anything = st.text(st.characters(), max_size=60)
wrapped = st.builds("{}[{}]".format, st.sampled_from(["search", "click", "Click", "think"]), anything)


def walk(shop, *texts, start=None):
    """Follow actions that must all be possible."""
    state = start or State()
    for text in texts:
        state = advance(shop, state, parse_action(text))
        assert isinstance(state, State), state
    return state


def stroll(shop, picks):
    """Follow listed actions, chosen by number; yields every state on the way."""
    state = State()
    yield state
    for pick in picks:
        listed = admissible(shop, state)
        if not listed:
            return
        text = "search[red lamp]" if listed == [SEARCH_EXAMPLE] else listed[pick % len(listed)]
        state = advance(shop, state, parse_action(text))
        assert isinstance(state, State), (text, state)
        yield state


@pytest.mark.parametrize(
    ("text", "verb", "argument"),
    [
        ("search[red lamp]", "search", "red lamp"),
        ("  \n Search[ Red   LAMP ]\t", "search", "red lamp"),
        ("CLICK[Buy Now]", "click", "buy now"),
        ("click[< Prev]", "click", "< prev"),
        ("search[a]b]", "search", "a]b"),
        ("click[x [y]]", "click", "x [y]"),
        ("click[[]", "click", "["),
        ("search[größe 灯 <r>]", "search", "größe 灯 <r>"),
        ("search[<rx>]", "search", "<rx>"),
        ("click[<r>]", "click", "<r>"),
        ("search[" + "a" * MAX_QUERY + "]", "search", "a" * MAX_QUERY),
        ("search[" + "a    " * 500 + "]", "search", " ".join("a" * 500)),
    ],
)
def test_an_action_is_read(text, verb, argument):
    action = parse_action(text)
    assert action == Action(verb, argument)
    assert parse_action(str(action)) == action


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "search[words] or click[thing]"),
        ("search", "search[words] or click[thing]"),
        ("search[lamp", "search[words] or click[thing]"),
        ("search lamp]", "search[words] or click[thing]"),
        ("search[lamp] please", "search[words] or click[thing]"),
        ("please click[lamp]", "search[words] or click[thing]"),
        ("search [lamp]", "search[words] or click[thing]"),
        ("think[lamp]", "search[words] or click[thing]"),
        ("search[]", "search[] is empty"),
        ("click[   ]", "click[] is empty"),
        ("click[buy\nnow]", "line breaks and control characters"),
        ("search[a\x00b]", "line breaks and control characters"),
        ("search[a\u2028b]", "line breaks and control characters"),
        ("search[a\x85b]", "line breaks and control characters"),
        ("search[a\ud800b]", "line breaks and control characters"),
        ("search[" + "a" * (MAX_QUERY + 1) + "]", "the query has 1001 characters; at most 1000"),
        ("search[<r>]", "cannot begin with <r>"),
        ("search[ <C> garden]", "cannot begin with <c>"),
        ("search[<q> things]", "cannot begin with <q>"),
        ("search[<a> sturdy]", "cannot begin with <a>"),
    ],
)
def test_a_text_that_is_no_action_is_refused_with_a_reason(text, reason):
    refused = parse_action(text)
    assert isinstance(refused, InvalidAction)
    assert reason in refused.reason


def test_a_reason_quotes_only_the_beginning_of_a_long_text():
    assert len(parse_action("x" * 1_000_000).reason) < 200
    refused = advance(SHOPS["compat"], RESULTS, parse_action(f"click[{'x' * 1_000_000}]"))
    assert len(refused.reason) < 600


def test_the_search_page_lists_its_box_and_nothing_else():
    assert admissible(SHOPS["compat"], State()) == ["search[your query]"]


def test_results_pages_list_the_buttons_that_lead_somewhere_and_their_products():
    shop = SHOPS["compat"]
    asins = [f"click[b0000001{i:02}]" for i in range(22)]
    first = admissible(shop, walk(shop, "search[lamp]"))
    assert first == [
        "click[back to search]",
        "click[next >]",
        "click[b000000001]",
        "click[b000000002]",
        *asins[:8],
    ]
    second = admissible(shop, walk(shop, "search[lamp]", "click[next >]"))
    assert second == ["click[back to search]", "click[< prev]", "click[next >]", *asins[8:18]]
    third = admissible(shop, walk(shop, "search[lamp]", "click[next >]", "click[next >]"))
    assert third == ["click[back to search]", "click[< prev]", *asins[18:]]


def test_no_hit_gives_an_empty_page_that_leads_back():
    shop = SHOPS["compat"]
    assert admissible(shop, walk(shop, "search[zzz]")) == ["click[back to search]"]


def test_exactly_full_pages_have_no_next_one():
    shop = small_shop(page_size=12)
    state = walk(shop, "search[lamp]", "click[next >]")
    assert len(admissible(shop, state)) == 2 + 12
    assert "click[next >]" not in admissible(shop, state)


def test_an_item_lists_its_buttons_and_then_its_values():
    shop = small_shop()
    state = walk(shop, "search[lamp]", "click[b000000001]")
    buttons = ["back to search", "< prev", "description", "features", "reviews", "buy now"]
    values = ["red", "blue", "small", "large"]
    assert admissible(shop, state) == [f"click[{text}]" for text in buttons + values]


def test_editions_differ_in_their_item_buttons():
    opened = State(PageKind.ITEM, "lamp", asin=LAMP.asin)
    with_attributes = admissible(SHOPS["compat"], opened)[2:7]
    assert with_attributes == [
        f"click[{text}]" for text in ("description", "features", "reviews", "attributes", "buy now")
    ]
    strict = admissible(SHOPS["strict"], opened)[2:5]
    assert strict == ["click[description]", "click[features]", "click[buy now]"]


def test_sub_pages_lead_back_and_the_end_leads_nowhere():
    shop = SHOPS["compat"]
    for kind in (PageKind.DESCRIPTION, PageKind.FEATURES, PageKind.REVIEWS, PageKind.ATTRIBUTES):
        state = walk(shop, "search[lamp]", "click[b000000001]", f"click[{kind}]")
        assert state.kind is kind
        assert admissible(shop, state) == ["click[back to search]", "click[< prev]"]
    assert admissible(shop, State(PageKind.DONE, asin=LAMP.asin)) == []


def test_a_mixed_case_id_is_opened_by_its_lower_case():
    shop = SHOPS["compat"]
    assert walk(shop, "search[chair]", "click[B00000020X]").asin == "b00000020x"


def test_a_search_starts_on_its_first_page_and_remembers_clean_words():
    assert walk(SHOPS["compat"], "search[ Red  LAMP]") == State(PageKind.RESULTS, "red lamp")


def test_previous_leads_from_sub_page_to_item_to_the_same_results_to_the_page_before():
    shop = SHOPS["compat"]
    texts = ["search[lamp]", "click[next >]", "click[b000000110]", "click[features]"]
    sub_page = walk(shop, *texts)
    item = walk(shop, "click[< prev]", start=sub_page)
    assert (item.kind, item.asin, item.number) == (PageKind.ITEM, "B000000110", 2)
    results = walk(shop, "click[< prev]", start=item)
    assert (results.kind, results.query, results.number, results.asin) == (PageKind.RESULTS, "lamp", 2, "")
    assert walk(shop, "click[< prev]", start=results).number == 1


def test_options_are_kept_on_sub_pages_and_dropped_when_the_item_is_left():
    shop = SHOPS["compat"]
    item = walk(shop, "search[lamp]", "click[b000000001]", "click[large]", "click[red]")
    assert item.chosen == (("color", "red"), ("size", "large"))
    assert walk(shop, "click[features]", "click[< prev]", start=item) == item
    assert walk(shop, "click[< prev]", "click[b000000001]", start=item).chosen == ()


def test_the_last_value_of_an_option_wins_and_a_second_click_changes_nothing():
    shop = SHOPS["compat"]
    item = walk(shop, "search[lamp]", "click[b000000001]", "click[small]", "click[red]", "click[blue]")
    assert item.chosen == (("color", "blue"), ("size", "small"))
    assert walk(shop, "click[blue]", start=item) == item


def test_back_to_search_forgets_everything():
    shop = SHOPS["compat"]
    for texts in (["search[lamp]"], ["search[lamp]", "click[b000000001]", "click[red]", "click[features]"]):
        assert walk(shop, *texts, "click[back to search]") == State()


def test_opened_products_are_remembered_until_the_next_search():
    shop = SHOPS["compat"]
    state = walk(shop, "search[lamp]", "click[b000000001]", "click[< prev]", "click[b000000100]")
    assert state.opened == {"B000000001", "B000000100"}
    assert walk(shop, "click[back to search]", "search[lamp]", start=state).opened == frozenset()


def test_the_purchase_keeps_product_and_options():
    shop = SHOPS["compat"]
    state = walk(shop, "search[lamp]", "click[b000000001]", "click[red]", "click[buy now]")
    assert (state.kind, state.asin, state.chosen) == (PageKind.DONE, LAMP.asin, (("color", "red"),))


def test_a_refused_click_names_what_is_possible():
    refused = advance(SHOPS["compat"], RESULTS, Action("click", "buy now"))
    assert "'buy now'" in refused.reason
    assert "click[back to search], click[next >], click[b000000001]" in refused.reason


def test_a_refused_click_names_the_first_twelve_possibilities():
    values = [f"value {number}" for number in range(100)]
    shop = small_shop(products=(make_product("B1", options=(make_option("style", *values),)),))
    refused = advance(shop, State(PageKind.ITEM, "thing", asin="B1"), Action("click", "red"))
    assert refused.reason.endswith("click[value 4], click[value 5], …")


def test_every_value_of_a_product_has_a_label_of_its_own():
    labels = {
        group.name: [(choice.value, choice.label) for choice in group.choices] for group in choice_groups(ODD)
    }
    assert labels == {
        "color": [
            ("red", "color: red"),
            ("", "color:"),
            ("buy now", "color: buy now"),
            ('say "hi"', 'say "hi"'),
            ("größe", "größe"),
            ("red", "color: red"),
            ("color: red", "color: color: red"),
            ("a  b", "a b"),
        ],
        "trim": [("red", "trim: red"), ("x [y]", "x [y]"), ("tab\there", "tab here")],
    }


def test_of_values_that_differ_in_spaces_only_the_first_is_chosen():
    shop = small_shop(products=(make_product("B1", options=(make_option("size", "a  b", "a b"),)),))
    opened = State(PageKind.ITEM, "thing", asin="B1")
    assert admissible(shop, opened).count("click[a b]") == 1
    assert walk(shop, "click[a b]", start=opened).chosen == (("size", "a  b"),)


def test_an_ambiguous_bare_value_is_refused():
    opened = State(PageKind.ITEM, "lamp", asin=ODD.asin)
    assert isinstance(advance(SHOPS["compat"], opened, Action("click", "red")), InvalidAction)
    assert walk(SHOPS["compat"], "click[trim: red]", start=opened).chosen == (("trim", "red"),)


def test_a_value_that_is_spelt_like_a_button_does_not_press_it():
    shop = SHOPS["compat"]
    opened = State(PageKind.ITEM, "lamp", asin=ODD.asin)
    assert walk(shop, "click[buy now]", start=opened).kind is PageKind.DONE
    assert walk(shop, "click[color: buy now]", start=opened).chosen == (("color", "buy now"),)


def test_every_label_chooses_its_value():
    shop = SHOPS["compat"]
    for product in (LAMP, ODD):
        opened = State(PageKind.ITEM, "lamp", asin=product.asin)
        for group in choice_groups(product):
            for choice in group.choices:
                text = f"click[{choice.label}]"
                assert walk(shop, text, start=opened).chosen == ((group.name, choice.value),)


def test_a_product_that_is_not_in_the_catalogue_is_an_error_with_its_id():
    with pytest.raises(EnvError, match='no product "B999" in catalogue hand-made'):
        SHOPS["compat"].product("B999")


def test_the_shop_judges_by_its_scoring():
    unpriced = make_product("B000000003", "Acme Red Lamp", prices=(100.0,), is_priced=False)
    goal = make_goal(LAMP, options=(), attributes=("sturdy",), price_upper=200.0)
    purchase = Purchase(unpriced, {})
    assert small_shop("compat").judge(purchase, goal).r_price == 1.0
    assert small_shop("strict").judge(purchase, goal).r_price == 0.0


def test_a_shop_asks_its_engine_once_per_query_and_forgets_the_oldest():
    shop = small_shop()
    asked = []
    search = shop.engine.search
    shop.engine.search = lambda query, k: asked.append((query, k)) or search(query, k)
    for _ in range(3):
        assert len(shop.hits("lamp")) == 24
        walk(shop, "search[lamp]", "click[next >]")
    assert asked == [("lamp", 50)]
    for number in range(5000):
        shop.hits(str(number))
    assert shop._hits.cache_info().currsize == shop._hits.cache_info().maxsize < 5000


def test_a_pickled_shop_is_the_same_shop_and_a_deep_copy_is_shared():
    shop = small_shop("strict", page_size=4, show_attributes=True)
    state = walk(shop, "search[lamp]", "click[b000000001]")
    twin = pickle.loads(pickle.dumps(shop))
    assert admissible(twin, state) == admissible(shop, state)
    assert twin.hits("lamp") == shop.hits("lamp")
    assert copy.deepcopy(shop) is shop


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000_000,
        "]" * 1_000_000,
        "search[" + " " * 1_000_000 + "]",
        "search[" + "a " * 500_000 + "]",
        "click[" + "x" * 1_000_000 + "]",
        "click[" + "[]" * 500_000 + "]",
        "\n" * 1_000_000 + "click[a]",
        "click[" * 150_000 + "]" * 150_000,
        "İ" * 1_000_000,
        "search[" + "\x00" * 1_000_000 + "]",
    ],
    ids=lambda text: repr(text[:8]),
)
def test_a_megabyte_of_text_is_answered_at_once(text):
    start = time.process_time()
    for state in (State(), RESULTS, State(PageKind.ITEM, "lamp", asin=LAMP.asin)):
        action = parse_action(text)
        if isinstance(action, Action):
            assert isinstance(advance(SHOPS["compat"], state, action), InvalidAction)
    assert time.process_time() - start < 10.0  # under 0.1 s is usual


@pytest.mark.property
@SETTINGS
@given(anything | wrapped)
def test_any_text_is_an_action_or_refused_with_a_printable_reason(text):
    action = parse_action(text)
    if isinstance(action, Action):
        assert action.argument == clean(action.argument)
        assert parse_action(str(action)) == action
    else:
        action.reason.encode()


@pytest.mark.property
@SETTINGS
@given(st.sampled_from(sorted(SHOPS)), st.lists(st.integers(0, 10**6), max_size=25))
def test_listed_actions_lead_on_and_every_page_can_be_shown(name, picks):
    shop = SHOPS[name]
    goal = make_goal(LAMP)
    for state in stroll(shop, picks):
        page = build_page(shop, goal, state)
        for text in (to_text(page), to_text(page, show_chosen=False), to_text_rich(page), url_of(state)):
            assert isinstance(text, str)
        assert to_structured(page)["page"] == state.kind
        listed = admissible(shop, state)
        assert len(set(listed)) == len(listed)
        for text in listed:
            assert isinstance(advance(shop, state, parse_action(text)), State)


@pytest.mark.property
@SETTINGS
@given(
    st.sampled_from(sorted(SHOPS)),
    st.lists(st.integers(0, 10**6), max_size=15),
    st.lists(anything, max_size=5),
)
def test_what_is_not_listed_is_refused(name, picks, texts):
    shop = SHOPS[name]
    visited = list(stroll(shop, picks))
    everything = {text for state in visited for text in admissible(shop, state)}
    tried = everything | {f"click[{text}]" for text in (*texts, "search", "next >", "reviews", "attributes")}
    for state in visited:
        listed = set(admissible(shop, state))
        for text in tried - listed:
            action = parse_action(text)
            if isinstance(action, Action) and str(action) not in listed:
                assert isinstance(advance(shop, state, action), InvalidAction)


@pytest.mark.property
@SETTINGS
@given(st.lists(anything, min_size=1, max_size=12), st.lists(anything, min_size=1, max_size=12))
def test_any_option_value_can_be_chosen_and_is_shown_as_chosen(colors, sizes):
    product = make_product("B1", options=(make_option("color", *colors), make_option("size", *sizes)))
    shop = small_shop(products=(product,))
    opened = State(PageKind.ITEM, "thing", asin="B1")
    buttons = len(shop.item_buttons)
    for text in admissible(shop, opened)[buttons:]:
        state = walk(shop, text, start=opened)
        ((name, value),) = state.chosen
        page = build_page(shop, make_goal(product), state)
        assert page.chosen == ((name, clean(value)),)
        label = text.removeprefix("click[")[:-1]
        chosen = {group["name"]: group["chosen"] for group in to_structured(page)["options"]}
        assert chosen[name] == label
        assert f"  [clicked button] {label} [clicked button_]" in to_text_rich(page).split("\n")


def interleave(visits, draw):
    """Run all visits in one shop, taking turns at random."""
    shop = small_shop()
    running = [stroll(shop, picks) for picks in visits]
    together = [[] for _ in visits]
    open_visits = list(range(len(visits)))
    while open_visits:
        turn = draw(len(open_visits))
        number = open_visits[turn]
        state = next(running[number], None)
        if state is None:
            open_visits[turn] = open_visits[-1]
            open_visits.pop()
        else:
            together[number].append(state)
    return together


@pytest.mark.property
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), min_size=2, max_size=8), st.randoms()
)
def test_interleaved_visits_equal_visits_alone(visits, order):
    assert interleave(visits, order.randrange) == [list(stroll(small_shop(), picks)) for picks in visits]


def test_a_thousand_interleaved_visits_equal_the_same_visits_alone():
    rng = random.Random(0)
    visits = [[rng.randrange(10**6) for _ in range(20)] for _ in range(1000)]
    shop = small_shop()
    assert interleave(visits, rng.randrange) == [list(stroll(shop, picks)) for picks in visits]


def test_every_product_of_the_small_shop_can_be_bought():
    shop = SHOPS["strict"]
    bought = set()
    for query in ("lamp", "chair"):
        state = walk(shop, f"search[{query}]")
        while True:
            for asin in shop.listing(query, state.number).asins:
                end = walk(shop, f"click[{asin}]", "click[buy now]", start=state)
                bought.add(end.asin)
            if "click[next >]" not in admissible(shop, state):
                break
            state = walk(shop, "click[next >]", start=state)
    assert bought == {product.asin for product in PRODUCTS}
