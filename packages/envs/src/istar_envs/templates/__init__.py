"""Prompt templates: data in TOML files, versioned by name; a published name never changes its text.

A template is filled in one pass, so text from the world or the model cannot inject placeholders.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from istar_envs.actions import Grammar
from istar_envs.errors import ConfigError, suggest

Part = str | NDArray[np.uint8]
"""A piece of a message: text, or a picture uint8[height, width, 3]."""

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_FIELDS = frozenset({"role", "task", "step", "history", "observation", "action", "admissible", "number"})


class Template(BaseModel):
    """The texts around an episode.

    Placeholders: ``{role} {task} {step} {history} {observation} {admissible}``; in
    ``history_item`` also ``{number}`` and ``{action}``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    grammar: Grammar
    system: str = ""
    """System message; empty for none."""
    turn: str
    """User message of a step whose prompt holds a window of the past."""
    history_item: str = ""
    """One past step inside ``{history}``."""
    opening: str
    """First user message of a full dialogue."""
    continuation: str
    """Later user messages of a full dialogue."""


def fill(text: str, values: Mapping[str, str | Sequence[Part]]) -> list[Part]:
    """Fill a template in one pass.

    Args:
        text: Text with ``{name}`` placeholders.
        values: What to put there: text, or a sequence of texts and pictures.

    Returns:
        Texts and pictures in order; neighbouring texts are joined, empty ones dropped.

    Raises:
        ConfigError: If a placeholder has no value.
    """
    parts: list[Part] = []
    position = 0
    for match in _PLACEHOLDER.finditer(text):
        name = match.group(1)
        if name not in values:
            raise ConfigError(f"template placeholder {{{name}}} has no value.{suggest(name, values)}")
        value = values[name]
        for part in (text[position : match.start()], *([value] if isinstance(value, str) else value)):
            _append(parts, part)
        position = match.end()
    _append(parts, text[position:])
    return parts


def content_of(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Turn parts into the ``content`` of a chat message: a string if there is no picture."""
    if all(isinstance(part, str) for part in parts):
        return "".join(str(part) for part in parts)
    return [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}
        for part in parts
    ]


@cache
def load_template(name: str) -> Template:
    """Load a shipped template by name, or one of your own by path.

    Args:
        name: ``think-v1``, ``act-v1``, ``bare-v1`` … or the path of a ``.toml`` file.

    Raises:
        ConfigError: If it does not exist or breaks the format.
    """
    folder = resources.files(__name__)
    shipped = sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))
    if name in shipped:
        raw = (folder / f"{name}.toml").read_bytes()
    elif name.endswith(".toml") and Path(name).is_file():
        raw = Path(name).read_bytes()
    else:
        raise ConfigError(f"unknown prompt template {name!r}.{suggest(name, shipped)}")
    try:
        text = raw.decode("utf-8")
        template = Template.model_validate({"name": name, **tomllib.loads(text)})
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigError(f"prompt template {name!r} cannot be read: {error}") from error
    unknown = set(_PLACEHOLDER.findall(text)) - _FIELDS
    if unknown:
        raise ConfigError(
            f"prompt template {name!r}: unknown placeholder(s) {sorted(unknown)}. Known: {sorted(_FIELDS)}."
        )
    return template


def _append(parts: list[Part], part: Part) -> None:
    if not isinstance(part, str):
        parts.append(part)
    elif part:
        if parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
