"""The sentences of the scripted people, from ``wording.toml``."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

from istar_envs.seeding import derive_seed

COMMON: Final = "said"
"""Sentences that fit any family."""


@cache
def lists(section: str) -> Mapping[str, tuple[str, ...]]:
    """Return the lists of one section by name."""
    text = (resources.files(__package__) / "wording.toml").read_text("utf-8")
    return {name: tuple(lines) for name, lines in tomllib.loads(text)[section].items()}


def sentence(section: str, name: str, *, task: str, turn: int, **fillings: str) -> str:
    """Choose a sentence and fill it in.

    Args:
        section: Family or role, or ``COMMON``.
        name: What it is said for.
        task: Task id; with the turn it decides between the sentences.
        turn: When it is said.
        fillings: What its placeholders stand for.
    """
    choices = lists(section)[name]
    chosen = choices[derive_seed(turn, "sentence", task) % len(choices)].format(**fillings)
    return chosen[0].upper() + chosen[1:]
