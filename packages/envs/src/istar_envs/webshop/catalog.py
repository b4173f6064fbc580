"""A catalogue on disk: any number of processes share one copy.

Also the format of the store, which ``build.py`` writes. A catalogue holds products only; the search
index and the goals in the same folder have their own readers. Small arrays are memory-mapped; product
records are read one at a time, since mapped pages would pile up in the memory of every process.
"""

import json
import os
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Final
from weakref import WeakValueDictionary, finalize

import numpy as np
from numpy.typing import NDArray

from istar_envs.errors import ConfigError, MissingAsset
from istar_envs.webshop.products import Annotation, OptionGroup, Product

FORMAT: Final = 1
"""Version of the store, search index and goals included; a reader takes its own version only."""
META: Final = "meta.json"
PRODUCTS: Final = "products.bin"
OFFSETS: Final = "offsets.npy"
"""Where each product's record begins in ``PRODUCTS``, and where the last one ends."""
ASINS: Final = "asins.npy"
ASIN_ORDER: Final = "asin_order.npy"
"""Rows by ascending asin."""
INDEX: Final = "index"
"""Folder of the search index."""

CACHED_PRODUCTS: Final = 1024
"""Products that one ``Catalog`` keeps in memory."""

_OPEN: Final = WeakValueDictionary[tuple[Path, int, int], "Catalog"]()
_LOCK: Final = Lock()
_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode_product(product: Product) -> bytes:
    """Write a product as a compact JSON list in ASCII: its fields in order, without their names."""
    groups = [(group.name, group.values, group.images) for group in product.options]
    annotations = [
        (note.instruction, note.attributes, note.values, note.shown) for note in product.annotations
    ]
    return _encode(
        (
            product.asin,
            product.title,
            product.description,
            product.bullets,
            product.category,
            product.query,
            product.breadcrumb,
            product.prices,
            product.is_priced,
            product.image,
            product.rating,
            groups,
            product.attributes,
            product.instruction,
            product.instruction_attributes,
            annotations,
        )
    ).encode("ascii")


def decode_product(record: bytes) -> Product:
    """Read what ``encode_product`` wrote."""
    fields = json.loads(record)
    asin, title, description, bullets, category, query, breadcrumb, prices, *others = fields
    is_priced, image, rating, groups, attributes, instruction, instruction_attributes, annotations = others
    return Product(
        asin=asin,
        title=title,
        description=description,
        bullets=tuple(bullets),
        category=category,
        query=query,
        breadcrumb=breadcrumb,
        prices=tuple(prices),
        is_priced=is_priced,
        image=image,
        rating=rating,
        options=tuple([OptionGroup(name, tuple(values), tuple(images)) for name, values, images in groups]),
        attributes=tuple(attributes),
        instruction=instruction,
        instruction_attributes=tuple(instruction_attributes),
        annotations=tuple(
            [
                Annotation(text, tuple(wanted), tuple(values), tuple(shown))
                for text, wanted, values, shown in annotations
            ]
        ),
    )


def is_store(folder: Path) -> bool:
    """Whether a folder holds a store, of whatever version."""
    return (folder / META).is_file()


class Catalog:
    """The products of a store, in row order; read-only and safe to share between threads.

    Opening reads no product and makes no object per product. Pickling and copying keep the folder only.

    Args:
        folder: A folder that ``build_store`` made.

    Raises:
        MissingAsset: If there is no store in the folder.
        ConfigError: If the store is damaged or of another version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        meta = _checked_meta(self.folder)
        self.name: str = meta["name"]
        self.fingerprint: str = meta["fingerprint"]
        self._file = os.open(self.folder / PRODUCTS, os.O_RDONLY)
        finalize(self, os.close, self._file).atexit = False
        self._offsets = _mapped(self.folder / OFFSETS)
        self._asins = _mapped(self.folder / ASINS)
        self._order = _mapped(self.folder / ASIN_ORDER)
        self._cached: Callable[[int], Product] = lru_cache(CACHED_PRODUCTS)(self._read)

    def __len__(self) -> int:
        return len(self._asins)

    def __repr__(self) -> str:
        return f"Catalog({self.name!r}, {len(self):,} products, {str(self.folder)!r})"

    def __reduce__(self) -> tuple[Callable[[Path], "Catalog"], tuple[Path]]:
        return shared_catalog, (self.folder,)

    def product(self, row: int) -> Product:
        """Return the product of a row; the last ``CACHED_PRODUCTS`` ones are kept in memory.

        Raises:
            IndexError: If the row is not in [0, len).
        """
        return self._cached(row)

    def asin(self, row: int) -> str:
        """Return the asin of a row without reading its product."""
        return str(self._asins[row], "ascii")

    def row(self, asin: str) -> int | None:
        """Return the row of an asin in any case, or None if the catalogue lacks it."""
        try:
            key = asin.encode("ascii").upper()
        except UnicodeEncodeError:
            return None
        place = bisect_left(self._order, key, key=self._asins.__getitem__)
        if place == len(self) or self._asins[self._order[place]] != key:
            return None
        return int(self._order[place])

    def _read(self, row: int) -> Product:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is outside the {len(self)} products of catalogue {self.name!r}")
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        try:
            return decode_product(os.pread(self._file, end - start, start))
        except (ValueError, TypeError) as error:
            raise _damaged(self.folder, f"product {row} cannot be read ({error})") from error


def shared_catalog(folder: Path) -> Catalog:
    """Open a store, or return the object of this process that has it open already.

    Raises:
        MissingAsset: If there is no store in the folder.
        ConfigError: If the store is damaged or of another version.
    """
    folder = folder.resolve()
    if not is_store(folder):
        raise _missing(folder)
    written = (folder / META).stat()
    key = (folder, written.st_ino, written.st_mtime_ns)
    with _LOCK:
        catalog = _OPEN.get(key)
        if catalog is None:
            catalog = _OPEN[key] = Catalog(folder)
        return catalog


def _checked_meta(folder: Path) -> dict[str, Any]:
    """Read what a store says about itself, and compare version and file sizes with it."""
    if not is_store(folder):
        raise _missing(folder)
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_bytes())
        version, sizes = meta["format"], dict(meta["files"])
        meta["name"], meta["fingerprint"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(folder, f"{META} cannot be read ({error!r})") from error
    if version != FORMAT:
        raise _damaged(folder, f"its format is {version}, this program reads {FORMAT}")
    for name, size in sizes.items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else "no"
        if found != size:
            raise _damaged(folder, f"{name} has {found} bytes instead of {size}")
    return meta


def _missing(folder: Path) -> MissingAsset:
    return MissingAsset(
        f"no catalogue store in {folder}: {META} is missing. Correct the path, or build the store."
    )


def _damaged(folder: Path, problem: str) -> ConfigError:
    return ConfigError(
        f"catalogue store {folder} cannot be used: {problem}. Delete the folder and build the store again; "
        "a store in the cache folder is built anew when its catalogue is next opened."
    )


def _mapped(path: Path) -> NDArray[Any]:
    """Map an array; the plain view is several times quicker to index than a ``memmap``."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r").view(np.ndarray)
    except (OSError, ValueError) as error:
        raise _damaged(path.parent, f"{path.name} is no array file ({error})") from error
    return array
