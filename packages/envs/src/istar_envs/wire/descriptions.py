"""Spaces and languages as JSON, so that a client has the very same ones without asking again.

Only classes listed here travel, each as its name and the arguments it is made with: nothing that a server
says makes a client run other code.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import gymnasium as gym
import numpy as np

from istar_envs.errors import EnvError
from istar_envs.wire.values import from_wire, to_wire

_CLASSES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "AnyText": ("istar_envs.spaces", ()),
    "ShopActions": ("istar_envs.webshop.spaces", ("asins",)),
    "PageFacts": ("istar_envs.webshop.spaces", ()),
    "SpeechActions": ("istar_envs.sotopia.spaces", ("protocol",)),
    "SokobanLanguage": ("istar_envs.sokoban.language", ("visual", "coordinates")),
    "WebShopLanguage": ("istar_envs.webshop.language", ()),
    "BrowserLanguage": ("istar_envs.webshop.browser", ()),
    "SotopiaLanguage": ("istar_envs.sotopia.language", ("protocol",)),
}
"""Module and arguments by class name; each argument is also an attribute of the object."""


def describe(thing: Any) -> dict[str, Any]:
    """Describe a space or a language.

    Returns:
        ``{"type": name, …}`` with the arguments that make an equal one.

    Raises:
        TypeError: If its class does not travel.
    """
    if isinstance(thing, gym.spaces.Discrete):
        return {"type": "Discrete", "n": int(thing.n), "start": int(thing.start)}
    if isinstance(thing, gym.spaces.Box):
        low, high = (_bound(bound) for bound in (thing.low, thing.high))
        return {"type": "Box", "low": low, "high": high, "shape": list(thing.shape), "dtype": thing.dtype.str}
    name = type(thing).__name__
    if name not in _CLASSES or type(thing).__module__ != _CLASSES[name][0]:
        raise TypeError(f"a {type(thing).__module__}.{name} cannot be described to a client")
    return {"type": name, **{key: to_wire(getattr(thing, key)) for key in _CLASSES[name][1]}}


def build(description: Mapping[str, Any]) -> Any:
    """Make the space or language of a description.

    Raises:
        EnvError: If it names nothing that is known here.
    """
    arguments = {key: from_wire(value) for key, value in description.items() if key != "type"}
    name = description.get("type")
    try:
        if name == "Discrete":
            return gym.spaces.Discrete(**arguments)
        if name == "Box":
            arguments["shape"], arguments["dtype"] = tuple(arguments["shape"]), np.dtype(arguments["dtype"])
            return gym.spaces.Box(**arguments)
        module, keys = _CLASSES[str(name)]
        return getattr(import_module(module), str(name))(**{key: arguments[key] for key in keys})
    except (KeyError, TypeError, ValueError) as error:
        raise EnvError(
            f"the server describes a {name!r} that cannot be made here ({error!r}). Use the same version of "
            "istar-envs on both sides."
        ) from error


def _bound(values: Any) -> Any:
    """Return a bound as one number if it is the same everywhere."""
    first = values.flat[0]
    return to_wire(first.item() if (values == first).all() else values)
