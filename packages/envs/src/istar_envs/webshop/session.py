"""A visit to the shop as a pure state machine: what the agent may do, and where it leads.

Nothing is remembered outside ``State``, so sessions cannot influence each other, and nothing that an
agent writes raises.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal

from istar_envs.actions import shorten
from istar_envs.language import InvalidAction
from istar_envs.webshop.labels import UNPRINTABLE, Button, clean
from istar_envs.webshop.products import Purchase
from istar_envs.webshop.shop import Item, Shop, clicks_of

MAX_QUERY: Final = 1000
"""Longest query, in characters."""

RESERVED: Final = frozenset({"<r>", "<c>", "<q>", "<a>"})
"""First words that no query may have: special look-ups of the published site."""

SEARCH_EXAMPLE: Final = "search[your query]"
"""How the search box is listed; any other words may stand between the brackets."""

_LISTED = 12


class PageKind(StrEnum):
    """The pages of the shop."""

    SEARCH = "search"
    RESULTS = "results"
    ITEM = "item"
    DESCRIPTION = "description"
    FEATURES = "features"
    REVIEWS = "reviews"
    ATTRIBUTES = "attributes"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class State:
    """Where a visit stands; ``State()`` is its beginning.

    Attributes:
        kind: The page.
        query: Words of the last search, clean; "" on the search page.
        number: Number of the results page, counted from 1.
        asin: The open product, or "".
        chosen: (option name, value) of the open product, in the order of its options.
        opened: Ids of the products that were opened since the last search.
    """

    kind: PageKind = PageKind.SEARCH
    query: str = ""
    number: int = 1
    asin: str = ""
    chosen: tuple[tuple[str, str], ...] = ()
    opened: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Action:
    """An action in the agent's grammar; ``parse_action`` makes them.

    Attributes:
        verb: What to do.
        argument: Words to search or text to click; clean, not empty.
    """

    verb: Literal["search", "click"]
    argument: str

    def __str__(self) -> str:
        """Write the action as ``parse_action`` reads it."""
        return f"{self.verb}[{self.argument}]"


def parse_action(text: str) -> Action | InvalidAction:
    """Read ``search[words]`` or ``click[thing]``.

    White space around the action is ignored, the verb may be written in any case, the first ``[``
    splits, and the text must end with ``]``. Takes time linear in the text and never raises.

    Args:
        text: Whatever the agent wrote.

    Returns:
        The action, or why the text is none.

    Example:
        >>> parse_action(" Click[Red  [XL]] ")
        Action(verb='click', argument='red [xl]')
    """
    head, _, rest = text.strip().partition("[")
    verb = head.lower()
    if verb not in {"search", "click"} or not rest.endswith("]"):
        return InvalidAction(f"an action reads search[words] or click[thing], not {shorten(text)}")
    if UNPRINTABLE.search(rest):
        return InvalidAction("line breaks and control characters are not allowed in an action")
    argument = clean(rest[:-1])
    if not argument:
        return InvalidAction(f"{verb}[] is empty; write something between the brackets")
    if verb == "click":
        return Action("click", argument)
    if len(argument) > MAX_QUERY:
        return InvalidAction(f"the query has {len(argument)} characters; at most {MAX_QUERY} are allowed")
    first = argument.partition(" ")[0]
    if first in RESERVED:
        return InvalidAction(f"a query cannot begin with {first}; write plain words")
    return Action("search", argument)


def admissible(shop: Shop, state: State) -> list[str]:
    """List every legal action as text; the search box stands as ``search[your query]``.

    ``advance`` accepts exactly these, and any other query where the search box is.
    """
    match state.kind:
        case PageKind.SEARCH:
            return [SEARCH_EXAMPLE]
        case PageKind.RESULTS:
            return list(shop.listing(state.query, state.number).clicks)
        case PageKind.ITEM:
            return list(shop.item(state.asin).clicks)
        case PageKind.DONE:
            return []
        case _:
            return list(_SUBPAGE_CLICKS)


def advance(shop: Shop, state: State, action: Action) -> State | InvalidAction:
    """Act.

    Args:
        shop: Where the visit takes place.
        state: Where it stands.
        action: An action as ``parse_action`` returns it.

    Returns:
        Where the action leads, or why it is not possible here.
    """
    if state.kind is PageKind.DONE:
        return InvalidAction("the purchase is made; nothing more can be done")
    if action.verb == "search":
        if state.kind is PageKind.SEARCH:
            return State(PageKind.RESULTS, action.argument)
        return InvalidAction("there is no search box on this page; click[back to search] leads to it")
    after = _CLICKS.get(state.kind, _click_on_subpage)(shop, state, action.argument)
    return _refuse(shop, state, action) if after is None else after


def purchase_of(shop: Shop, state: State) -> Purchase:
    """Return what a visit that has ended bought."""
    return Purchase(shop.product(state.asin), dict(state.chosen))


def _click_on_search(shop: Shop, state: State, text: str) -> State | None:
    return None


def _click_on_results(shop: Shop, state: State, text: str) -> State | None:
    listing = shop.listing(state.query, state.number)
    asin = listing.asins.get(text)
    if asin is not None:
        return replace(state, kind=PageKind.ITEM, asin=asin, opened=state.opened | {asin})
    if text == _BACK:
        return State()
    if text == _PREVIOUS and Button.PREVIOUS in listing.buttons:
        return replace(state, number=state.number - 1)
    if text == _NEXT and Button.NEXT in listing.buttons:
        return replace(state, number=state.number + 1)
    return None


def _click_on_item(shop: Shop, state: State, text: str) -> State | None:
    item = shop.item(state.asin)
    choice = item.choices.get(text)
    if choice is not None:
        return replace(state, chosen=_choose(item, state.chosen, choice))
    if text == _BACK:
        return State()
    if text == _PREVIOUS:
        return replace(state, kind=PageKind.RESULTS, asin="", chosen=())
    for button in shop.item_buttons:
        if text == button.lower():
            return replace(state, kind=_PAGE_OF[button])
    return None


def _click_on_subpage(shop: Shop, state: State, text: str) -> State | None:
    if text == _BACK:
        return State()
    return replace(state, kind=PageKind.ITEM) if text == _PREVIOUS else None


def _choose(
    item: Item, chosen: tuple[tuple[str, str], ...], choice: tuple[str, str]
) -> tuple[tuple[str, str], ...]:
    """Set one option; the others stay."""
    values = dict((*chosen, choice))
    names = dict.fromkeys(group.name for group in item.groups)
    return tuple((name, values[name]) for name in names if name in values)


def _refuse(shop: Shop, state: State, action: Action) -> InvalidAction:
    listed = admissible(shop, state)
    more = ", …" if len(listed) > _LISTED else ""
    return InvalidAction(
        f"nothing on this page is called {shorten(action.argument)}; "
        f"possible here: {', '.join(listed[:_LISTED])}{more}"
    )


_BACK: Final = Button.BACK.lower()
_PREVIOUS: Final = Button.PREVIOUS.lower()
_NEXT: Final = Button.NEXT.lower()
_SUBPAGE_CLICKS: Final = clicks_of((Button.BACK, Button.PREVIOUS))

_PAGE_OF: Final = {
    Button.DESCRIPTION: PageKind.DESCRIPTION,
    Button.FEATURES: PageKind.FEATURES,
    Button.REVIEWS: PageKind.REVIEWS,
    Button.ATTRIBUTES: PageKind.ATTRIBUTES,
    Button.BUY: PageKind.DONE,
}

_CLICKS: Final[dict[PageKind, Callable[[Shop, State, str], State | None]]] = {
    PageKind.SEARCH: _click_on_search,
    PageKind.RESULTS: _click_on_results,
    PageKind.ITEM: _click_on_item,
}
