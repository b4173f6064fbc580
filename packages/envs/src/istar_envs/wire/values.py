"""Values as JSON that give back exactly what went in.

JSON has neither arrays nor tuples, infinities or numbers as keys. Such a value becomes an object with one
key that begins with ``$``. Floats are written with all their digits and keys keep their order.
"""

import base64
import binascii
import io
import json
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final, Literal

import numpy as np
import orjson
from PIL import Image

Pictures = Literal["png", "raw"]
"""How pictures, uint8[height, width, 3], travel: compressed, or byte by byte as any other array."""

_PLAIN: Final = frozenset({str, int, bool, type(None)})
_NUMERIC_KINDS: Final = "biufc"
_MAX_DEPTH: Final = 64

_write_any: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode


def dumps(value: Any) -> str:
    """Write what ``to_wire`` returned as JSON."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # lone surrogates, integers of more than 64 bits
        return _write_any(value)


def to_wire(value: Any, pictures: Pictures = "png") -> Any:
    """Turn a value into what JSON can hold.

    Args:
        value: Texts, numbers, lists, tuples, dictionaries and NumPy values, in any nesting.
        pictures: How pictures travel.

    Raises:
        TypeError: If the value, or one inside it, is of another type.

    Example:
        >>> to_wire({"moves": ("up", 2), "reward": float("nan")})
        {'moves': {'$tuple': ['up', 2]}, 'reward': {'$float': 'nan'}}
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    writer = _WRITERS.get(kind)
    if writer is not None:
        return writer(value, pictures)
    if isinstance(value, np.generic):
        return {"$scalar": _array_parts(np.asarray(value))}
    raise TypeError(f"a value of type {kind.__name__} cannot be sent: {value!r:.80}")


def from_wire(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Turn what a stranger sent back into the value that it stands for; pictures are not accepted.

    Args:
        value: What JSON held.
        depth: How many levels of nesting are read.

    Raises:
        ValueError: If it stands for no value or is nested too deeply.
    """
    kind = type(value)
    if kind is list:
        return [from_wire(item, _deeper(depth)) for item in value]
    if kind is dict:
        inner = {key: from_wire(item, _deeper(depth)) for key, item in value.items()}
        return _revive(inner, _READERS)
    return value


def loads(text: str | bytes) -> Any:
    """Read JSON written by ``dumps(to_wire(value))`` back into the value.

    Raises:
        ValueError: If the text is no such JSON.
    """
    return json.loads(text, object_hook=_revive_all)


def _deeper(depth: int) -> int:
    if depth < 1:
        raise ValueError(f"a value is nested more than {_MAX_DEPTH} levels deep")
    return depth - 1


def _write_float(value: float, _: Pictures) -> Any:
    return value if isfinite(value) else {"$float": repr(value)}


def _write_list(value: list[Any], pictures: Pictures) -> list[Any]:
    if _PLAIN.issuperset(map(type, value)):
        return value
    return [
        item
        if (kind := type(item)) in _PLAIN or (kind is float and isfinite(item))
        else to_wire(item, pictures)
        for item in value
    ]


def _write_tuple(value: tuple[Any, ...], pictures: Pictures) -> dict[str, Any]:
    return {"$tuple": _write_list(list(value), pictures)}


def _has_plain_keys(value: dict[Any, Any]) -> bool:
    """Whether all keys are texts that mean nothing special; almost always, and then found fast."""
    try:
        return "$" not in "".join(value) or not any(key[:1] == "$" for key in value)
    except TypeError:
        return False


def _write_dict(value: dict[Any, Any], pictures: Pictures) -> dict[str, Any]:
    if not _has_plain_keys(value):
        return {"$dict": [[to_wire(key), to_wire(item, pictures)] for key, item in value.items()]}
    return {
        key: item
        if (kind := type(item)) in _PLAIN or (kind is float and isfinite(item))
        else to_wire(item, pictures)
        for key, item in value.items()
    }


def _write_array(value: np.ndarray[Any, Any], pictures: Pictures) -> dict[str, Any]:
    if (
        pictures == "png"
        and value.dtype == np.uint8
        and value.ndim == 3
        and value.shape[2] == 3
        and value.size
    ):
        buffer = io.BytesIO()
        Image.fromarray(value).save(buffer, format="PNG", compress_level=1)
        return {"$png": base64.b64encode(buffer.getvalue()).decode("ascii")}
    return {"$array": _array_parts(value)}


def _array_parts(value: np.ndarray[Any, Any]) -> dict[str, Any]:
    if value.dtype.kind not in _NUMERIC_KINDS:
        raise TypeError(f"an array of dtype {value.dtype} cannot be sent")
    data = base64.b64encode(value.tobytes()).decode("ascii")
    return {"dtype": value.dtype.str, "shape": list(value.shape), "data": data}


_WRITERS: Final[Mapping[type, Callable[[Any, Pictures], Any]]] = {
    float: _write_float,
    list: _write_list,
    tuple: _write_tuple,
    dict: _write_dict,
    np.ndarray: _write_array,
}


def _revive(value: dict[str, Any], readers: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Return what an object stands for: itself, unless its only key begins with ``$``."""
    if len(value) != 1:
        return value
    ((key, content),) = value.items()
    if key[:1] != "$":
        return value
    reader = readers.get(key)
    if reader is None:
        raise ValueError(f"{key!r} stands for no value; known: {', '.join(readers)}")
    try:
        return reader(content)
    except (TypeError, KeyError, AttributeError, binascii.Error, OSError) as error:
        raise ValueError(f"what stands after {key!r} cannot be read: {error}") from error


def _revive_all(value: dict[str, Any]) -> Any:
    return _revive(value, _ALL_READERS)


def _read_array(parts: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    dtype = np.dtype(str(parts["dtype"]))
    if dtype.kind not in _NUMERIC_KINDS:
        raise ValueError(f"dtype {dtype} holds no numbers")
    data = base64.b64decode(parts["data"], validate=True)
    return np.frombuffer(bytearray(data), dtype).reshape([int(size) for size in parts["shape"]])


def _read_float(text: str) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(f"{text!r} is none of nan, inf and -inf")
    return float(text)


def _read_picture(data: str) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(base64.b64decode(data, validate=True)), formats=("PNG",)) as picture:
        return np.array(picture, np.uint8)


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "$float": _read_float,
    "$tuple": tuple,
    "$dict": dict,
    "$array": _read_array,
    "$scalar": lambda parts: _read_array(parts)[()],
}
_ALL_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {**_READERS, "$png": _read_picture}
