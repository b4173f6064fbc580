"""Where the official data for tests is, if it is there at all."""

import os
from pathlib import Path

import pytest

OFFICIAL_DATA = Path(
    os.environ.get("ISTAR_SHARED_DATA", Path(__file__).parents[1].parent / "shared" / "data")
)
"""``shared/data`` beside the clone, or the folder that ISTAR_SHARED_DATA names."""

WEBSHOP = OFFICIAL_DATA / "webshop"
needs_webshop = pytest.mark.skipif(not WEBSHOP.is_dir(), reason=f"official WebShop data not at {WEBSHOP}")

SOTOPIA = OFFICIAL_DATA / "sotopia"
needs_sotopia = pytest.mark.skipif(not SOTOPIA.is_dir(), reason=f"official SOTOPIA data not at {SOTOPIA}")
