"""Find a catalogue by name or path, and build its store when there is none yet."""

import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from istar_envs.cache import cache_folder
from istar_envs.errors import MissingAsset, suggest
from istar_envs.webshop.build import build_store
from istar_envs.webshop.catalog import FORMAT, Catalog, encode_product, is_store, shared_catalog
from istar_envs.webshop.generator import generate_products
from istar_envs.webshop.official import OfficialFiles, find_official, read_official
from istar_envs.webshop.products import Product

GENERATED: Final = "generated"
"""The catalogue that comes with the package: 1,000 made-up products."""

_SHIPPED: Final = Path(__file__).parent / "data" / GENERATED
_SAMPLE: Final = 100
_logger = logging.getLogger(__name__)


def open_catalogue(name: str | Path) -> Catalog:
    """Open a catalogue; every call with the same one returns the same object of this process.

    Args:
        name: One of

            - ``generated``: the 1,000 made-up products that come with the package;
            - ``generated-N``, such as ``generated-50000``: N made-up products, built into the cache
              folder at first use;
            - the folder of a store;
            - a folder with the official files, or the path of an official product file: built
              into the cache folder at first use, and again only when the files change.

    Raises:
        MissingAsset: If there is no such catalogue.
        ConfigError: If a store is damaged or an official file breaks its format.
        EnvError: If a store cannot be built.
    """
    if name == GENERATED:
        return shared_catalog(_SHIPPED)
    if match := re.fullmatch(r"generated-([1-9]\d{0,8})", str(name)):
        return _generated(int(match[1]))
    path = Path(name).expanduser()
    if is_store(path):
        return shared_catalog(path)
    if path.exists():
        return _official(find_official(path))
    raise MissingAsset(
        f'no catalogue "{name}": it is neither a known name nor the path of something.'
        f"{suggest(str(name), (GENERATED, 'generated-5000'))} "
        "Or give the folder of a store or of the official files."
    )


def _generated(size: int) -> Catalog:
    """The sample in the key makes a new store when the generator's words change."""
    sample = hashlib.sha256()
    for product in islice(generate_products(size, seed=0), _SAMPLE):
        sample.update(encode_product(product))
    name = f"{GENERATED}-{size}"
    return _built(f"{name}-{sample.hexdigest()[:16]}", name, lambda: generate_products(size, seed=0))


def _official(files: OfficialFiles) -> Catalog:
    name = files.products.stem
    return _built(f"{name}-{_content_key(files)}", name, lambda: read_official(files))


def _built(key: str, name: str, products: Callable[[], Iterable[Product]]) -> Catalog:
    folder = cache_folder() / "webshop" / f"{key}-v{FORMAT}"
    if not is_store(folder):
        _logger.info("building catalogue %s in %s; this happens once", name, folder)
        build_store(folder, products(), name=name)
    return shared_catalog(folder)


def _content_key(files: OfficialFiles) -> str:
    """Hash the files' bytes, or remember the hash of unchanged files: large ones take seconds to read."""
    paths = [path for path in (files.products, files.attributes, files.human) if path is not None]
    seen = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    note = cache_folder() / "webshop" / "known" / hashlib.sha256(repr(seen).encode()).hexdigest()
    if note.is_file():
        return note.read_text(encoding="ascii")
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    key = digest.hexdigest()[:16]
    _write_note(note, key)
    return key


def _write_note(note: Path, text: str) -> None:
    note.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=note.parent)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(text)
    Path(draft).replace(note)
