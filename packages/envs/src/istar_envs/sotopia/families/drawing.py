"""Random draws and the word lists that the families draw from."""

import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, TypeVar

from istar_envs.seeding import CounterRng

T = TypeVar("T")


def pick(rng: CounterRng, things: Sequence[T]) -> T:
    """Draw one of some things."""
    return things[rng.below(len(things))]


def between(rng: CounterRng, low: int, high: int) -> int:
    """Draw an integer in [low, high]."""
    return low + rng.below(high - low + 1)


def sample(rng: CounterRng, things: Sequence[T], count: int) -> list[T]:
    """Draw some things without replacement, in random order."""
    left = list(things)
    return [left.pop(rng.below(len(left))) for _ in range(count)]


@lru_cache(maxsize=8)
def word_lists(name: str) -> Mapping[str, Any]:
    """Read one of the TOML files of this package, once."""
    return tomllib.loads((resources.files(__package__) / "data" / f"{name}.toml").read_text("utf-8"))


def listed(parts: Sequence[str]) -> str:
    """Write a list in words: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def with_article(noun: str) -> str:
    """Put ``a`` or ``an`` before a noun."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
