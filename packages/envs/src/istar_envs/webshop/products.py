"""What the shop sells and what a customer wants: plain immutable records, shared by every module.

Reading files, drawing price caps, searching and scoring have their own modules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

GoalKind = Literal["synthetic", "human"]
ScoringName = Literal["compat", "strict"]

NO_ATTRIBUTES: Final = ("DUMMY_ATTR",)
"""Attributes of a product that the attribute file does not know, as published."""

UNPRICED: Final = 100.0
"""Price that an unpriced product counts with in ``compat`` mode, in dollars."""


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """One choice that a product offers, such as its colour.

    Attributes:
        name: Lower case, such as ``color``.
        values: Lower case, in the file's order, repeats kept.
        images: Picture address of each value, "" where there is none.
    """

    name: str
    values: tuple[str, ...]
    images: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Annotation:
    """One human instruction for a product.

    Attributes:
        instruction: As written, without price.
        attributes: What it asks for (``instruction_attributes``).
        values: Bare option values that it asks for (``instruction_options``).
        shown: The ``name: value`` texts that the writer saw (``options``).
    """

    instruction: str
    attributes: tuple[str, ...]
    values: tuple[str, ...]
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """One product.

    Attributes:
        asin: Id, at most ten characters, upper case as in the catalogue.
        title: Name.
        description: May be "".
        bullets: Feature lines.
        category: Department, such as ``beauty``.
        query: Shop query that found it, lower case.
        breadcrumb: Category path joined with " › ".
        prices: One price or (low, high), in dollars; ``(100.0,)`` when unpriced.
        is_priced: Whether the catalogue states a price.
        image: Address of the main picture, or "".
        rating: Average rating in stars, or None.
        options: What can be chosen.
        attributes: Mined attributes; ``NO_ATTRIBUTES`` if the attribute file lacks the product.
        instruction: Text of its synthetic instruction, "" if it has none.
        instruction_attributes: What that instruction asks for.
        annotations: Human instructions.
    """

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    category: str
    query: str
    breadcrumb: str
    prices: tuple[float, ...]
    is_priced: bool
    image: str
    rating: float | None
    options: tuple[OptionGroup, ...]
    attributes: tuple[str, ...]
    instruction: str = ""
    instruction_attributes: tuple[str, ...] = ()
    annotations: tuple[Annotation, ...] = ()

    @property
    def price_tag(self) -> str:
        """The price as shown: ``$13.8`` or ``$9.98 to $12.98``."""
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def search_text(self) -> str:
        """What the search index holds: title, description, first bullet and options, lower case."""
        options = ", and ".join(f"{group.name}: {', '.join(group.values)}" for group in self.options)
        first_bullet = self.bullets[0] if self.bullets else ""
        return f"{self.title} {self.description} {first_bullet} {options}".lower()


@dataclass(frozen=True, slots=True)
class Goal:
    """What a customer wants.

    Attributes:
        index: Position in the goal list of its catalogue and kind.
        kind: ``synthetic`` or ``human``.
        target: The product that the instruction was written for.
        text: The whole instruction as shown, price cap included.
        attributes: Wanted attributes, at least one.
        options: Wanted (option name, value) pairs; the name is "" where a human goal does not say it.
        price_upper: Highest accepted price in dollars, or None for any.
    """

    index: int
    kind: GoalKind
    target: Product
    text: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    price_upper: float | None


@dataclass(frozen=True, slots=True)
class Purchase:
    """What was bought.

    Attributes:
        product: The product.
        chosen: Chosen value by option name; options left open are absent.
    """

    product: Product
    chosen: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Score:
    """How well a purchase fits a goal; every part is in [0, 1].

    Attributes:
        total: ``r_type · (matched attributes + matched options + r_price) / (all of them)``.
        r_type: Whether it is the wanted kind of product.
        r_att: Share of wanted attributes found.
        r_option: Share of wanted options chosen; 1.0 if none is wanted.
        r_price: 1.0 if the price is within the cap.
        title_score: Overlap of the titles' nouns.
        query_match: Whether both products were found by the same shop query.
        category_match: Whether the category paths share at least two parts.
        exact_product: Whether it is the very product that the goal was written for.
    """

    total: float
    r_type: float
    r_att: float
    r_option: float
    r_price: float
    title_score: float
    query_match: bool
    category_match: bool
    exact_product: bool
