"""Infos of many episodes as Gymnasium's vector environments report them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_NUMBERS: Final = (bool, int, float)


def stack_infos(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the infos of all rows together, with Gymnasium's mask of each key; every row has every key.

    Args:
        rows: One ``info`` for each row.

    Returns:
        An array of length ``rows`` and its ``_key`` mask for each key.
    """
    everywhere = np.ones(len(rows), np.bool_)
    infos: dict[str, Any] = {}
    for key in rows[0]:
        infos[key] = _array([row[key] for row in rows])
        infos[f"_{key}"] = everywhere
    return infos


def _array(values: list[Any]) -> NDArray[Any]:
    if all(type(value) in _NUMBERS for value in values):
        return np.array(values)
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
        array[row] = value
    return array
