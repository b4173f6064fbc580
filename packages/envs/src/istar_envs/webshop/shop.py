"""One shop: a catalogue, its search engine, its customers and its rules, shared by all sessions.

Nothing here changes while people shop, apart from bounded caches of what was looked at lately.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from istar_envs.errors import EnvError
from istar_envs.webshop.catalog import Catalog
from istar_envs.webshop.goals import GoalBook
from istar_envs.webshop.labels import Button, ChoiceGroup, choice_groups, clean
from istar_envs.webshop.nouns import NounTagger
from istar_envs.webshop.products import Goal, Product, Purchase, Score, ScoringName
from istar_envs.webshop.scoring import score_compat, score_strict
from istar_envs.webshop.search import SearchEngine

MAX_HITS: Final = 50
"""How many products a search finds at most."""

NOT_STATED: Final = "not stated"
"""Shown as the price of an unpriced product in ``strict`` mode."""

_CACHED: Final = 2048
"""How many queries, result pages and items are remembered, each."""


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One product on a results page.

    Attributes:
        asin: Its id.
        title: Its name.
        price: Price as shown.
        image: Address of its picture, or "".
        opened: Whether its page was opened since the last search.
    """

    asin: str
    title: str
    price: str
    image: str
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of search results.

    Attributes:
        total: Number of hits on all pages.
        rows: Products of this page, best first.
        asins: Id of each product of this page by the text that is clicked.
        buttons: Buttons of this page.
        clicks: Every action that is possible here, as an agent writes it.
    """

    total: int
    rows: tuple[ResultRow, ...]
    asins: Mapping[str, str]
    buttons: tuple[Button, ...]
    clicks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One product as offered by the shop.

    Attributes:
        product: The product.
        price: Price as shown.
        rating: Rating as shown, or "" where none is.
        groups: Its options, nothing chosen.
        choices: (option name, value) by the text that is clicked.
        clicks: Every action that is possible on its page, as an agent writes it.
    """

    product: Product
    price: str
    rating: str
    groups: tuple[ChoiceGroup, ...]
    choices: Mapping[str, tuple[str, str]]
    clicks: tuple[str, ...]


@dataclass(eq=False, kw_only=True)
class Shop:
    """A read-only shop.

    In ``compat`` scoring its pages are as published: a reviews page that is always empty, no
    ratings, and $100 as the price of unpriced products. In ``strict`` scoring there is no reviews
    page, known ratings are shown, and a missing price is called so.

    Attributes:
        catalog: What is sold.
        engine: How products are found.
        goals: What customers want, and the price that counts in scoring.
        scoring: Which reward is paid and which edition of the pages is shown.
        tagger: Finds the nouns of titles for ``compat`` scoring.
        page_size: Products per results page, at least 1.
        show_attributes: Whether products have a page with their attributes.
    """

    catalog: Catalog
    engine: SearchEngine
    goals: GoalBook
    scoring: ScoringName
    tagger: NounTagger
    page_size: int = 10
    show_attributes: bool = False

    def __post_init__(self) -> None:
        """Lay out the buttons and start with empty caches."""
        self.item_buttons = self._item_buttons()
        self._start_caches()

    def hits(self, query: str) -> tuple[int, ...]:
        """Find products.

        Args:
            query: Words, lower case.

        Returns:
            At most ``MAX_HITS`` row numbers of the catalogue, best first.
        """
        return self._hits(query)

    def listing(self, query: str, number: int) -> Listing:
        """Return the results page of a query with this number, counted from 1."""
        return self._listing((query, number))

    def item(self, asin: str) -> Item:
        """Return a product as this shop offers it.

        Raises:
            EnvError: If the catalogue has no such product.
        """
        return self._item(asin)

    def product(self, asin: str) -> Product:
        """Return a product by its id.

        Raises:
            EnvError: If the catalogue has no such product.
        """
        return self._item(asin).product

    def judge(self, purchase: Purchase, goal: Goal) -> Score:
        """Score a purchase by this shop's rules."""
        if self.scoring == "strict":
            return score_strict(purchase, goal)
        price = self.goals.price(purchase.product)
        return score_compat(purchase, goal, price=price, tagger=self.tagger)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Shop":
        """Return this very shop: nothing in it belongs to one session."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave the caches behind, so that another process starts with empty ones."""
        return {name: value for name, value in vars(self).items() if name not in _CACHES}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start with empty caches."""
        vars(self).update(state)
        self._start_caches()

    def _start_caches(self) -> None:
        self._hits: Callable[[str], tuple[int, ...]] = lru_cache(_CACHED)(self._find)
        self._listing: Callable[[tuple[str, int]], Listing] = lru_cache(_CACHED)(self._list)
        self._item: Callable[[str], Item] = lru_cache(_CACHED)(self._offer)

    def _item_buttons(self) -> tuple[Button, ...]:
        buttons = [Button.BACK, Button.PREVIOUS, Button.DESCRIPTION, Button.FEATURES]
        if self.scoring == "compat":
            buttons.append(Button.REVIEWS)
        if self.show_attributes:
            buttons.append(Button.ATTRIBUTES)
        return (*buttons, Button.BUY)

    def _find(self, query: str) -> tuple[int, ...]:
        return self.engine.search(query, MAX_HITS)

    def _list(self, key: tuple[str, int]) -> Listing:
        query, number = key
        hits = self.hits(query)
        start, stop = (number - 1) * self.page_size, number * self.page_size
        rows = tuple(self._row(self.catalog.product(hit)) for hit in hits[start:stop])
        buttons = [Button.BACK]
        if number > 1:
            buttons.append(Button.PREVIOUS)
        if stop < len(hits):
            buttons.append(Button.NEXT)
        asins = {clean(row.asin): row.asin for row in rows}
        return Listing(len(hits), rows, asins, tuple(buttons), clicks_of(buttons, asins))

    def _row(self, product: Product) -> ResultRow:
        price = self._price_tag(product)
        shown = f"Price: {price}" if price == NOT_STATED else price
        return ResultRow(product.asin, product.title.strip(), shown, product.image)

    def _offer(self, asin: str) -> Item:
        row = self.catalog.row(asin)
        if row is None:
            raise EnvError(f'no product "{asin}" in catalogue {self.catalog.name}. Search for it first.')
        product = self.catalog.product(row)
        groups = choice_groups(product)
        choices: dict[str, tuple[str, str]] = {}
        for group in groups:
            for choice in group.choices:
                choices.setdefault(choice.label, (group.name, choice.value))
        clicks = clicks_of(self.item_buttons, choices)
        return Item(product, self._price_tag(product), self._rating(product), groups, choices, clicks)

    def _price_tag(self, product: Product) -> str:
        return product.price_tag if product.is_priced or self.scoring == "compat" else NOT_STATED

    def _rating(self, product: Product) -> str:
        if self.scoring == "compat":
            return "N.A."
        return "" if product.rating is None else str(product.rating)


_CACHES: Final = frozenset({"_hits", "_listing", "_item"})


def clicks_of(buttons: Iterable[Button], things: Iterable[str] = ()) -> tuple[str, ...]:
    """Write the clicks on buttons and on other clean texts as an agent does."""
    return (*(f"click[{button.lower()}]" for button in buttons), *(f"click[{thing}]" for thing in things))
