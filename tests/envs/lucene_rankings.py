"""Ranks products with Lucene: run in the environment that scripts/lucene_env.sh makes.

Arguments: a catalogue's store, a JSON file of queries, and the JSON file of rankings to write.
"""

import json
import sys
from pathlib import Path

from istar_envs.webshop.catalog import Catalog
from istar_envs.webshop.lucene import LuceneEngine, build_lucene_index


def main(store: Path, queries: Path, rankings: Path) -> None:
    catalog = Catalog(store)
    build_lucene_index(catalog, store / "lucene")
    engine = LuceneEngine(store / "lucene", catalog)
    found = [engine.search(query) for query in json.loads(queries.read_text(encoding="utf-8"))]
    rankings.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
