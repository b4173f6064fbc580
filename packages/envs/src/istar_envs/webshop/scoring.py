"""How well a purchase fits a goal: the published reward (``compat``) and a corrected one (``strict``).

Both are ``r_type · (matched attributes + matched options + r_price) / (all of them)``. Everything here
is pure: the hidden price and the noun tagger of ``compat`` are arguments.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from istar_envs.webshop.cleaning import same_value, words_in
from istar_envs.webshop.colors import color_of_pair, color_of_text
from istar_envs.webshop.fuzzy import token_set_ratio
from istar_envs.webshop.nouns import NounTagger, light_nouns
from istar_envs.webshop.prices import strict_price
from istar_envs.webshop.products import Goal, Product, Purchase, Score

_FUZZY_MATCH: Final = 85
_NO_CAP: Final = 1_000_000.0
_SIMILAR_TITLE: Final = 0.2
_ALIEN_TITLE: Final = 0.1


def score_compat(purchase: Purchase, goal: Goal, *, price: float, tagger: NounTagger) -> Score:
    """Score as published, bit for bit given the same nouns and price.

    Args:
        purchase: What was bought.
        goal: What was wanted.
        price: Hidden price of the bought product, in dollars.
        tagger: Finds the nouns of both titles.

    Example:
        Two attributes matched, one of two options, price fine, r_type 1: (2 + 1 + 1) / (2 + 2 + 1) = 0.8.
    """
    product, target = purchase.product, goal.target
    wanted = tagger(target.title)
    # A title without nouns says nothing for or against, so it gets the score that changes nothing.
    title_score = len({*wanted}.intersection(tagger(product.title))) / len(wanted) if wanted else 0.2
    chosen = [color_of_text(value) for value in purchase.chosen.values()]
    options = [
        color_of_text(value) if goal.kind == "human" else color_of_pair(name, value)
        for name, value in goal.options
    ]
    matches = _Matches(
        attributes=sum(_has_attribute_compat(product, attribute) for attribute in goal.attributes),
        options=sum(any(_is_alike(value, option) for value in chosen) for option in options),
        price=price <= (_NO_CAP if goal.price_upper is None else goal.price_upper),
    )
    likeness = _Likeness.of(product, target, title_score)
    return _score(product, goal, matches=matches, likeness=likeness, r_type=_type_compat(likeness))


def score_strict(purchase: Purchase, goal: Goal) -> Score:
    """Score with the known faults corrected; buying a goal's target with its options gives exactly 1.0.

    An option counts if the value chosen under its name equals the wanted one. An attribute counts if the
    product has it or its text holds it as whole words. The price is the lowest one shown, and an unpriced
    product is within no cap. The title overlap counts each noun once and cannot lower what the shop query
    or the category path has settled.

    Args:
        purchase: What was bought.
        goal: What was wanted, from a strict goal list.
    """
    product, target = purchase.product, goal.target
    wanted = {*light_nouns(target.title)}
    title_score = len(wanted.intersection(light_nouns(product.title))) / len(wanted) if wanted else 0.0
    matches = _Matches(
        attributes=sum(has_attribute(product, attribute) for attribute in goal.attributes),
        options=sum(
            name in purchase.chosen and same_value(purchase.chosen[name]) == same_value(value)
            for name, value in goal.options
        ),
        price=goal.price_upper is None or strict_price(product) <= goal.price_upper,
    )
    likeness = _Likeness.of(product, target, title_score)
    return _score(product, goal, matches=matches, likeness=likeness, r_type=_type_strict(likeness))


def has_attribute(product: Product, attribute: str) -> bool:
    """Whether a product is said to have an attribute, by the strict rule.

    Either one of its attributes equals it, or title, a bullet or the description holds it as whole words.

    Example:
        "cotton" is in the title "Men's Cotton-Blend Socks", but "men" is not in "Women's Socks".
    """
    if same_value(attribute) in {same_value(own) for own in product.attributes}:
        return True
    phrase = words_in(attribute)
    texts = (product.title, product.description, *product.bullets)
    return phrase.strip() != "" and any(phrase in words_in(text) for text in texts)


@dataclass(frozen=True, slots=True)
class _Matches:
    """What of a goal a purchase meets."""

    attributes: int
    options: int
    price: bool


@dataclass(frozen=True, slots=True)
class _Likeness:
    """How a purchased product and the target compare as kinds of product."""

    query: bool
    category: bool
    title: float
    exact: bool

    @classmethod
    def of(cls, product: Product, target: Product, title_score: float) -> "_Likeness":
        shared = _path_parts(product.breadcrumb) & _path_parts(target.breadcrumb)
        return cls(
            query=product.query == target.query,
            category=len(shared) >= 2,
            title=title_score,
            exact=product.asin == target.asin,
        )


def _score(product: Product, goal: Goal, *, matches: _Matches, likeness: _Likeness, r_type: float) -> Score:
    num_attributes, num_options = len(goal.attributes), len(goal.options)
    share = (matches.attributes + matches.options + matches.price) / (num_attributes + num_options + 1)
    return Score(
        total=share * r_type,
        r_type=r_type,
        r_att=matches.attributes / num_attributes if num_attributes else 1.0,
        r_option=matches.options / num_options if num_options else 1.0,
        r_price=float(matches.price),
        title_score=likeness.title,
        query_match=likeness.query,
        category_match=likeness.category,
        exact_product=likeness.exact,
    )


def _type_compat(likeness: _Likeness) -> float:
    """Let a title overlap below 0.1 overrule everything else, as published."""
    if likeness.title == 0.0:
        return 0.0
    if likeness.title < _ALIEN_TITLE:
        return 0.1
    return 1.0 if likeness.query or likeness.category or likeness.title > _SIMILAR_TITLE else 0.5


def _type_strict(likeness: _Likeness) -> float:
    if likeness.query or likeness.category or likeness.title > _SIMILAR_TITLE:
        return 1.0
    if likeness.title >= _ALIEN_TITLE:
        return 0.5
    return 0.1 if likeness.title > 0.0 else 0.0


def _has_attribute_compat(product: Product, attribute: str) -> bool:
    if any(_is_alike(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)


def _is_alike(ours: str, wanted: str) -> bool:
    return token_set_ratio(ours, wanted) > _FUZZY_MATCH


@lru_cache(maxsize=4096)
def _path_parts(breadcrumb: str) -> frozenset[str]:
    return frozenset(part.strip() for part in breadcrumb.split("›"))
