"""A page as text, as marked-up text and as plain data, and its address on the web site."""

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, urlencode

from istar_envs.webshop.labels import Button, ChoiceGroup
from istar_envs.webshop.pages import Page
from istar_envs.webshop.session import PageKind, State

SEPARATOR: Final = " [SEP] "
"""Stands between the texts of a page."""

NAME: Final = "WebShop"
INSTRUCTION: Final = "Instruction:"
THANKS: Final = "Thank you for shopping with us!"
SCORE: Final = "Your score (min 0.0, max 1.0)"


def to_text(page: Page, *, show_chosen: bool = True) -> str:
    """Write the visible texts of a page in reading order, joined by ``[SEP]``.

    Args:
        page: Any page.
        show_chosen: Whether chosen options are named before the options of an item.
    """
    match page.kind:
        case PageKind.SEARCH:
            texts = [NAME, INSTRUCTION, page.instruction, Button.SEARCH]
        case PageKind.RESULTS:
            texts = _results_texts(page)
        case PageKind.ITEM:
            texts = _item_texts(page, show_chosen=show_chosen)
        case PageKind.DONE:
            texts = _done_texts(page)
        case _:
            texts = [INSTRUCTION, page.instruction, *page.buttons, *page.lines]
    return SEPARATOR.join(texts)


def to_text_rich(page: Page) -> str:
    """Write a page one text per line, with buttons and choices marked.

    Chosen options are named first, the last one on top; a product that was opened before is marked as
    clicked.
    """
    return "\n".join(_rich_lines(page))


def to_structured(page: Page) -> dict[str, Any]:
    """Write a page as plain JSON-ready data; keys that a page has no use for are empty or None."""
    return {
        "page": page.kind.value,
        "instruction": page.instruction,
        "has_search_box": page.has_search_box,
        "buttons": [button.value for button in page.buttons],
        "query": page.query,
        "number": page.number,
        "total": page.total,
        "products": [
            {"asin": row.asin, "title": row.title, "price": row.price, "opened": row.opened}
            for row in page.rows
        ],
        "asin": page.asin,
        "title": page.title,
        "price": page.price,
        "rating": page.rating,
        "options": [
            {
                "name": group.name,
                "values": [choice.label for choice in group.choices],
                "chosen": _chosen_label(group),
            }
            for group in page.groups
        ],
        "lines": list(page.lines),
        "score": None if page.score is None else float(page.score.total),
    }


def url_of(state: State) -> str:
    """Return the path of a state's page on the web site; chosen options are not part of it."""
    match state.kind:
        case PageKind.SEARCH:
            return "/"
        case PageKind.DONE:
            return "/done"
        case PageKind.RESULTS:
            path = "/search"
        case PageKind.ITEM:
            path = f"/item/{quote(state.asin, safe='')}"
        case _:
            path = f"/item/{quote(state.asin, safe='')}/{state.kind}"
    return f"{path}?{urlencode({'q': state.query, 'page': state.number})}"


def results_line(page: Page) -> str:
    """Say which page of how many hits this is."""
    return f"Page {page.number} (Total results: {page.total})"


def _results_texts(page: Page) -> list[str]:
    first, *others = page.buttons
    texts = [INSTRUCTION, page.instruction, first, results_line(page), *others]
    for row in page.rows:
        texts += [row.asin, row.title, row.price] if row.title else [row.asin, row.price]
    return texts


def _item_texts(page: Page, *, show_chosen: bool) -> list[str]:
    texts = [INSTRUCTION, page.instruction, *page.buttons[:2]]
    if show_chosen:
        texts += [f"You have chosen {name}: {value}".strip() for name, value in page.chosen]
    for group in page.groups:
        if group.name:
            texts.append(group.name)
        texts += [choice.label for choice in group.choices]
    return [*texts, *_item_facts(page), *page.buttons[2:]]


def _item_facts(page: Page) -> list[str]:
    """Title, price and rating as shown, without those that are not."""
    facts = [page.title, f"Price: {page.price}", f"Rating: {page.rating}" if page.rating else ""]
    return [fact for fact in facts if fact]


def _done_texts(page: Page) -> list[str]:
    return [THANKS] if page.score is None else [THANKS, SCORE, str(float(page.score.total))]


def _rich_lines(page: Page) -> Iterator[str]:
    match page.kind:
        case PageKind.SEARCH:
            yield from (NAME, INSTRUCTION, page.instruction, _button(Button.SEARCH))
        case PageKind.RESULTS:
            yield from (INSTRUCTION, page.instruction, _button(page.buttons[0]), results_line(page))
            yield from map(_button, page.buttons[1:])
            for row in page.rows:
                yield from ("", _button(row.asin, clicked=row.opened), row.title, row.price)
        case PageKind.ITEM:
            yield from _rich_item_lines(page)
        case PageKind.DONE:
            yield from _done_texts(page)
        case _:
            yield from (INSTRUCTION, page.instruction, *map(_button, page.buttons), *page.lines)


def _rich_item_lines(page: Page) -> Iterator[str]:
    for label in filter(None, map(_chosen_label, reversed(page.groups))):
        yield f"You have clicked {label}."
    yield from (INSTRUCTION, page.instruction, *map(_button, page.buttons[:2]))
    for group in page.groups:
        yield group.name
        for choice in group.choices:
            yield "  " + _button(choice.label, clicked=choice.value == group.chosen)
    yield from _item_facts(page)
    yield from map(_button, page.buttons[2:])


def _chosen_label(group: ChoiceGroup) -> str | None:
    return next((choice.label for choice in group.choices if choice.value == group.chosen), None)


def _button(text: str, *, clicked: bool = False) -> str:
    return f"[clicked button] {text} [clicked button_]" if clicked else f"[button] {text} [button_]"
