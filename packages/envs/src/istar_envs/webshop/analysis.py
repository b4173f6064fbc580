"""From text to index terms, exactly as Lucene's English analysis does it.

Words by the Unicode text segmentation rules (UAX #29, with pictographs as words), a final 's cut off,
lower case, stop words out, Porter's stemmer. Letters newer than Unicode 12.1 count as letters here,
which Lucene does not know yet; the rare emoji built on # or * are not words here.
"""

import re
import sys
import unicodedata
from bisect import bisect_right
from functools import lru_cache
from typing import Final

from istar_envs.webshop.porter import stem

STOP_WORDS: Final = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there "
    "these they this to was will with".split()
)
"""The 33 words that are never indexed."""

_LONGEST: Final = 255
"""Longer words are cut into pieces of this many characters."""

_MARK: Final = "[xsz]*"
_LETTER: Final = f"a++{_MARK}(?:[:.']{_MARK}(?=[ah]))?"
_HEBREW: Final = f"h{_MARK}(?:'{_MARK}|\"{_MARK}(?=h)|[:.]{_MARK}(?=[ah]))?"
_DIGIT: Final = f"1++{_MARK}(?:[,.']{_MARK}(?=1))?"
_JOINER: Final = f"(?:_{_MARK})"
_RUN: Final = f"(?:(?:{_LETTER}|{_HEBREW}|{_DIGIT})+|(?:k{_MARK})+)"
_SHAPES: Final = re.compile(
    f"({_JOINER}*{_RUN}(?:{_JOINER}+{_RUN})*{_JOINER}*"
    f"|j{_MARK}|z?e{_MARK}(?:(?<=z)e{_MARK})*|[ts][txsz]*|r{_MARK}r{_MARK})|{_JOINER}+"
)
"""Words in a text whose characters are replaced by the letters of their classes (``_Classes``)."""
_ASCII: Final = re.compile(
    r"\w+(?:(?:(?<=[a-zA-Z])[.:'](?=[a-zA-Z])|(?<=[0-9])[.,;'](?=[0-9]))\w+)*", re.ASCII
)
"""The same for plain ASCII text."""

_CATEGORY_CLASSES: Final = {
    **dict.fromkeys(("Lu", "Ll", "Lt", "Lm", "Lo", "Nl"), "a"),
    **dict.fromkeys(("Mn", "Mc", "Me", "Cf"), "x"),
    "Nd": "1",
    "Pc": "_",
}
_RANGES_BY_CLASS: Final = {
    "a": "2C2-2D7 2DE-2DF 2ED-2FF 55B-55C 55E 5F3 24B6-24E9 A720-A78A AB5B 1F130-1F149 1F150-1F169 "
    "1F170-1F189",
    "h": "5D0-5F2 FB1D FB1F-FB28 FB2A-FB4F",
    "1": "66B",
    "_": "202F",
    ":": "3A B7 387 5F4 2027 FE13 FE55 FF1A",
    ",": "2C 3B 37E 589 60C-60D 66C 7F8 2044 FE10 FE14 FE50 FE54 FF0C FF1B",
    "'": "27",
    '"': "22",
    ".": "2E 2018-2019 2024 FE52 FF07 FF0E",
    "k": "3031-3035 309B-309C 30A0-30FA 30FC-30FF 31F0-31FF 32D0-32FE 3300-3357 FF66-FF9D 1B000 1B164-1B167",
    "j": "2E80-2FD5 3007 3021-3029 3038-303A 3041-3096 309D-309F 3400-4DB5 4E00-9FEF F900-FAD9 1B001-1B152 "
    "20000-2FA1D",
    "e": "A9 AE 203C 2049 2122 2139 2194-2199 21A9-21AA 231A-231B 2328 2388 23CF 23E9-23F3 23F8-23FA "
    "25AA-25AB 25B6 25C0 25FB-25FE 2600-2605 2607-2612 2614-2685 2690-2705 2708-2712 2714 2716 271D "
    "2721 2728 2733-2734 2744 2747 274C 274E 2753-2755 2757 2763-2767 2795-2797 27A1 27B0 27BF "
    "2934-2935 2B05-2B07 2B1B-2B1C 2B50 2B55 3030 303D 3297 3299 1F000-1F0F5 1F10D-1F10F 1F12F "
    "1F16C-1F16F 1F18E 1F191-1F19A 1F1AD 1F200-1F202 1F21A 1F22F 1F232-1F23A 1F250-1F3FA 1F400-1F53D "
    "1F546-1F64F 1F680-1F6FC 1F7D5-1F7F0 1F8B0-1F8B1 1F90C-1F93A 1F93C-1F945 1F947-1FAFF",
    "r": "1F1E6-1F1FF",
    "s": "1F3FB-1F3FF",
    "x": "FF9E-FF9F",
    "z": "200D",
    " ": "200B",
}
"""Characters that belong to another class than their general category says, in hexadecimal."""
_UNSPACED: Final = (
    "E01-E3A E40-E4E E81-ECD EDC-EDF 1000-103F 1050-109F 1780-17DD 1950-19DF 1A20-1AAD A9E0-A9FE AA60-AADF "
    "11700-1173F"
)
"""South-East Asian scripts, which write no spaces: a run of them is one word."""


def analyze(text: str) -> list[str]:
    """Turn a document or a query into its index terms, in order, repeats kept.

    Linear in the length of the text, whatever it holds.

    Example:
        >>> analyze("The woman's dresses, size 2.5 x 60.00cm")
        ['woman', 'dress', 'size', '2.5', 'x', '60.00cm']
    """
    return [term for term in map(_cached_term, words(text)) if term]


def words(text: str) -> list[str]:
    """Cut a text into words, as they stand in it; each goes through ``term_of``."""
    if text.isascii():
        found = _ASCII.findall(text)
    else:
        matches = _SHAPES.finditer(text.translate(_CLASSES))
        found = [text[match.start() : match.end()] for match in matches if match[1]]
    if any(len(word) > _LONGEST for word in found):
        return [piece for word in found for piece in _pieces(word)]
    return found


def term_of(word: str) -> str:
    """Turn one word into the term that the index holds, or "" if it holds none for it."""
    if word[-1] in "sS" and word[-2:-1] in ("'", "\u2019", "\uff07"):
        word = word[:-2]
    word = word.lower() if word.isascii() else "".join(character.lower()[0] for character in word)
    return "" if word in STOP_WORDS or not word.strip("_") else stem(word)


_cached_term = lru_cache(maxsize=2**16)(term_of)


def _pieces(word: str) -> list[str]:
    if len(word) <= _LONGEST:
        return [word]
    starts = range(0, len(word), _LONGEST)
    return [piece for start in starts for piece in words(word[start : start + _LONGEST])]


def _parsed(ranges: str) -> list[tuple[int, int]]:
    """Read ``"B7 2018-2019"`` as first and last code points."""
    pairs = (part.partition("-") for part in ranges.split())
    return [(int(first, 16), int(last or first, 16)) for first, _, last in pairs]


_RANGES: Final = sorted(
    (first, last, letter) for letter, ranges in _RANGES_BY_CLASS.items() for first, last in _parsed(ranges)
)
_RANGES_UNSPACED: Final = _parsed(_UNSPACED)


def _class_of(code: int) -> str:
    first, last, letter = _RANGES[max(bisect_right(_RANGES, (code, sys.maxunicode, "~")) - 1, 0)]
    if first <= code <= last:
        return letter
    letter = _CATEGORY_CLASSES.get(unicodedata.category(chr(code)), " ")
    if letter in "ax" and any(first <= code <= last for first, last in _RANGES_UNSPACED):
        return "t" if letter == "a" else "s"
    return letter


class _Classes(dict[int, str]):
    """The class of each character, found when first asked for.

    a letter, h Hebrew letter, 1 digit, k Katakana, _ joiner; : . , ' " join what they stand between;
    j word of one character (Han, Hiragana), e pictograph, r half of a flag, t unspaced script,
    s its marks, x other marks, z zero-width joiner, space everything else.
    """

    def __missing__(self, code: int) -> str:
        letter = _class_of(code)
        if code < 0x10000:
            self[code] = letter
        return letter


_CLASSES: Final = _Classes()
