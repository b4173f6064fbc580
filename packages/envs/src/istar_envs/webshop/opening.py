"""Opens shops by the options of an environment; equal options share one shop in each process."""

from functools import lru_cache
from pathlib import Path
from typing import Any, Final, get_args

from istar_envs.errors import EnvError, require_known
from istar_envs.webshop.goals import GoalBook
from istar_envs.webshop.nouns import load_tagger
from istar_envs.webshop.products import GoalKind, ScoringName
from istar_envs.webshop.search import Bm25, SearchEngine
from istar_envs.webshop.shop import Shop
from istar_envs.webshop.sources import open_catalogue

SEARCHES: Final = ("bm25", "pyserini")
"""Search backends: the package's own, and Lucene itself."""


def open_shop(
    catalogue: str | Path = "generated",
    *,
    goals: GoalKind | str = "synthetic",
    scoring: ScoringName | str = "compat",
    search: str = "bm25",
    page_size: int = 10,
    show_attributes: bool = False,
    price_seed: int = 0,
    tagger: str = "auto",
) -> Shop:
    """Open a shop.

    Args:
        catalogue: Name or folder, as for ``sources.open_catalogue``.
        goals: ``synthetic`` or ``human``.
        scoring: ``compat`` or ``strict``.
        search: One of ``SEARCHES``.
        page_size: Products per page of results.
        show_attributes: Whether products have an Attributes page.
        price_seed: Seed of price caps and, in ``compat``, of prices inside a range.
        tagger: Noun tagger of ``compat`` scores: ``auto``, ``spacy`` or ``light``.

    Returns:
        The shop; the same object for equal options.

    Raises:
        EnvError: If an option is unknown or its value impossible.
        MissingAsset: If the catalogue or its search index is not there.
    """
    for option, value, known in (
        ("goals", goals, get_args(GoalKind)),
        ("scoring", scoring, get_args(ScoringName)),
        ("search", search, SEARCHES),
    ):
        require_known(option, value, known, "WebShop")
    if page_size < 1:
        raise EnvError(f"page_size must be at least 1, got {page_size} (WebShop, option page_size).")
    return _open(
        str(catalogue),
        goals=goals,
        scoring=scoring,
        search=search,
        page_size=page_size,
        show_attributes=show_attributes,
        price_seed=price_seed,
        tagger=tagger,
    )


@lru_cache(maxsize=32)
def _open(catalogue: str, **options: Any) -> Shop:
    catalog = open_catalogue(catalogue)
    engine: SearchEngine = Bm25(catalog.folder)
    if options["search"] == "pyserini":
        from istar_envs.webshop.lucene import LuceneEngine

        engine = LuceneEngine(catalog.folder / "lucene", catalog)
    return Shop(
        catalog=catalog,
        engine=engine,
        goals=GoalBook(catalog, options["goals"], scoring=options["scoring"], seed=options["price_seed"]),
        scoring=options["scoring"],
        tagger=load_tagger(options["tagger"] if options["scoring"] == "compat" else "light"),
        page_size=options["page_size"],
        show_attributes=options["show_attributes"],
    )
