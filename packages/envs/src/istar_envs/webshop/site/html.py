"""A page as HTML, from the same record as every other observation, and the text that such HTML shows.

Templates only arrange; what a page contains and what it is called is decided in ``pages``. Every text
is escaped. Jinja is imported at the first page, so that text environments do without it.
"""

from collections.abc import Mapping
from functools import lru_cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from istar_envs.errors import EnvError
from istar_envs.webshop.labels import Button, clean
from istar_envs.webshop.pages import Page
from istar_envs.webshop.render import INSTRUCTION, NAME, SCORE, SEPARATOR, THANKS, results_line, url_of
from istar_envs.webshop.session import PageKind, State
from istar_envs.webshop.tints import find_colors

if TYPE_CHECKING:
    from jinja2 import Environment

_UNSEEN: Final = frozenset({"head", "style", "script", "title"})
_SUBPAGES: Final = frozenset({PageKind.DESCRIPTION, PageKind.FEATURES, PageKind.REVIEWS, PageKind.ATTRIBUTES})


def to_html(page: Page, *, code: str = "") -> str:
    """Write a page as a whole HTML document.

    Args:
        page: Any page.
        code: Completion code for the last page; "" shows none.

    Returns:
        The document; its visible text is ``to_text(page)``.

    Raises:
        EnvError: If Jinja is not installed.
    """
    name = "subpage" if page.kind in _SUBPAGES else page.kind.value
    return fill(
        name,
        heading=page.title or f"{page.kind} · {NAME}",
        page=page,
        code=code,
        links=_links(page),
        item_url=product_url(page, page.asin),
        picture=picture_of(page),
    )


def fill(template: str, **values: Any) -> str:
    """Fill one of the site's templates; every value is escaped.

    Raises:
        EnvError: If Jinja is not installed.
    """
    return _templates().get_template(f"{template}.html").render(values)


def picture_of(page: Page) -> str:
    """Address of the open product's picture, in the last chosen colour if one is chosen."""
    values = [group.chosen for group in reversed(page.groups) if group.chosen and find_colors(group.chosen)]
    return picture_url(page.asin, values[0] if values else None)


def picture_url(asin: str, value: str | None = None) -> str:
    """Address of a product's picture on the site."""
    path = f"/picture/{quote(asin, safe='')}.svg"
    return path if value is None else f"{path}?{urlencode({'value': value})}"


def visible_text(html: str) -> str:
    """Read the text that a document shows: its text nodes in order, joined as in ``to_text``.

    Nodes of white space that break the line are layout and do not count; other empty ones do.
    """
    reader = _TextReader()
    reader.feed(html)
    reader.close()
    return SEPARATOR.join(reader.texts)


@lru_cache(maxsize=1)
def _templates() -> "Environment":
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise EnvError(
            'HTML needs Jinja, which is not installed (WebShop). Run "pip install istar-envs[server]".'
        ) from error
    templates = Environment(
        loader=PackageLoader("istar_envs.webshop.site"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals.update(
        Button=Button,
        NAME=NAME,
        INSTRUCTION=INSTRUCTION,
        THANKS=THANKS,
        SCORE=SCORE,
        clean=clean,
        picture_url=picture_url,
        product_url=product_url,
        results_line=results_line,
    )
    return templates


def product_url(page: Page, asin: str) -> str:
    """Address of a product found on a results page."""
    return url_of(State(PageKind.ITEM, page.query, page.number, asin))


def _links(page: Page) -> Mapping[Button, str]:
    """Where each button of a page leads."""
    targets = {
        Button.BACK: State(),
        Button.DESCRIPTION: State(PageKind.DESCRIPTION, page.query, page.number, page.asin),
        Button.FEATURES: State(PageKind.FEATURES, page.query, page.number, page.asin),
        Button.REVIEWS: State(PageKind.REVIEWS, page.query, page.number, page.asin),
        Button.ATTRIBUTES: State(PageKind.ATTRIBUTES, page.query, page.number, page.asin),
        Button.NEXT: State(PageKind.RESULTS, page.query, page.number + 1),
    }
    if page.kind in _SUBPAGES:
        targets[Button.PREVIOUS] = State(PageKind.ITEM, page.query, page.number, page.asin)
    else:
        before = page.number if page.kind is PageKind.ITEM else page.number - 1
        targets[Button.PREVIOUS] = State(PageKind.RESULTS, page.query, before)
    links = {button: url_of(state) for button, state in targets.items()}
    links[Button.BUY] = product_url(page, page.asin).replace("/item/", "/buy/", 1)
    return links


class _TextReader(HTMLParser):
    """Collects the visible text nodes of a document."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._unseen: list[str] = []
        self._node = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._end_node()
        if tag in _UNSEEN:
            self._unseen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self._end_node()
        if self._unseen and self._unseen[-1] == tag:
            self._unseen.pop()

    def handle_comment(self, data: str) -> None:
        self._end_node()

    def handle_data(self, data: str) -> None:
        self._node += data

    def close(self) -> None:
        super().close()
        self._end_node()

    def _end_node(self) -> None:
        node, self._node = self._node, ""
        is_layout = not node or (node.isspace() and "\n" in node)
        if not self._unseen and not is_layout:
            self.texts.append(node.strip())
