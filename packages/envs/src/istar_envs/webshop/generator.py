"""A catalogue of made-up products, as large as wanted.

Product i follows from the seed and i alone, so a catalogue is the same in every process, and a longer one
begins with the shorter one. The statistics are those of the published 1,000-product catalogue.
"""

from collections.abc import Iterator
from typing import Final

from istar_envs.seeding import CounterRng, derive_seed
from istar_envs.webshop import wording
from istar_envs.webshop.products import UNPRICED, Annotation, OptionGroup, Product
from istar_envs.webshop.wording import Sheet, pick, pick_first, sample
from istar_envs.webshop.wordlists import Choice, Department, Family, Trait, load_department

SHARES: Final = {"beauty": 238, "electronics": 229, "fashion": 200, "garden": 216, "grocery": 117}
"""Products of each department among 1,000; every block of 1,000 has exactly these."""

MOST_COMBINATIONS: Final = 60
"""Option combinations of one product, at most."""

_DIGITS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ASIN_BITS: Final = 25
_ODD: Final = (0x1B873593CC9F, 0x0D2A98B26625)
"""Multipliers of the ids; a product with an odd number modulo a power of two is one to one."""
_STEP: Final = 389
"""Odd and no multiple of 5, so that it spreads the departments over each block."""
_SPREAD: Final = 17
"""Divides no department's number of kinds, so that popular ones are of all families."""
_INSTRUCTED: Final = (0.31, 0.57)
"""Share of products with an instruction, without and with options."""
_BARE: Final = 0.32
"""Share of products without attributes, among those without an instruction."""
_ANNOTATED: Final = 0.073
_EMPTY_DESCRIPTION: Final = 0.30
_UNPRICED: Final = 0.09
_RANGED: Final = (0.015, 0.20)
"""Share of products with a price range, without and with options."""
_PATHLESS: Final = 0.022
_CODED_COLORS: Final = 0.10
_COMMON_VALUES: Final = 8
"""Values of a group that most products choose from."""
_CENTS: Final = (0.99, 0.99, 0.99, 0.95, 0.49, 0.0, 0.5, 0.89)


def generate_products(n: int, *, seed: int = 0) -> Iterator[Product]:
    """Make up products, one after the other.

    Args:
        n: How many; ids differ among the first 33 million.
        seed: Another seed gives another catalogue.

    Yields:
        The products in row order.

    Raises:
        ValueError: If ``n`` is negative.
    """
    if n < 0:
        raise ValueError(f"a catalogue cannot have {n} products: give 0 or more")
    names = [name for name, share in SHARES.items() for _ in range(share)]
    departments = {name: load_department(name) for name in SHARES}
    start = derive_seed(seed, "asin")
    for i in range(n):
        department = departments[names[i * _STEP % len(names)]]
        yield _product(CounterRng(derive_seed(seed, "made-up product", i)), department, _asin(start, i))


def _asin(start: int, i: int) -> str:
    """Write a number as "G" and five base-32 digits; every step is one to one, so no two are alike."""
    mask = (1 << _ASIN_BITS) - 1
    code = (start + i * _ODD[0]) & mask
    code ^= code >> 13
    code = code * _ODD[1] & mask
    code ^= code >> 12
    return "G" + "".join([_DIGITS[code >> shift & 31] for shift in range(_ASIN_BITS - 5, -1, -5)])


def _product(rng: CounterRng, department: Department, asin: str) -> Product:
    family, kind = department.kinds[_popular(rng, len(department.kinds))]
    options = _options(rng, family)
    is_instructed = rng.random() < _INSTRUCTED[bool(options)]
    num_attributes = _num_attributes(rng, is_instructed)
    sheet = Sheet(
        department=department,
        family=family,
        kind=kind,
        noun=rng.below(len(kind.nouns)),
        brand=_brand(rng, department),
        look=pick(rng, family.looks),
        use=pick(rng, family.uses),
        traits=_traits(rng, family, max(num_attributes, 3 + rng.below(4))),
        num_attributes=num_attributes,
        options=options,
    )
    title, named = wording.write_title(rng, sheet)
    bullets = wording.write_bullets(rng, sheet, named)
    description = "" if rng.random() < _EMPTY_DESCRIPTION else wording.write_description(rng, sheet)
    instruction, wanted = wording.write_instruction(rng, sheet) if is_instructed else ("", ())
    prices = _prices(rng, family, bool(options))
    return Product(
        asin=asin,
        title=title,
        description=description,
        bullets=bullets,
        category=department.name,
        query=kind.query,
        breadcrumb="" if rng.random() < _PATHLESS else family.breadcrumb,
        prices=prices or (UNPRICED,),
        is_priced=bool(prices),
        image="",
        rating=_rating(rng),
        options=options,
        attributes=sheet.attributes,
        instruction=instruction,
        instruction_attributes=wanted,
        annotations=_annotations(rng, sheet),
    )


def _popular(rng: CounterRng, n: int) -> int:
    """Draw a position; some are likelier than others, as some things are sold by more people."""
    return min(rng.below(n), rng.below(n)) * _SPREAD % n


def _options(rng: CounterRng, family: Family) -> tuple[OptionGroup, ...]:
    """Draw up to three option groups."""
    some, two, three = family.offers
    if rng.random() >= some:
        return ()
    luck = rng.random()
    choices = family.choices[: 3 if luck < three else 2]
    if luck >= two + three:
        choices = (pick(rng, choices),)
    groups, room = [], MOST_COMBINATIONS
    for left in range(len(choices) - 1, -1, -1):
        choice = choices[len(choices) - 1 - left]
        most = min(room // 3**left, len(choice.values), 9)
        count = min(3 + max(rng.below(most - 2), rng.below(3)), most)
        values = _values(rng, choice, count)
        groups.append(OptionGroup(choice.name, values, ("",) * len(values)))
        room //= len(values)
    return tuple(groups)


def _values(rng: CounterRng, choice: Choice, count: int) -> tuple[str, ...]:
    """Draw different values: neighbours of a size chart, or anything in any order, mostly the common ones."""
    if choice.is_ordered:
        start = rng.below(len(choice.values) - count + 1)
        return choice.values[start : start + count]
    values = sample(rng, choice.values[:_COMMON_VALUES] if rng.below(4) else choice.values, count)
    if choice.name == "color" and rng.random() < _CODED_COLORS:
        letter = pick(rng, "abckwz")
        values = [f"{letter}{number}-{value}" for number, value in enumerate(values, 1)]
    return tuple(values)


def _num_attributes(rng: CounterRng, is_instructed: bool) -> int:
    if is_instructed:
        return pick(rng, (2, 3, 3, 4, 4, 5))
    return 0 if rng.random() < _BARE else pick(rng, (1, 2, 3, 3, 4, 5, 5))


def _traits(rng: CounterRng, family: Family, count: int) -> tuple[Trait, ...]:
    """Draw traits of different axes; many products share the common ones."""
    return tuple([pick_first(rng, axis) for axis in sample(rng, family.axes, count)])


def _brand(rng: CounterRng, department: Department) -> str:
    name = pick(rng, department.brand_starts) + pick(rng, department.brand_ends)
    return name if rng.below(6) else f"{name} {pick(rng, department.brand_suffixes)}"


def _prices(rng: CounterRng, family: Family, has_options: bool) -> tuple[float, ...]:
    """Draw one price or two; none for an unpriced product."""
    luck = rng.random()
    if luck < _UNPRICED:
        return ()
    lowest, highest = family.price
    dollars = lowest + (highest - lowest) * rng.random() * rng.random()
    low = round(int(dollars) + pick(rng, _CENTS), 2)
    if luck >= _UNPRICED + _RANGED[has_options]:
        return (low,)
    high = round(int(dollars * (1.1 + rng.random())) + 1 + pick(rng, _CENTS), 2)
    return (low, high)


def _rating(rng: CounterRng) -> float:
    return round(5.0 - 2.3 * rng.random() * rng.random(), 1)


def _annotations(rng: CounterRng, sheet: Sheet) -> tuple[Annotation, ...]:
    if sheet.num_attributes == 0 or rng.random() >= _ANNOTATED:
        return ()
    return (wording.write_annotation(rng, sheet),)
