"""Pictures of goods: flat drawings as SVG, for catalogues that come without photographs.

A picture follows from the product alone: its texts choose the drawing, the chosen value or else its
own texts choose the colour, its department the background, and a checksum of its id whatever is left.
The drawings lie in ``data/pictures.toml``, the colour names in ``tints``. Of a product's texts only
the title gets into the picture, escaped, as its accessible name.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, Final
from zlib import crc32

from istar_envs.webshop.products import Product
from istar_envs.webshop.tints import Color, blend, find_colors, from_hex, luminance, to_hex

MAX_TITLE: Final = 120
"""Characters of a title that a picture keeps."""

FALLBACK: Final = "box"
"""What is drawn when no word of a product names a kind."""

_BACKDROPS: Final = {
    "beauty": ("#f5d9e1", "#fdeef2"),
    "electronics": ("#d6e2ef", "#ebf2f9"),
    "fashion": ("#dfd8ef", "#f1edf9"),
    "garden": ("#d5e6d3", "#ebf5ea"),
    "grocery": ("#f6e6c3", "#fdf5e2"),
}
_PLAIN_BACKDROP: Final = ("#e3dfd8", "#f4f2ee")
_PALETTE: Final = tuple(
    from_hex(code)
    for code in """
    e07a5f 5b8e7d 4f6d9a f2b84b b5656f 6a8caf 7fb069 c97b9a 3d7ea6 e6a15c 8c7aa9 4aa3a2 d96c6c
    9a8c6f 5f7f5a 7a6fb0
    """.split()
)
_SECONDS: Final = tuple(from_hex(code) for code in "3f546e c99b4e b65c54 5a8a72 8a6a94 f0ddb8".split())
_PAPER: Final = from_hex("fffdf8")
_WHITE: Final = from_hex("ffffff")
_NIGHT: Final = from_hex("17152b")
_CLEAR: Final = 0.18
"""Colours that differ this much in luminance can be told apart at a glance, by any eye."""

_TITLES_NAME_COLORS: Final = frozenset({"electronics", "fashion", "garden"})
"""Departments whose titles speak of the goods' own colour; "hand cream" or "orange juice" do not."""

_WORD: Final = re.compile(r"[a-z]+")
_ASIDE: Final = re.compile(r"[,(|;:–—]| - |\b(?:for|with|compatible|from|by|in)\b")
_NOT_XML: Final = re.compile("[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_OUTLINE: Final = 'stroke-width="3.5" stroke-linecap="round" stroke-linejoin="round"'
_SURFACES: Final = {
    "body": f'fill="{{tint}}" stroke="{{edge}}" {_OUTLINE}',
    "accent": f'fill="{{second}}" stroke="{{second_edge}}" {_OUTLINE}',
    "line": f'fill="none" stroke="{{edge}}" {_OUTLINE}',
    "gloss": 'fill="#fff" fill-opacity=".38"',
    "dusk": 'fill="#17152b" fill-opacity=".14"',
    "paper": 'fill="#fffdf8" stroke="#17152b" stroke-opacity=".16" stroke-width="2"',
    "metal": 'fill="#ccd2db" stroke="#8d95a3" stroke-width="3"',
    "ink": 'fill="#353947"',
    "wood": 'fill="#b07f52" stroke="#7d5636" stroke-width="3" stroke-linejoin="round"',
    "glass": 'fill="#cfe1ec" stroke="#93aab8" stroke-width="2"',
    "leaf": 'fill="#6fa56c" stroke="#4a7a4e" stroke-width="3" stroke-linejoin="round"',
}


@dataclass(frozen=True, slots=True)
class _Drawings:
    """The file of drawings, ready to be tinted.

    Attributes:
        art: SVG by kind; only colours and the emblem are left to fill in.
        emblems: SVG of each emblem.
        kind_of: Kind by one or two words.
    """

    art: Mapping[str, str]
    emblems: tuple[str, ...]
    kind_of: Mapping[str, str]


def picture_svg(product: Product, value: str | None = None) -> str:
    """Draw a product.

    Args:
        product: What to draw.
        value: The option value that was chosen, or None. If it names a colour, such as ``dark green``
            or ``black / white``, the drawing takes it; else the product's own texts decide.

    Returns:
        An SVG document of 400 by 400 units, at most 3 KB; equal for equal arguments in every process.
        It has no scripts, no links and no text but the escaped title.
    """
    drawings = _drawings()
    number = crc32(product.asin.encode("utf-8", "replace"))
    emblem = drawings.emblems[number // 31 % len(drawings.emblems)]
    colors = _colors(product, value, number)
    art = drawings.art[kind_of(product)].format_map({**colors, "emblem": emblem})
    wall, spot = _BACKDROPS.get(product.category, _PLAIN_BACKDROP)
    title = escape(" ".join(_NOT_XML.sub(" ", product.title[:MAX_TITLE]).split()), quote=False)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 400" role="img"><title>{title}</title>'
        f'<rect width="400" height="400" fill="{wall}"/><circle cx="200" cy="196" r="172" fill="{spot}"/>'
        f"{art}</svg>"
    )


def kind_of(product: Product) -> str:
    """Say what a product is drawn as, such as ``shoe``.

    The last word that names a kind counts, first in the title's opening, then in the shop query, the
    category path and the whole title: "desk lamp with pen holder" is a lamp.
    """
    kinds = _drawings().kind_of
    for text in _naming_texts(product):
        kind = _last_kind(_WORD.findall(text.lower()), kinds)
        if kind is not None:
            return kind
    return FALLBACK


def _naming_texts(product: Product) -> Iterator[str]:
    title = product.title.lower()
    yield _ASIDE.split(title, maxsplit=1)[0]
    yield product.query
    yield from reversed(product.breadcrumb.split("›"))
    yield title


def _last_kind(words: list[str], kinds: Mapping[str, str]) -> str | None:
    for i in range(len(words) - 1, -1, -1):
        for word in _singulars(words[i]):
            kind = (kinds.get(f"{words[i - 1]} {word}") if i else None) or kinds.get(word)
            if kind is not None:
                return kind
    return None


def _singulars(word: str) -> tuple[str, ...]:
    """The word and what it may be the plural of."""
    if not word.endswith("s"):
        return (word,)
    return word, word[:-1], word.removesuffix("es"), word.removesuffix("ies") + "y"


def _colors(product: Product, value: str | None, number: int) -> dict[str, str]:
    """Mix all colours of a drawing from the one or two that the product has."""
    named = _named_colors(product, value)
    tint = named[0] if named else _PALETTE[number % len(_PALETTE)]
    second = named[1] if len(named) > 1 else _second(tint, number)
    marks = (second, tint, *_SECONDS)
    colors = {
        "tint": tint,
        "light": blend(tint, _WHITE, 0.32),
        "shade": _contrast(tint, 0.12, 0.18),
        "edge": _contrast(tint, 0.3, 0.42),
        "second": second,
        "second_edge": _contrast(second, 0.3, 0.42),
        "mark": next(mark for mark in marks if _stands_out(mark, _PAPER)),
    }
    return {name: to_hex(color) for name, color in colors.items()}


def _named_colors(product: Product, value: str | None) -> tuple[Color, ...]:
    """Colours of the value, else of the first value of an option, else of the title; maybe none."""
    texts = [value or "", *(group.values[0] for group in product.options if group.values)]
    if product.category in _TITLES_NAME_COLORS:
        texts.append(product.title)
    return next((colors for colors in map(find_colors, texts) if colors), ())


def _second(tint: Color, number: int) -> Color:
    """Pick a second colour that stands out from the tint: its own dark tone or one of a few that suit all."""
    choices = (blend(tint, _NIGHT, 0.55), *_SECONDS)
    start = number // 7 % len(choices)
    turned = choices[start:] + choices[:start]
    return next(color for color in turned if _stands_out(color, tint))


def _stands_out(color: Color, ground: Color) -> bool:
    return abs(luminance(color) - luminance(ground)) >= _CLEAR


def _contrast(color: Color, lighter: float, darker: float) -> Color:
    """Lighten a dark colour and darken any other, so that it stands out from itself."""
    if luminance(color) < 0.25:
        return blend(color, _WHITE, lighter)
    return blend(color, _NIGHT, darker)


@cache
def _drawings() -> _Drawings:
    text = files(__package__).joinpath("data/pictures.toml").read_text(encoding="utf-8")
    data: dict[str, Any] = tomllib.loads(text)
    return _Drawings(
        art={kind: _prepare(entry["art"], entry["shadow"]) for kind, entry in data["kinds"].items()},
        emblems=tuple(f'<g fill="currentColor">{emblem}</g>' for emblem in data["emblems"].values()),
        kind_of={word: kind for kind, entry in data["kinds"].items() for word in entry["words"]},
    )


def _prepare(art: str, shadow: int) -> str:
    """Fill in the materials and put the shadow below."""
    for name, attributes in _SURFACES.items():
        art = art.replace(f"{{{name}}}", attributes)
    ground = f'<ellipse cx="200" cy="338" rx="{shadow + 14}" ry="11" fill="#17152b" fill-opacity=".16"/>'
    return (ground if shadow else "") + art.replace("\n", "")
