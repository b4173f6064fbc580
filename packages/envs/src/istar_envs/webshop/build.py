"""Turn a stream of products into a store: products, search index and goals, all or nothing."""

import glob
import hashlib
import json
import logging
import re
import secrets
import shutil
import time
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from istar_envs.errors import ConfigError, EnvError
from istar_envs.webshop import catalog
from istar_envs.webshop.catalog import Catalog, encode_product, is_store
from istar_envs.webshop.goals import GoalWriter
from istar_envs.webshop.index_writer import IndexWriter
from istar_envs.webshop.products import Product

STALE_S: Final = 3600.0
"""Seconds without a change after which a draft counts as left behind by a killed build."""

_ASIN: Final = re.compile(r"[!-`{-~]{1,10}")
_LOG_EVERY: Final = 100_000
_logger = logging.getLogger(__name__)


def build_store(folder: Path, products: Iterable[Product], *, name: str) -> None:
    """Write a store in one pass over the products.

    Everything is written to a draft beside the folder, which takes its place at the end: no one ever
    sees half a store, and of several processes that build the same store one wins and all succeed.
    Drafts that a killed build left behind are removed.

    Args:
        folder: Where the store will be; it must be absent, empty, or hold a store of these products.
        products: The products in row order; their asins are upper case and differ.
        name: Name of the catalogue.

    Raises:
        ConfigError: If the folder holds anything else, if there are no products, or if an asin
            is not one or comes twice.
        EnvError: If the files cannot be written.
    """
    folder = folder.absolute()
    if folder.exists() and not is_store(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} is in use and is no catalogue store. Delete it or choose another folder."
        )
    draft = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.draft")
    try:
        _remove_stale(folder)
        draft.mkdir(parents=True)
        fingerprint = _write(draft, products, name)
        _publish(draft, folder, fingerprint)
    except OSError as error:
        raise EnvError(
            f"cannot build catalogue store {folder}: {error}. Free some space or choose a folder that can be "
            "written (environment variable ISTAR_CACHE for the cache folder)."
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(draft: Path, products: Iterable[Product], name: str) -> str:
    """Fill a draft and return the fingerprint of its products."""
    offsets, asins, digest = array("Q", [0]), bytearray(), hashlib.sha256()
    index, goals = IndexWriter(draft / catalog.INDEX), GoalWriter()
    with (draft / catalog.PRODUCTS).open("wb", buffering=1 << 20) as file:
        for row, product in enumerate(products):
            if not _ASIN.fullmatch(product.asin):
                raise ConfigError(
                    f"product {row} of {name!r}: {product.asin!r} is no asin. "
                    "Use 1 to 10 visible ASCII characters without small letters."
                )
            record = encode_product(product)
            file.write(record)
            digest.update(record)
            offsets.append(offsets[-1] + len(record))
            asins += product.asin.encode("ascii").ljust(10, b"\0")
            index.add(product.search_text)
            goals.add(row, product)
            if (row + 1) % _LOG_EVERY == 0:
                _logger.info("%s: %d products read", name, row + 1)
    if not asins:
        raise ConfigError(f"catalogue {name!r} has no products: a store needs at least one.")
    np.save(draft / catalog.OFFSETS, np.frombuffer(offsets, np.uint64))
    index.finish(_write_asins(draft, np.frombuffer(asins, "S10"), name))
    goals.finish(draft)
    _write_meta(draft, name, digest.hexdigest())
    return digest.hexdigest()


def _write_asins(draft: Path, asins: NDArray[np.bytes_], name: str) -> NDArray[np.int32]:
    """Write the asins and their order; return the rank of each row's asin, int32[products]."""
    order = np.argsort(asins, kind="stable").astype(np.int32)
    ascending = asins[order]
    twice = np.flatnonzero(ascending[1:] == ascending[:-1])
    if len(twice):
        first, second = order[twice[0]], order[twice[0] + 1]
        raise ConfigError(
            f"products {first} and {second} of {name!r} have the same asin {str(asins[first], 'ascii')}. "
            "Keep one of them."
        )
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order), dtype=np.int32)
    np.save(draft / catalog.ASINS, asins)
    np.save(draft / catalog.ASIN_ORDER, order)
    return rank


def _write_meta(draft: Path, name: str, fingerprint: str) -> None:
    """Write what a reader checks, last of all: version and size of every file."""
    files = sorted(path for path in draft.rglob("*") if path.is_file())
    counts = {
        kind: len(np.load(draft / f"goals-{kind}.npy", mmap_mode="r")) for kind in ("synthetic", "human")
    }
    meta = {
        "format": catalog.FORMAT,
        "name": name,
        "fingerprint": fingerprint,
        "products": len(np.load(draft / catalog.ASINS, mmap_mode="r")),
        "goals": counts,
        "files": {path.relative_to(draft).as_posix(): path.stat().st_size for path in files},
    }
    (draft / catalog.META).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")


def _publish(draft: Path, folder: Path, fingerprint: str) -> None:
    """Give the draft its name; a store with the same products that is there already stays."""
    try:
        draft.replace(folder)
    except OSError:
        if not is_store(folder):
            raise
        if Catalog(folder).fingerprint != fingerprint:
            raise ConfigError(
                f"{folder} holds a store of other products. Delete it or choose another folder."
            ) from None


def _remove_stale(folder: Path) -> None:
    for draft in folder.parent.glob(f"{glob.escape(folder.name)}.*.draft"):
        if time.time() - _last_change(draft) > STALE_S:
            shutil.rmtree(draft, ignore_errors=True)


def _last_change(draft: Path) -> float:
    """Return when anything in a draft was last written, in seconds since 1970; now if it vanishes."""
    try:
        return max(path.stat().st_mtime for path in (draft, *draft.rglob("*")))
    except FileNotFoundError:
        return time.time()
