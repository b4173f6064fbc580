"""The fuzzy score of ``compat`` scoring, with a result that depends on no optional package.

It is the token-set ratio of thefuzz 0.19 on top of ``difflib``, as published.
"""

import re
from difflib import SequenceMatcher
from functools import lru_cache

_LATIN_1 = re.compile("[\x80-\xff]")
_NON_WORD = re.compile(r"\W")


@lru_cache(maxsize=65536)
def token_set_ratio(a: str, b: str) -> int:
    """Compare two texts as sets of words.

    Letters of U+0080–U+00FF are dropped, other non-word characters separate words, case is ignored.

    Returns:
        0 to 100; 100 whenever one set of words contains the other, 0 if either has no word.

    Example:
        >>> token_set_ratio("large", "x-large"), token_set_ratio("navy blue", "blue sky")
        (100, 71)
    """
    words_a, words_b = _words(a), _words(b)
    if not words_a or not words_b:
        return 0
    common = words_a & words_b
    if common and common in (words_a, words_b):
        return 100
    shared = " ".join(sorted(common))
    whole_a = f"{shared} {' '.join(sorted(words_a - common))}".strip()
    whole_b = f"{shared} {' '.join(sorted(words_b - common))}".strip()
    return max(_ratio(shared, whole_a), _ratio(shared, whole_b), _ratio(whole_a, whole_b))


def _words(text: str) -> set[str]:
    return set(_NON_WORD.sub(" ", _LATIN_1.sub("", text)).lower().split())


def _ratio(a: str, b: str) -> int:
    """Return the share of characters in matching blocks, in whole per cent."""
    return round(100 * SequenceMatcher(None, a, b).ratio()) if a and b else 0
