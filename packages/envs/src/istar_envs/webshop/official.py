"""The published data files as products: a streaming reader with the published loading rules.

Fields that nobody reads, and the ids of the people who wrote the instructions, are left behind.
Price caps, hidden prices and goals are made elsewhere.
"""

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from istar_envs.errors import ConfigError, MissingAsset
from istar_envs.webshop.json_stream import read_list, read_mapping
from istar_envs.webshop.products import NO_ATTRIBUTES, UNPRICED, Annotation, OptionGroup, Product

PRODUCTS_STEM: Final = "items_shuffle"
ATTRIBUTES_STEM: Final = "items_ins_v2"
HUMAN_STEM: Final = "items_human_ins"

_FETCH: Final = '"istar-envs fetch webshop"'
_NOT_IN_A_PRICE: Final = re.compile(r"[^\d.]")
_ASIN: Final = re.compile(r"[!-~]{1,10}")


@dataclass(frozen=True, slots=True)
class OfficialFiles:
    """The files of one catalogue.

    Attributes:
        products: List of product records.
        attributes: Mined attributes and synthetic instructions by asin.
        human: Human instructions by asin; None for a catalogue without any.
    """

    products: Path
    attributes: Path
    human: Path | None


class _Mined(NamedTuple):
    attributes: tuple[str, ...]
    instruction: str
    instruction_attributes: tuple[str, ...]


class _Place(NamedTuple):
    """Which record of which file is being read, for error messages."""

    path: Path
    record: int | str

    def error(self, field: str, problem: str) -> ConfigError:
        return ConfigError(
            f'{self.path}: record {self.record}, field "{field}": {problem}. '
            f"Correct the record, or fetch the file again with {_FETCH}."
        )


def find_official(path: Path) -> OfficialFiles:
    """Find the official files that belong together.

    Args:
        path: A folder with ``items_shuffle*.json``, ``items_ins_v2*.json`` and, if wanted,
            ``items_human_ins*.json``; or the product file itself, which chooses between several
            sizes in one folder. The other two files have the same ending as the product file
            (such as ``_1000``) or none.

    Raises:
        MissingAsset: If the product file or its attribute file is not there.
        ConfigError: If the folder holds catalogues of several sizes.
    """
    products = _only_catalogue(path) if path.is_dir() else path
    if not products.is_file():
        raise MissingAsset(f"product file not found: {products}. Correct the path, or run {_FETCH}.")
    ending = products.stem.removeprefix(PRODUCTS_STEM)
    attributes = _companion(products, ATTRIBUTES_STEM, ending)
    if attributes is None:
        raise MissingAsset(
            f"no attribute file {ATTRIBUTES_STEM}{ending}.json beside {products}. "
            f"Put it there, or fetch all files with {_FETCH}."
        )
    return OfficialFiles(products, attributes, _companion(products, HUMAN_STEM, ending))


def _only_catalogue(folder: Path) -> Path:
    found = sorted(folder.glob(f"{PRODUCTS_STEM}*.json"))
    if not found:
        raise MissingAsset(
            f"no catalogue in {folder}: neither a store (meta.json) nor a product file "
            f"({PRODUCTS_STEM}*.json). Correct the path, or fetch the official files with {_FETCH}."
        )
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ConfigError(
            f"{folder} holds several catalogues: {names}. Name the file that you want, "
            f"such as {folder / found[0].name}."
        )
    return found[0]


def _companion(products: Path, stem: str, ending: str) -> Path | None:
    names = (f"{stem}{ending}.json", f"{stem}.json")
    return next((products.with_name(name) for name in names if products.with_name(name).is_file()), None)


def read_official(source: Path | OfficialFiles) -> Iterator[Product]:
    """Yield the products of the official files in file order.

    Records whose asin is ``nan`` or longer than ten characters are skipped, and so are all but the
    first of an asin. The product file is read as a stream; attributes and instructions are held in
    memory, about 0.5 kB per product, until their product has come.

    Args:
        source: What ``find_official`` takes, or the files themselves.

    Raises:
        MissingAsset: If a file is not there.
        ConfigError: If a record breaks the format; the message names file, record and field.
    """
    files = source if isinstance(source, OfficialFiles) else find_official(source)
    return _products(files)


def _products(files: OfficialFiles) -> Iterator[Product]:
    mined = {
        asin.upper(): _mined(value, _Place(files.attributes, asin))
        for asin, value in read_mapping(files.attributes)
    }
    written: dict[str, tuple[Annotation, ...]] = {}
    if files.human is not None:
        for asin, value in read_mapping(files.human):
            written[asin.upper()] = _annotations(value, _Place(files.human, asin))
    seen = set()
    for number, record in read_list(files.products):
        place = _Place(files.products, number)
        asin = _text(_object(record, place), "asin", place, is_needed=True)
        if asin == "nan" or len(asin) > 10:
            continue
        asin = asin.upper()
        if not _ASIN.fullmatch(asin):
            raise place.error("asin", f"{asin!r} is not made of visible ASCII characters")
        if asin not in seen:
            seen.add(asin)
            yield _product(
                record, place, asin=asin, mined=mined.pop(asin, None), annotations=written.pop(asin, ())
            )


def _product(
    record: dict[str, Any],
    place: _Place,
    *,
    asin: str,
    mined: _Mined | None,
    annotations: tuple[Annotation, ...],
) -> Product:
    prices = _prices(_text(record, "pricing", place), place)
    images = record.get("images")
    attributes, instruction, instruction_attributes = mined or _Mined(NO_ATTRIBUTES, "", ())
    return Product(
        asin=asin,
        title=_text(record, "name", place, is_needed=True),
        description=_text(record, "full_description", place),
        bullets=_texts(record, "small_description", place),
        category=_text(record, "category", place, is_needed=True),
        query=_text(record, "query", place, is_needed=True).lower().strip(),
        breadcrumb=_text(record, "product_category", place),
        prices=prices or (UNPRICED,),
        is_priced=bool(prices),
        image=_first_image(images, place),
        rating=_rating(record.get("average_rating")),
        options=_options(record.get("customization_options"), place),
        attributes=attributes,
        instruction=instruction,
        instruction_attributes=instruction_attributes,
        annotations=annotations,
    )


def _prices(pricing: str, place: _Place) -> tuple[float, ...]:
    """Read one price or the two ends of a range; () for a product without a price."""
    if not pricing.strip():
        return ()
    try:
        prices = tuple(float(_NOT_IN_A_PRICE.sub("", part)) for part in pricing.split("$")[1:3])
    except ValueError:
        prices = ()
    if not prices or not all(math.isfinite(price) for price in prices):
        raise place.error("pricing", f'{pricing!r} is no price such as "$9.98" or "$9.98 - $12.98"')
    return prices


def _first_image(images: Any, place: _Place) -> str:
    if not images:
        return ""
    if not isinstance(images, list) or not isinstance(images[0] or "", str):
        raise place.error("images", f"expected a list of addresses, not {_kind(images)}")
    return images[0] or ""


def _rating(value: Any) -> float | None:
    """Read a rating; whatever is no number from 0 to 5 counts as not rated."""
    try:
        rating = float(value)
    except (TypeError, ValueError):
        return None
    return rating if 0 <= rating <= 5 else None


def _options(choices: Any, place: _Place) -> tuple[OptionGroup, ...]:
    """Read what can be chosen; of two names that differ only in case the later one counts."""
    if not choices:
        return ()
    if not isinstance(choices, dict):
        raise place.error("customization_options", f"expected an object, not {_kind(choices)}")
    groups = {}
    for name, entries in choices.items():
        field = f"customization_options.{name}"
        if entries is None:
            continue
        if not isinstance(entries, list):
            raise place.error(field, f"expected a list, not {_kind(entries)}")
        groups[name.lower()] = OptionGroup(
            name=name.lower(),
            values=tuple([_option_value(entry, field, place) for entry in entries]),
            images=tuple([_option_image(entry, field, place) for entry in entries]),
        )
    return tuple(groups.values())


def _option_value(entry: Any, field: str, place: _Place) -> str:
    value = entry.get("value") if isinstance(entry, dict) else None
    if not isinstance(value, str):
        raise place.error(field, f'an entry has no text "value" (it is {str(entry)[:80]!r})')
    return value.strip().replace("/", " | ").lower()


def _option_image(entry: dict[str, Any], field: str, place: _Place) -> str:
    image = entry.get("image") or ""
    if not isinstance(image, str):
        raise place.error(field, f'"image" of an entry is {_kind(image)}, not a text')
    return image


def _mined(value: Any, place: _Place) -> _Mined:
    record = _object(value, place)
    has_attributes = record.get("attributes") is not None
    return _Mined(
        _phrases(record, "attributes", place) if has_attributes else NO_ATTRIBUTES,
        _text(record, "instruction", place),
        _phrases(record, "instruction_attributes", place),
    )


def _annotations(value: Any, place: _Place) -> tuple[Annotation, ...]:
    if not isinstance(value, list):
        raise place.error("(whole record)", f"expected a list of instructions, not {_kind(value)}")
    return tuple(
        Annotation(
            instruction=_text(_object(item, place), "instruction", place, is_needed=True),
            attributes=_phrases(item, "instruction_attributes", place),
            values=_texts(item, "instruction_options", place),
            shown=_texts(item, "options", place),
        )
        for item in value
    )


def _object(value: Any, place: _Place) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise place.error("(whole record)", f"expected an object, not {_kind(value)}")
    return value


def _text(record: dict[str, Any], field: str, place: _Place, *, is_needed: bool = False) -> str:
    """Read a text; null or an absent field is "" unless the text is needed."""
    value = record.get(field)
    if isinstance(value, str):
        return value
    if value is not None:
        raise place.error(field, f"expected a text, not {_kind(value)}")
    if is_needed:
        raise place.error(field, "it is missing")
    return ""


def _texts(record: dict[str, Any], field: str, place: _Place) -> tuple[str, ...]:
    """Read a list of texts: a bare text is a list of one, an absent field is empty, nulls are left out."""
    value = record.get(field)
    if isinstance(value, str):
        return (value,)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise place.error(field, f"expected a list of texts, not {_kind(value)}")
    texts = tuple([item for item in value if item is not None])
    for item in texts:
        if not isinstance(item, str):
            raise place.error(field, f"expected texts, but one item is {_kind(item)}")
    return texts


def _phrases(record: dict[str, Any], field: str, place: _Place) -> tuple[str, ...]:
    """Like ``_texts``, for phrases that many products share: each is held in memory once."""
    return tuple(map(sys.intern, _texts(record, field, place)))


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:80]!r}"
