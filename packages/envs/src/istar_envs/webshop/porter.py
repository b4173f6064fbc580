"""Martin Porter's stemming algorithm for English, in its author's later revised form.

The revised form ends two rules differently from the paper of 1980 (``bli`` → ``ble``, and the new
``logi`` → ``log``) and leaves words of one or two letters alone. It is what Lucene's English analysis
uses. The rules are facts of the algorithm, published at tartarus.org/martin/PorterStemmer.
"""

from collections.abc import Mapping
from typing import Final

_SECOND: Final = {
    "ational": "ate",
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "bli": "ble",
    "alli": "al",
    "entli": "ent",
    "eli": "e",
    "ousli": "ous",
    "ization": "ize",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "aliti": "al",
    "iviti": "ive",
    "biliti": "ble",
    "logi": "log",
}
_THIRD: Final = {
    "icate": "ic",
    "ative": "",
    "alize": "al",
    "iciti": "ic",
    "ical": "ic",
    "ful": "",
    "ness": "",
}
_FOURTH: Final = dict.fromkeys(
    "al ance ence er ic able ible ant ement ment ent ou ism ate iti ous ive ize".split(), ""
)
_LONGEST: Final = 7


def stem(word: str) -> str:
    """Cut the ending off a lower-case word, so that its forms become one.

    Characters other than a, e, i, o, u and y count as consonants, whatever their script.

    Args:
        word: One lower-case word.

    Returns:
        The stem, never empty for a word that is not; words of one or two characters stay as they are.

    Example:
        >>> stem("relational"), stem("hopping"), stem("sky")
        ('relat', 'hop', 'sky')
    """
    if len(word) <= 2:
        return word
    word = _without_past(_without_plural(word))
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(word, _SECOND, more_than=0)
    word = _replaced(word, _THIRD, more_than=0)
    return _tidied(_without_noun_ending(word))


def _without_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _without_past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        base = word.removesuffix(ending)
        if base != word:
            return _mended(base) if _has_vowel(base) else word
    return word


def _mended(base: str) -> str:
    """Give back the letter that a word lost, or drop the one it gained, before ``ed`` or ``ing``."""
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _ends_doubled(base):
        return base if base[-1] in "lsz" else base[:-1]
    return base + "e" if _measure(base) == 1 and _ends_short(base) else base


def _replaced(word: str, endings: Mapping[str, str], *, more_than: int) -> str:
    """Replace the longest ending that fits, if what stands before it measures ``more_than``."""
    for length in range(min(_LONGEST, len(word)), 1, -1):
        base, ending = word[:-length], word[-length:]
        if ending in endings:
            return base + endings[ending] if _measure(base) > more_than else word
    return word


def _without_noun_ending(word: str) -> str:
    if word.endswith(("sion", "tion")):
        return word[:-3] if _measure(word[:-3]) > 1 else word
    return _replaced(word, _FOURTH, more_than=1)


def _tidied(word: str) -> str:
    """Drop a final e and make a final double l single, where the word is long enough."""
    measure = _measure(word)
    if word.endswith("e") and (measure > 1 or (measure == 1 and not _ends_short(word[:-1]))):
        word = word[:-1]
    return word[:-1] if measure > 1 and word.endswith("ll") else word


def _shape(word: str) -> str:
    """Write ``v`` for each vowel and ``c`` for each consonant; y is a vowel after a consonant."""
    shape = ""
    for letter in word:
        shape += "v" if letter in "aeiou" or (letter == "y" and shape.endswith("c")) else "c"
    return shape


def _measure(word: str) -> int:
    """Count how often a vowel is followed by a consonant."""
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _shape(word)


def _ends_doubled(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word).endswith("c")


def _ends_short(word: str) -> bool:
    """Tell whether the word ends consonant, vowel, consonant, the last being none of w, x and y."""
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"
