"""The texts of a made-up product, written from what is known of it: functions of a sheet and a generator."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from istar_envs.seeding import CounterRng
from istar_envs.webshop.products import Annotation, OptionGroup
from istar_envs.webshop.wordlists import Department, Family, Kind, Trait, title_case

LONGEST_TITLE: Final = 14
"""Words of a title, at most."""

_SHORTEST_TITLE: Final = 6
_MOST_BULLETS: Final = 5
_CODE_LETTERS: Final = "ABCDEFHKLMNPRSTVWX"
_REQUESTS: Final = (
    "Find me",
    "Show me",
    "I need",
    "I am after",
    "Help me find",
    "I want to buy",
    "Look for",
    "Get me",
    "I am looking for",
    "Search for",
)
_WISHES: Final = (
    "i am looking for {wish}{choice}",
    "i need {wish}{choice}, please",
    "can you find {wish}{choice}?",
    "please help me choose {wish}{choice}",
    "my sister asked me for {wish}{choice}",
    "i would like to order {wish}{choice}, nothing fancy",
    "could you look for {wish}{choice}",
    "it is time for new {wish}{choice}",
    "are there any {wish}{choice}? that is all i want",
    "as a gift i am thinking of {wish}{choice}",
)
_CHOSEN: Final = {
    "color": "in {}",
    "size": "in size {}",
    "style": "in the {} version",
    "capacity": "with {} capacity",
    "item package quantity": "as a set of {}",
    "flavor name": "in {} flavor",
    "scent": "with the {} scent",
    "fit type": "with a {} fit",
}

_TIPS: Final = (
    "Pairs well with our {one} and our {other}.",
    "From the makers of the {brand} {one} and the {brand} {other}.",
    "Those who like it often take our {one} as well.",
    "Whoever liked our {one} or our {other} will be glad to have it.",
    "Also ask for our {one}, our {other} and the rest of the series.",
    "Not what you had in mind? Have a look at our {one} and our {other}.",
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sheet:
    """What is known of a product before its texts are written.

    Attributes:
        department: Where it is sold.
        family: Related kinds.
        kind: What it is.
        noun: Position of what this seller calls it, among the kind's nouns.
        brand: Who sells it.
        look: Style word.
        use: What it is for.
        traits: All that its text tells, no two of one axis; the attributes come first.
        num_attributes: How many of the traits are attributes.
        options: What can be chosen.
    """

    department: Department
    family: Family
    kind: Kind
    noun: int
    brand: str
    look: str
    use: str
    traits: tuple[Trait, ...]
    num_attributes: int
    options: tuple[OptionGroup, ...]

    @property
    def attributes(self) -> tuple[str, ...]:
        """What is mined from the text."""
        return tuple([trait.attribute for trait in self.traits[: self.num_attributes]])


def pick(rng: CounterRng, things: Sequence[T]) -> T:
    """Draw one of some things."""
    return things[rng.below(len(things))]


def pick_first(rng: CounterRng, things: Sequence[T]) -> T:
    """Draw one of some things; the first are likelier than the last."""
    n = len(things)
    return things[min(rng.below(n), rng.below(n), rng.below(n))]


def sample(rng: CounterRng, things: Sequence[T], count: int) -> list[T]:
    """Draw some of the things, at most all, in random order."""
    left = list(things)
    count = min(count, len(left))
    for place in range(count):
        other = place + rng.below(len(left) - place)
        left[place], left[other] = left[other], left[place]
    return left[:count]


def write_title(rng: CounterRng, sheet: Sheet) -> tuple[str, frozenset[str]]:
    """Write a title of 6 to 14 words; return it with the attributes that it names."""
    leads = [trait for trait in sheet.traits if not trait.preposition]
    tails = [trait for trait in sheet.traits if trait.preposition]
    lead = pick(rng, leads).title if leads else ""
    tail = pick(rng, tails).title if tails else ""
    unused: list[str] = []
    before, after, extras = [sheet.brand], [sheet.kind.titles[sheet.noun]], [f"for {title_case(sheet.use)}"]
    if lead:
        pick(rng, (before, extras, unused)).append(lead)
    if tail:
        pick(rng, (after, extras, unused)).append(tail)
    is_long = len(before) + len(after) > 3
    pick(rng, (extras if is_long else before, extras)).append(title_case(sheet.look))
    if all(group.name != "size" for group in sheet.options):
        extras.append(pick(rng, sheet.family.packs).replace("{code}", item_code(rng)))
    title = " ".join(before + after)
    title = _lengthened(title, sample(rng, extras, len(extras)), _SHORTEST_TITLE + rng.below(7))
    title = _lengthened(title, unused, _SHORTEST_TITLE)
    return title, frozenset([trait.attribute for trait in sheet.traits if trait.title in title])


def _lengthened(title: str, extras: list[str], wanted: int) -> str:
    """Add parts to a title until it has the wanted number of words."""
    words = title.count(" ") + 1
    for extra in extras:
        longer = words + extra.count(" ") + 1
        if words < wanted and longer <= LONGEST_TITLE:
            title, words = f"{title}, {extra}", longer
    return title


def item_code(rng: CounterRng) -> str:
    """Draw a maker's item number, such as ``KL204``."""
    return f"{pick(rng, _CODE_LETTERS)}{pick(rng, _CODE_LETTERS)}{100 + rng.below(9900)}"


def write_bullets(rng: CounterRng, sheet: Sheet, named: frozenset[str]) -> tuple[str, ...]:
    """Write 3 to 5 bullets that tell of every attribute that the title does not name."""
    style = rng.below(6)
    missing = [trait for trait in sheet.traits[: sheet.num_attributes] if trait.attribute not in named]
    lines = [_bullet(trait, style) for trait in missing]
    spare = [_bullet(trait, style) for trait in sheet.traits if trait not in missing]
    spare += sheet.family.lines
    count = 3 + rng.below(_MOST_BULLETS - 2)
    lines += sample(rng, spare, max(count - len(lines), 0))
    return tuple(sample(rng, lines, len(lines)))


def _bullet(trait: Trait, style: int) -> str:
    """Let a seller's bullets look alike: half of them are plain, the others have a head."""
    line = trait.lines[style & 1]
    if style < 3:
        return line
    return f"{trait.head.upper()} - {line}" if style == 3 else f"{trait.head}: {line}"


def write_description(rng: CounterRng, sheet: Sheet) -> str:
    """Write a paragraph of five to ten sentences."""
    coin = rng.below(2)
    lines = [trait.lines[coin] for trait in sample(rng, sheet.traits, 1 + rng.below(3))]
    lines += sheet.family.lines[coin : coin + 2]
    lines = sample(rng, lines, len(lines))
    noun = sheet.kind.nouns[sheet.noun]
    opener = pick(rng, sheet.department.openers)
    first = opener.format(brand=sheet.brand, noun=noun, use=sheet.use, look=sheet.look)
    others = [pick(rng, pick(rng, sheet.family.kinds).nouns) for _ in range(2)]
    tip = pick(rng, _TIPS).format(brand=sheet.brand, one=others[0], other=others[1])
    return f"{first} {'. '.join(lines)}. {tip} {pick(rng, sheet.department.closers)}"


def write_instruction(rng: CounterRng, sheet: Sheet) -> tuple[str, tuple[str, ...]]:
    """Write what a customer asks for, with two or three attributes; return it with them."""
    wanted = sample(rng, sheet.traits[: sheet.num_attributes], 2 + rng.below(2))
    text = f"{pick(rng, _REQUESTS)} {_wish(sheet.kind.query, wanted)}"
    return text, tuple([trait.attribute for trait in wanted])


def _wish(query: str, wanted: Sequence[Trait]) -> str:
    """Put attributes around a query: ``easy clean rugs with tassels for hallways``."""
    leads = ", ".join([trait.phrase for trait in wanted if not trait.preposition])
    text = f"{leads} {query}" if leads else query
    for preposition in ("with", "for"):
        tails = [trait.attribute for trait in wanted if trait.preposition == preposition]
        if tails:
            text = f"{text} {preposition} {' and '.join(tails)}"
    return text


def write_annotation(rng: CounterRng, sheet: Sheet) -> Annotation:
    """Write what a person asks for who has the product before them, in their own careless way."""
    count = 1 + rng.below(min(3, sheet.num_attributes))
    wanted = sheet.traits[:count]
    chosen = [(group.name, pick(rng, group.values)) for group in sheet.options]
    told = chosen if rng.below(4) else chosen[:1]
    choice = "".join([f" {_CHOSEN.get(name, 'in {}').format(value)}" for name, value in told])
    text = pick(rng, _WISHES).format(wish=_wish(sheet.kind.query, wanted), choice=choice)
    return Annotation(
        instruction=text,
        attributes=tuple([trait.attribute for trait in wanted]),
        values=tuple([value for _, value in told]),
        shown=tuple([f"{name}: {value}" for name, value in chosen]),
    )
