"""How ``strict`` goals, splits and scores compare texts: as values, and as phrases of whole words."""

import re
import unicodedata
from functools import lru_cache

_WORD = re.compile(r"\w+")
_SLASH = re.compile(r"\s*[/|]\s*")


@lru_cache(maxsize=16384)
def same_value(text: str) -> str:
    """Return the form in which two equal values agree: case, spaces and the sign between parts ignored.

    Example:
        >>> same_value(" Navy/ White ") == same_value("navy | white")
        True
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_SLASH.sub(" | ", folded).split())


@lru_cache(maxsize=4096)
def words_in(text: str) -> str:
    """Return the words of a text between single spaces, also at both ends, so that ``in`` finds phrases.

    Example:
        >>> words_in("non-slip") in words_in("A Non Slip mat")
        True
    """
    return f" {' '.join(_WORD.findall(unicodedata.normalize('NFKC', text).casefold()))} "
