"""Which goals are for training, development and test.

Two published schemes cut the shuffled goal list by position and let one product be on both sides. The
``strict`` scheme keeps products, and instruction texts, on one side.
"""

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from istar_envs.errors import EnvError, suggest
from istar_envs.seeding import derive_seed

SplitScheme = Literal["webshop-original", "istar", "strict"]
SplitName = Literal["train", "dev", "test"]

RANGES: Final[dict[str, dict[str, tuple[int, int | None]]]] = {
    "webshop-original": {"test": (0, 500), "dev": (500, 1500), "train": (1500, None)},
    "istar": {"test": (0, 500), "train": (500, None)},
}
"""First goal index of each split and the first one after it, as published."""

STRICT_CODES: Final = {"train": 0, "dev": 1, "test": 2}
"""How a goal's strict split is stored."""

NOWHERE: Final = 3
"""Stored for a human goal whose text also occurs in a split that counts more."""


def choose(scheme: str, name: str, strict_codes: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return the goals of a split in ascending order; empty if the goal list is too short.

    Args:
        scheme: ``webshop-original``, ``istar`` or ``strict``.
        name: ``train``, ``dev`` or ``test``.
        strict_codes: uint8[goals], strict split of every goal.

    Returns:
        int32[goals of the split], goal indices.

    Raises:
        EnvError: If the scheme is unknown or has no such split.
    """
    if scheme == "strict" and name in STRICT_CODES:
        return np.flatnonzero(strict_codes == STRICT_CODES[name]).astype(np.int32)
    if scheme in RANGES and name in RANGES[scheme]:
        first, end = RANGES[scheme][name]
        total = len(strict_codes)
        return np.arange(first, total if end is None else min(end, total), dtype=np.int32)
    if scheme not in {*RANGES, "strict"}:
        raise EnvError(
            f'no split scheme "{scheme}" (option split_scheme).{suggest(scheme, [*RANGES, "strict"])}'
        )
    known = RANGES.get(scheme, STRICT_CODES)
    raise EnvError(f'scheme "{scheme}" has no split "{name}" (option split).{suggest(name, known)}')


def strict_code(key: str) -> int:
    """Return the strict split of everything that shares a key: train 80 %, dev 10 %, test 10 %."""
    part = derive_seed(0, "strict split", key) % 10
    return STRICT_CODES["test"] if part == 0 else STRICT_CODES["dev"] if part == 1 else STRICT_CODES["train"]


def without_repeats(codes: NDArray[np.uint8], texts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Take a text that occurs in several strict splits out of all but the one that counts most.

    Test counts more than dev, and dev more than train.

    Args:
        codes: uint8[goals], strict split of each goal.
        texts: int64[goals], a hash of each goal's instruction.

    Returns:
        uint8[goals], the codes with ``NOWHERE`` for what was taken out.
    """
    _, which = np.unique(texts, return_inverse=True)
    highest = np.zeros(len(codes), dtype=np.uint8)
    np.maximum.at(highest, which, codes)
    return np.where(codes == highest[which], codes, np.uint8(NOWHERE))
