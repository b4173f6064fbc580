"""The words that made-up products are written with: one TOML file per department, read once.

A file holds, besides the openers, closers and brand syllables of the department:

- ``choices``: option groups with their possible values; ``ordered`` ones keep the order of a size chart;
- ``axes``: what products of one kind differ by. A product takes at most one trait of each axis, so it is
  never both long and short sleeved. A trait is an attribute with the lines that tell of it;
- ``families``: related kinds of product, with what they share. A kind is ``query | noun | noun``.
"""

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Final

DEPARTMENTS: Final = ("beauty", "electronics", "fashion", "garden", "grocery")
"""Names of the departments and of their files."""

_SMALL_WORDS: Final = frozenset(("a", "and", "for", "in", "of", "on", "or", "the", "to", "with"))


@dataclass(frozen=True, slots=True)
class Trait:
    """Something that can be said of a product.

    Attributes:
        attribute: As it is mined, such as ``blackout lining``.
        phrase: As it stands in an instruction: ``machine washable``, ``with blackout lining``.
        preposition: ``with``, ``for``, or "" if the attribute stands before the noun.
        title: The phrase as it stands in a title.
        lines: Clauses that hold the attribute, without a full stop.
        head: What the lines are about, such as ``Care``.
    """

    attribute: str
    phrase: str
    preposition: str
    title: str
    lines: tuple[str, ...]
    head: str


@dataclass(frozen=True, slots=True)
class Choice:
    """An option group to draw values from.

    Attributes:
        name: Lower case, such as ``color``.
        values: All that can be offered.
        is_ordered: Whether neighbours stay together and in order.
    """

    name: str
    values: tuple[str, ...]
    is_ordered: bool


@dataclass(frozen=True, slots=True)
class Kind:
    """What a shop query finds.

    Attributes:
        query: Lower case, plural or uncountable.
        nouns: What sellers call it, as it stands in a sentence.
        titles: The same as it stands in a title.
    """

    query: str
    nouns: tuple[str, ...]
    titles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """Related kinds of product.

    Attributes:
        breadcrumb: Category path joined with " › ".
        axes: Traits by axis.
        choices: Option groups, no two with one name, the likeliest first.
        offers: Share of products with options; of these, the share with two groups and with three.
        uses: What the products are for.
        looks: Style words.
        packs: What is in the box, as it stands in a title.
        price: Lowest and highest usual price, in dollars.
        lines: Bullets that fit all of them.
        kinds: The kinds.
    """

    breadcrumb: str
    axes: tuple[tuple[Trait, ...], ...]
    choices: tuple[Choice, ...]
    offers: tuple[float, ...]
    uses: tuple[str, ...]
    looks: tuple[str, ...]
    packs: tuple[str, ...]
    price: tuple[float, float]
    lines: tuple[str, ...]
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class Department:
    """A department of the shop.

    Attributes:
        name: Lower case, as the category of its products.
        brand_starts: First syllables of brands.
        brand_ends: Last syllables of brands.
        brand_suffixes: Second words that some brands have.
        openers: First sentences of descriptions, with ``{brand}``, ``{noun}``, ``{use}``, ``{look}``.
        closers: Last sentences.
        kinds: Every kind with its family; each is equally likely.
    """

    name: str
    brand_starts: tuple[str, ...]
    brand_ends: tuple[str, ...]
    brand_suffixes: tuple[str, ...]
    openers: tuple[str, ...]
    closers: tuple[str, ...]
    kinds: tuple[tuple[Family, Kind], ...]


@lru_cache(maxsize=len(DEPARTMENTS))
def load_department(name: str) -> Department:
    """Read the words of one of ``DEPARTMENTS``."""
    file = resources.files("istar_envs.webshop") / "data" / f"{name}.toml"
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    axes = {key: _axis(table) for key, table in data["axes"].items()}
    choices = {key: _choice(table) for key, table in data["choices"].items()}
    families = [_family(table, data["root"], axes=axes, choices=choices) for table in data["families"]]
    return Department(
        name=name,
        brand_starts=tuple(data["brand_starts"].split()),
        brand_ends=tuple(data["brand_ends"].split()),
        brand_suffixes=tuple(data["brand_suffixes"]),
        openers=tuple(data["openers"]),
        closers=tuple(data["closers"]),
        kinds=tuple((family, kind) for family in families for kind in family.kinds),
    )


def title_case(phrase: str) -> str:
    """Capitalize the words of a phrase but the small ones; capitals that it has stay.

    Example:
        >>> title_case("women's shoes for wide feet")
        "Women's Shoes for Wide Feet"
    """
    return " ".join(word if word in _SMALL_WORDS else word[:1].upper() + word[1:] for word in phrase.split())


def _axis(table: dict[str, Any]) -> tuple[Trait, ...]:
    head = table["head"]
    return tuple(_trait(key, tuple(lines), head) for key, lines in table.items() if key != "head")


def _trait(key: str, lines: tuple[str, ...], head: str) -> Trait:
    first, _, rest = key.partition(" ")
    preposition = first if first in {"with", "for"} else ""
    phrase = key.lower()
    attribute = rest.lower() if preposition else phrase
    return Trait(attribute, phrase, preposition, title_case(key), lines, head)


def _choice(table: dict[str, Any]) -> Choice:
    return Choice(table["name"], tuple(table["values"]), table.get("ordered", False))


def _family(
    table: dict[str, Any],
    root: str,
    *,
    axes: dict[str, tuple[Trait, ...]],
    choices: dict[str, Choice],
) -> Family:
    return Family(
        breadcrumb=f"{root} › {table['path']}",
        axes=tuple(axes[name] for name in table["axes"].split()),
        choices=tuple(choices[name] for name in table["choices"].split()),
        offers=tuple(table["offers"]),
        uses=tuple(table["uses"]),
        looks=tuple(table["looks"]),
        packs=tuple(table["packs"]),
        price=(table["price"][0], table["price"][1]),
        lines=tuple(table["lines"]),
        kinds=tuple(_kind(line) for line in table["kinds"]),
    )


def _kind(line: str) -> Kind:
    query, *nouns = line.split(" | ")
    return Kind(query, tuple(nouns), tuple(map(title_case, nouns)))
