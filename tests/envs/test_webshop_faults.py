"""Known faults of the published shop that sessions and pages must not have, by their number."""

import dataclasses
import subprocess
import sys

import pytest
from webshop_shop import LAMP, ODD, make_goal, make_option, make_product, small_shop

from istar_envs.language import InvalidAction
from istar_envs.webshop.pages import build_page
from istar_envs.webshop.products import Score
from istar_envs.webshop.render import to_text, to_text_rich, url_of
from istar_envs.webshop.session import PageKind, State, admissible, advance, parse_action

SHOP = small_shop()
GOAL = make_goal(LAMP)
ITEM = State(PageKind.ITEM, "lamp", asin=LAMP.asin)
DONE = State(PageKind.DONE, "lamp", asin=LAMP.asin)


def act(text, state, shop=SHOP):
    """Where a text leads, or why nowhere."""
    action = parse_action(text)
    return action if isinstance(action, InvalidAction) else advance(shop, state, action)


def test_f08_an_unpriced_product_is_marked_in_the_strict_edition():
    page = build_page(small_shop("strict"), GOAL, State(PageKind.ITEM, "lamp", asin=ODD.asin))
    assert "Price: not stated" in to_text(page)
    assert "$100" not in to_text(page)


def test_f09_text_shows_which_options_are_chosen():
    before, after = ITEM, act("click[blue]", ITEM)
    texts = [to_text(build_page(SHOP, GOAL, state)) for state in (before, after)]
    assert texts[0] != texts[1]
    assert "You have chosen color: blue" in texts[1]


@pytest.mark.parametrize("value", ['17" x 20"', "größe m", "it's", "a & b", "50% off", "名"])
def test_f10_any_value_shows_as_chosen(value):
    product = make_product("B1", options=(make_option("style", value, "other"),))
    shop = small_shop(products=(product,))
    state = act(f"click[{value}]", State(PageKind.ITEM, "lamp", asin="B1"), shop)
    rich = to_text_rich(build_page(shop, GOAL, state))
    assert rich.startswith(f"You have clicked {value}.\n")
    assert f"  [clicked button] {value} [clicked button_]\n  [button] other [button_]" in rich


def test_f10_a_quoted_word_in_the_query_chooses_nothing():
    state = State(PageKind.ITEM, '"red" lamp', asin=LAMP.asin)
    assert "clicked" not in to_text_rich(build_page(SHOP, GOAL, state))


@pytest.mark.parametrize("word", ["<r>", "<c>", "<q>", "<a>", "<R>"])
@pytest.mark.parametrize("rest", ["", " garden", " sturdy"])
def test_f12_reserved_words_are_refused_and_never_raise(word, rest):
    assert isinstance(act(f"search[{word}{rest}]", State()), InvalidAction)


@pytest.mark.parametrize(
    "state",
    [State(PageKind.RESULTS, "lamp"), ITEM, State(PageKind.FEATURES, "lamp", asin=LAMP.asin), DONE],
    ids=lambda state: state.kind.value,
)
def test_f13_search_works_on_the_search_page_only(state):
    assert isinstance(act("search[lamp]", state), InvalidAction)


def test_f13_nothing_is_possible_after_the_purchase():
    assert act("click[buy now]", ITEM).kind is PageKind.DONE
    assert admissible(SHOP, DONE) == []
    for text in ("click[buy now]", "click[back to search]", "click[< prev]", "search[lamp]"):
        assert isinstance(act(text, DONE), InvalidAction)


def test_f14_pressing_search_is_neither_offered_nor_possible():
    assert "click[search]" not in admissible(SHOP, State())
    assert isinstance(act("click[search]", State()), InvalidAction)


def test_f14_there_is_no_page_after_the_last():
    last = State(PageKind.RESULTS, "lamp", 3)
    assert "Next >" not in to_text(build_page(SHOP, GOAL, last))
    assert "click[next >]" not in admissible(SHOP, last)
    assert isinstance(act("click[next >]", last), InvalidAction)


@pytest.mark.parametrize("text", ["think[what now]", "click[green]", "nonsense", "click[B999999999]", ""])
def test_f15_an_invalid_action_has_a_reason(text):
    answer = act(text, ITEM)
    assert isinstance(answer, InvalidAction)
    assert len(answer.reason) > 20


def test_f22_pages_need_no_template_engine_and_no_parser():
    code = (
        "import sys, istar_envs.webshop.render; "
        "print([name for name in ('jinja2', 'flask', 'bs4', 'html.parser', 'spacy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_f24_the_page_shows_the_goal_that_was_asked_for():
    texts = [to_text(build_page(SHOP, SHOP.goals.goal(index), State())) for index in (0, 1, 0)]
    assert "Find me a acme red lamp" in texts[0]
    assert "Find me a acme odd lamp" in texts[1]
    assert texts[0] == texts[2]


def test_f25_the_purchase_does_not_start_another_task():
    score = Score(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, True, True, True)
    page = build_page(SHOP, GOAL, act("click[buy now]", ITEM), score)
    assert page.kind is PageKind.DONE
    assert page.instruction == GOAL.text
    assert to_text(page).endswith("1.0")


def test_f26_two_visits_to_one_shop_do_not_share_options():
    first, second = act("click[red]", ITEM), act("click[blue]", ITEM)
    assert first.chosen == (("color", "red"),)
    assert second.chosen == (("color", "blue"),)
    assert ITEM.chosen == ()


def test_f26_states_and_pages_cannot_be_edited():
    for record in (ITEM, GOAL, build_page(SHOP, GOAL, ITEM), SHOP.item(LAMP.asin)):
        name = dataclasses.fields(record)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, None)


def test_f26_what_is_listed_belongs_to_the_caller():
    admissible(SHOP, ITEM).clear()
    assert "click[buy now]" in admissible(SHOP, ITEM)


def test_f27_a_slash_in_the_query_stays_inside_the_query():
    state = act("search[1/2 inch [lamp]/../x]", State())
    assert state.query == "1/2 inch [lamp]/../x"
    assert url_of(state) == "/search?q=1%2F2+inch+%5Blamp%5D%2F..%2Fx&page=1"


def test_f28_the_strict_edition_hides_reviews_and_unknown_ratings():
    strict = small_shop("strict")
    assert "click[reviews]" not in admissible(strict, ITEM)
    assert isinstance(act("click[reviews]", ITEM, strict), InvalidAction)
    assert "Rating: 4.5" in to_text(build_page(strict, GOAL, ITEM))
    unrated = to_text(build_page(strict, GOAL, State(PageKind.ITEM, "lamp", asin=ODD.asin)))
    assert "Rating" not in unrated
    assert "Reviews" not in unrated
