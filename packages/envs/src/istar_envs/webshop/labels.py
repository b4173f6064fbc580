"""What can be clicked in the shop: the texts of buttons and of option values.

A click is written in clean text: lower case, single spaces, no control characters. Every value of a
product gets a label of its own, so that one text never means two things.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from istar_envs.webshop.products import Product

UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line and paragraph separators, and halves of surrogate pairs."""


class Button(StrEnum):
    """The buttons, as shown; an agent clicks them in lower case."""

    SEARCH = "Search"
    BACK = "Back to Search"
    PREVIOUS = "< Prev"
    NEXT = "Next >"
    DESCRIPTION = "Description"
    FEATURES = "Features"
    REVIEWS = "Reviews"
    ATTRIBUTES = "Attributes"
    BUY = "Buy Now"


_BUTTON_TEXTS: Final = frozenset(button.lower() for button in Button)


@dataclass(frozen=True, slots=True)
class Choice:
    """One option value as offered.

    Attributes:
        label: Text that is shown and clicked, unique in its product; clean.
        value: The value as the catalogue spells it.
        image: Address of its picture, or "".
    """

    label: str
    value: str
    image: str


@dataclass(frozen=True, slots=True)
class ChoiceGroup:
    """One option of a product, such as its colour.

    Attributes:
        name: As the catalogue spells it.
        choices: In the catalogue's order, repeats kept.
        chosen: The chosen value, or None.
    """

    name: str
    choices: tuple[Choice, ...]
    chosen: str | None = None


def clean(text: str) -> str:
    """Write text as it is clicked: lower case, single spaces, no control characters."""
    return " ".join(UNPRINTABLE.sub(" ", text).lower().split())


def choice_groups(product: Product) -> tuple[ChoiceGroup, ...]:
    """Label every option value of a product.

    The label is the value. Where that would be empty, the text of a button or a value of another
    option too, it is ``name: value``.

    Args:
        product: Any product.

    Returns:
        One group per option, in the product's order.
    """
    names_of: dict[str, set[str]] = {}
    for group in product.options:
        for value in group.values:
            names_of.setdefault(clean(value), set()).add(group.name)
    long_labels = {_long(name, text) for text, names in names_of.items() for name in names}
    taken = _BUTTON_TEXTS | long_labels | {""}

    def label(name: str, value: str) -> str:
        text = clean(value)
        return text if text not in taken and len(names_of[text]) == 1 else _long(name, text)

    return tuple(
        ChoiceGroup(
            group.name,
            tuple(
                Choice(label(group.name, value), value, image)
                for value, image in zip(group.values, group.images, strict=True)
            ),
        )
        for group in product.options
    )


def _long(name: str, text: str) -> str:
    return clean(f"{name}: {text}")
