"""Write the catalogue that comes with the package: ``python -m istar_envs.webshop.make_catalogue``.

The store is a product of ``generator.py`` and its word lists; run this whenever either changes.
"""

import logging
import shutil
from pathlib import Path
from typing import Final

from istar_envs.webshop.build import build_store
from istar_envs.webshop.catalog import Catalog
from istar_envs.webshop.generator import generate_products

NUM_PRODUCTS: Final = 1000
"""Products of the shipped catalogue."""

SHIPPED: Final = Path(__file__).parent / "data" / "generated"
"""Where the shipped catalogue lies."""

_logger = logging.getLogger(__name__)


def make_catalogue(folder: Path = SHIPPED) -> Catalog:
    """Build the shipped catalogue, in place of an older one.

    Args:
        folder: Where the store will be.

    Returns:
        The catalogue, opened.

    Raises:
        EnvError: If the files cannot be written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    build_store(folder, generate_products(NUM_PRODUCTS), name="generated")
    return Catalog(folder)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    _logger.info("%r", make_catalogue())
