"""Configurations from YAML files and the command line.

A file may name a ``base`` file next to it, whose values it overrides, so that it states only what
differs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from istar_envs.errors import ConfigError, suggest
from istar_trainer.config import RunConfig

_Model = TypeVar("_Model", bound=BaseModel)


def load_config(path: Path, *, algorithm: str | None = None, credit: str | None = None) -> RunConfig:
    """Read a configuration file.

    Args:
        path: YAML file.
        algorithm: Another algorithm than the file's, with its defaults and the file's ``loss``.
        credit: Another credit than the file's, with its defaults.

    Raises:
        ConfigError: If a file cannot be read, or holds unknown keys or values out of range; names
            the key and the nearest known one.
    """
    tree = read_tree(path)
    if algorithm is not None:
        tree["algorithm"] = _switch(tree.get("algorithm"), algorithm, keep=("loss",))
    if credit is not None:
        tree["credit"] = _switch(tree.get("credit"), credit, keep=())
    return validated(RunConfig, tree, str(path))


def validated(model: type[_Model], tree: Mapping[str, Any], where: str) -> _Model:
    """Make a configuration from plain values.

    Args:
        model: Its class.
        tree: Plain values.
        where: What the values are from, for the message.

    Raises:
        ConfigError: If there are unknown keys or values out of range; names all of them, and the
            nearest known key.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        mistakes = "; ".join(_explain(e, model) for e in error.errors())
        raise ConfigError(f"{where}: {mistakes}") from error


def read_tree(path: Path, seen: Sequence[Path] = ()) -> dict[str, Any]:
    """Read a YAML file over its ``base``, as plain values.

    Raises:
        ConfigError: If a file is missing, is no mapping, or names itself as base.
    """
    if path in seen:
        raise ConfigError(f"{path}: base files name each other: {' → '.join(map(str, [*seen, path]))}.")
    tree = read_mapping(path)
    base = tree.pop("base", None)
    if base is None:
        return tree
    return merge(read_tree(path.parent / str(base), [*seen, path]), tree)


def read_mapping(path: Path) -> dict[str, Any]:
    """Read one YAML file as plain values, as it stands.

    Raises:
        ConfigError: If the file is missing or is no mapping.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        near = (
            suggest(path.name, (p.name for p in path.parent.glob("*.yaml"))) if path.parent.is_dir() else ""
        )
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}.{near}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path}: a configuration is a mapping of keys to values, not {type(tree).__name__}."
        )
    return tree


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one tree of values over another; a section with another ``type`` replaces the whole section.

    A bare word stands for the section of that ``type``, so keys can be laid over it too.
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, str) and isinstance(value, Mapping):
            old = {"type": old}
        if not isinstance(old, Mapping) or not isinstance(value, Mapping):
            merged[key] = value
        elif value.get("type", old.get("type")) == old.get("type"):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def _switch(section: Any, word: str, *, keep: Sequence[str]) -> dict[str, Any]:
    """Choose another type for a section, keeping some of its keys."""
    old = section if isinstance(section, Mapping) else {"type": section}
    if old.get("type") == word:
        return dict(old)
    return {"type": word, **{key: old[key] for key in keep if key in old}}


def _explain(error: Any, model: type[BaseModel]) -> str:
    """Say what is wrong at which key."""
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] != "extra_forbidden":
        return f"{where or 'configuration'}: {error['msg']} (got {error['input']!r})"
    known = _keys_at(model, error["loc"][:-1])
    return f"unknown key {where}.{suggest(str(error['loc'][-1]), known)}"


def _keys_at(model: type[BaseModel], path: Sequence[Any]) -> list[str]:
    """Return the known keys of the section at a path; tags of unions are part of the path."""
    names = list(model.model_fields)
    options: list[type[BaseModel]] = [model]
    for part in path:
        fitting = [m.model_fields[part].annotation for m in options if part in m.model_fields]
        if fitting:
            options = [m for annotation in fitting for m in _models(annotation)]
        else:
            options = [
                m for m in options if m.model_fields.get("type") and m.model_fields["type"].default == part
            ]
        names = sorted({name for model in options for name in model.model_fields})
    return names


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the configuration classes inside a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]
