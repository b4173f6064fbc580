"""Two shoppers to learn from and to compare with: one knows the answer, one follows a simple rule.

The oracle knows the wanted product and looks for it through the shop's own pages. The rule shopper
sees only what an agent sees: it searches with the instruction, opens the first hit and chooses the
options that the instruction names. Both write actions as the page shows things, product ids in
upper case.
"""

from collections.abc import Mapping
from typing import Final

from istar_envs.webshop.fuzzy import token_set_ratio
from istar_envs.webshop.labels import clean
from istar_envs.webshop.products import Goal, Product
from istar_envs.webshop.session import PageKind, State
from istar_envs.webshop.shop import Shop

_BACK: Final = "click[back to search]"
_PREVIOUS: Final = "click[< prev]"
_NEXT: Final = "click[next >]"
_BUY: Final = "click[buy now]"


def oracle_action(shop: Shop, goal: Goal, state: State) -> str:
    """Return the next action on a shortest known way to buying the wanted product with its options.

    Args:
        shop: The shop.
        goal: What is wanted.
        state: Where the session is; any page before the purchase.

    Raises:
        ValueError: If the purchase has been made.
    """
    target = goal.target
    if state.kind is PageKind.SEARCH:
        return f"search[{_best_query(shop, goal)}]"
    if state.kind is PageKind.RESULTS:
        return _towards(shop, state, target.asin)
    if state.kind is PageKind.ITEM:
        if state.asin != target.asin:
            return _PREVIOUS if _page_of(shop, state.query, target.asin) else _BACK
        return _choose(shop, wanted_options(goal), state)
    return _leave_sub_page(state)


def rule_action(shop: Shop, goal: Goal, state: State) -> str:
    """Return the rule shopper's next action: instruction as query, first hit, options by their names.

    Args:
        shop: The shop.
        goal: Only its text is used.
        state: Where the session is; any page before the purchase.

    Raises:
        ValueError: If the purchase has been made.
    """
    if state.kind is PageKind.SEARCH:
        return f"search[{instruction_query(goal)}]"
    if state.kind is PageKind.RESULTS:
        hits = shop.hits(state.query)
        return f"click[{shop.catalog.asin(hits[0])}]" if hits else _BACK
    if state.kind is PageKind.ITEM:
        product = shop.product(state.asin)
        return _choose(shop, named_options(product, goal.text), state)
    return _leave_sub_page(state)


def wanted_options(goal: Goal) -> dict[str, str]:
    """Return the options of the goal's own product that the goal asks for, value by name.

    A value whose option the goal does not name goes to the option with the most similar value.
    """
    wanted: dict[str, str] = {}
    for name, value in goal.options:
        if name:
            wanted[name] = value
            continue
        fits = [
            (token_set_ratio(value, offered), group.name, offered)
            for group in goal.target.options
            if group.name not in wanted
            for offered in group.values
        ]
        best = max(fits, key=lambda fit: fit[0], default=None)
        if best is not None and best[0] > 0:
            wanted[best[1]] = best[2]
    return wanted


def named_options(product: Product, instruction: str) -> dict[str, str]:
    """Return the options whose ``name: value`` the instruction contains; the longest value wins."""
    text = instruction.lower()
    named: dict[str, str] = {}
    for group in product.options:
        values = [value for value in group.values if f"{group.name}: {value}" in text]
        if values:
            named[group.name] = max(values, key=len)
    return named


def instruction_query(goal: Goal) -> str:
    """Return the whole instruction as a query."""
    return " ".join(goal.text.split())


def _best_query(shop: Shop, goal: Goal) -> str:
    """The instruction if it brings the product up at all, else the product's title."""
    query = instruction_query(goal)
    return query if _page_of(shop, query, goal.target.asin) else " ".join(goal.target.title.split())


def _page_of(shop: Shop, query: str, asin: str) -> int | None:
    """The results page, from 1, that shows a product, or None."""
    row = shop.catalog.row(asin)
    hits = shop.hits(clean(query))
    return hits.index(row) // shop.page_size + 1 if row in hits else None


def _towards(shop: Shop, state: State, asin: str) -> str:
    page = _page_of(shop, state.query, asin)
    if page is None:
        return _BACK
    if page == state.number:
        return f"click[{asin}]"
    return _NEXT if page > state.number else _PREVIOUS


def _choose(shop: Shop, wanted: Mapping[str, str], state: State) -> str:
    """Click the first wanted option that is not chosen yet, or buy."""
    chosen = dict(state.chosen)
    for label, (name, value) in shop.item(state.asin).choices.items():
        if wanted.get(name) == value and chosen.get(name) != value:
            return f"click[{label}]"
    return _BUY


def _leave_sub_page(state: State) -> str:
    if state.kind is PageKind.DONE:
        raise ValueError("the purchase has been made: there is nothing left to do")
    return _PREVIOUS
