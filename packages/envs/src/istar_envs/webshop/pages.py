"""What each page contains, once, for every observation mode and for the web site."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from istar_envs.webshop.labels import Button, ChoiceGroup, clean
from istar_envs.webshop.products import Goal, Product, Score
from istar_envs.webshop.session import PageKind, State
from istar_envs.webshop.shop import ResultRow, Shop

SUBPAGE_BUTTONS: Final = (Button.BACK, Button.PREVIOUS)
"""Buttons of the description, features, reviews and attributes pages."""


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that a page shows; what it does not show is empty.

    Attributes:
        kind: Which page.
        instruction: What the customer wants.
        buttons: In reading order. The search page has none but its search box.
        query: Words of the last search.
        number: Number of the results page, counted from 1.
        total: Number of hits on all results pages.
        rows: Products of a results page.
        asin: The open or bought product.
        title: Its name.
        price: Its price as shown.
        rating: Its rating as shown; "" where none is shown.
        image: Address of its picture, that of a chosen value where it has one; or "".
        groups: Its options, on the item page.
        lines: Paragraphs of a sub-page, outer white space removed; a feature may be "".
        score: How good the purchase was, on the last page.
    """

    kind: PageKind
    instruction: str
    buttons: tuple[Button, ...] = ()
    query: str = ""
    number: int = 1
    total: int = 0
    rows: tuple[ResultRow, ...] = ()
    asin: str = ""
    title: str = ""
    price: str = ""
    rating: str = ""
    image: str = ""
    groups: tuple[ChoiceGroup, ...] = ()
    lines: tuple[str, ...] = ()
    score: Score | None = None

    @property
    def has_search_box(self) -> bool:
        """Whether a query can be written here."""
        return self.kind is PageKind.SEARCH

    @property
    def chosen(self) -> tuple[tuple[str, str], ...]:
        """(option name, chosen value) as shown, in the order of the options."""
        pairs = ((group.name, group.chosen) for group in self.groups if group.chosen is not None)
        return tuple((name, clean(value)) for name, value in dict(pairs).items())


def build_page(shop: Shop, goal: Goal, state: State, score: Score | None = None) -> Page:
    """Lay out the page of a state.

    Args:
        shop: Where the visit takes place.
        goal: What the customer wants.
        state: Where the visit stands.
        score: How good the purchase was, once there is one.

    Returns:
        The page.
    """
    match state.kind:
        case PageKind.SEARCH:
            return Page(state.kind, goal.text)
        case PageKind.RESULTS:
            return _results_page(shop, goal, state)
        case PageKind.ITEM:
            return _item_page(shop, goal, state)
        case PageKind.DONE:
            return Page(state.kind, goal.text, asin=state.asin, score=score)
        case _:
            return _subpage(shop, goal, state)


def _results_page(shop: Shop, goal: Goal, state: State) -> Page:
    listing = shop.listing(state.query, state.number)
    rows = listing.rows
    if state.opened:
        rows = tuple(replace(row, opened=True) if row.asin in state.opened else row for row in rows)
    return Page(
        state.kind,
        goal.text,
        listing.buttons,
        query=state.query,
        number=state.number,
        total=listing.total,
        rows=rows,
    )


def _item_page(shop: Shop, goal: Goal, state: State) -> Page:
    item = shop.item(state.asin)
    groups, image = item.groups, item.product.image
    if state.chosen:
        values = dict(state.chosen)
        groups = tuple(replace(group, chosen=values.get(group.name)) for group in groups)
        image = _chosen_picture(groups) or image
    return Page(
        state.kind,
        goal.text,
        shop.item_buttons,
        query=state.query,
        number=state.number,
        asin=item.product.asin,
        title=item.product.title.strip(),
        price=item.price,
        rating=item.rating,
        image=image,
        groups=groups,
    )


def _chosen_picture(groups: tuple[ChoiceGroup, ...]) -> str:
    """Picture of the last option whose chosen value has one, or ""."""
    for group in reversed(groups):
        for choice in group.choices:
            if choice.value == group.chosen and choice.image:
                return choice.image
    return ""


def _subpage(shop: Shop, goal: Goal, state: State) -> Page:
    product = shop.product(state.asin)
    return Page(
        state.kind,
        goal.text,
        SUBPAGE_BUTTONS,
        query=state.query,
        number=state.number,
        asin=product.asin,
        title=product.title.strip(),
        lines=_LINES[state.kind](product),
    )


def _description(product: Product) -> tuple[str, ...]:
    text = product.description.strip()
    return (text,) if text else ()


def _features(product: Product) -> tuple[str, ...]:
    return tuple(bullet.strip() for bullet in product.bullets)


def _reviews(product: Product) -> tuple[str, ...]:
    return ()


def _attributes(product: Product) -> tuple[str, ...]:
    facts = {"Category": product.category, "Query": product.query, "Path": product.breadcrumb}
    return (*product.attributes, *(f"{name}: {fact}" for name, fact in facts.items() if fact))


_LINES: Final[dict[PageKind, Callable[[Product], tuple[str, ...]]]] = {
    PageKind.DESCRIPTION: _description,
    PageKind.FEATURES: _features,
    PageKind.REVIEWS: _reviews,
    PageKind.ATTRIBUTES: _attributes,
}
