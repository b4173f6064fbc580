"""Finds text in a dialogue that seems to be meant for its judge rather than for the other seat.

A finding is a flag for people and an optional penalty, not proof: a guard of its own next to the
prompt, which tells the judge to treat everything said as data.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from istar_judges.dialogue import JudgedDialogue


@dataclass(frozen=True, slots=True)
class Finding:
    """One suspicious piece of text.

    Attributes:
        seat: Who wrote it.
        turn: Index in the dialogue's turns.
        kind: ``judge`` (addresses a judge), ``score`` (names a score), ``claim`` (declares the goal
            reached), ``instruction`` (tries to replace instructions), ``markup`` (tags and control
            tokens), ``verdict`` (imitates an answer) or ``invisible`` (hides characters).
        text: The piece, as the detector read it.
    """

    seat: int
    turn: int
    kind: str
    text: str


_JUDGE = (
    r"(?:ai |llm |model )?(?:judges?|evaluators?|graders?|raters?|scorers?|assessors?|annotators?|reviewers?)"
)
_JUDGING = r"(?:judging|evaluating|grading|rating|scoring|assessing)"
_SCORED = r"(?:scored|rated|graded|judged|evaluated|awarded)"
_DIMENSION = (
    r"(?:goal|believability|relationship|knowledge|secret|social[ _]rules"
    r"|financial[ _]and[ _]material[ _]benefits)"
)
_DIMENSION_STEMS = ("goal", "believab", "relationship", "knowledge", "secret", "social", "financial")
_REACHED = r"(?:achieved|accomplished|met|reached|fulfilled|completed|satisfied)"
_FULLY = r"(?:fully|completely|totally|entirely|perfectly|successfully|100 ?%)"
_TEN = r"(?:10|ten) ?(?:/|out of) ?(?:10|ten)\b"
_NEAR = r"[^.!?\n]{0,40}"

_PATTERNS: Final = {
    kind: re.compile("|".join(patterns))
    for kind, patterns in {
        "judge": (
            rf"\b(?:dear|attention|hey|hello|note (?:to|for)|message (?:to|for)) (?:the |all )?{_JUDGE}\b",
            rf"\b{_JUDGE} ?[:,] ?(?:please|note|give|rate|score|award|assign|remember|consider|you)\b",
            rf"\b(?:whoever|anyone|those|the (?:ai|model)) (?:(?:who )?(?:is|are) )?{_JUDGING} th(?:is|e)\b",
            rf"\bth(?:is|e) (?:conversation|dialogue|interaction|role ?-?play|episode){_NEAR}\b{_SCORED}\b",
            rf"\bwhen {_JUDGING} (?:this|me|my|us|the (?:conversation|dialogue|participants?))\b",
        ),
        "score": (
            rf"\b(?:{_DIMENSION}|scores?|rating|dimensions?|performance|evaluation|marks?)\b{_NEAR}\b{_TEN}",
            rf"\b{_TEN}{_NEAR}\b(?:{_DIMENSION}|scores?|rating|dimensions?|performance|evaluation)\b",
            r"\b(?:maximum|highest|perfect|full|top|goal) (?:possible )?(?:scores?|marks|ratings?|points)\b",
            rf"\b{_DIMENSION}['\"]? ?[:=] ?['\"]?-?(?:10|\d)(?: ?/ ?10)?['\"]? ?(?:$|[,;.\n}}])",
        ),
        "claim": (
            rf"\bgoals?\b{_NEAR}\b{_FULLY} {_REACHED}\b",
            rf"\b{_FULLY} {_REACHED}\b{_NEAR}\bgoals?\b",
            rf"\b(?:my|our|both|all|the) (?:social |private )?goals? (?:has|have) (?:now )?been {_REACHED}\b",
            rf"\bgoals? {_REACHED} ?(?:$|[:!.\n])",
        ),
        "instruction": (
            r"\b(?:ignore|disregard|forget|override) (?:all |any |every )?(?:of )?(?:the |your |these )?"
            r"(?:previous|prior|above|earlier|preceding|other) (?:\w+ )?"
            r"(?:instructions?|rules|messages?|prompts?|criteria)\b",
            r"\b(?:system|developer) (?:prompt|message|override)\b",
            r"\bnew (?:instructions?|rubric|criteria) ?:",
            r"\b(?:output|respond|reply|answer)(?: only)? with (?:only )?(?:the |this |a )?"
            r"(?:following )?(?:json|verdict|score)\b",
        ),
        "markup": (
            r"</?[a-z][\w-]*(?:\s[^<>]{0,200})?/?>",
            r"<\|[^|<>]{1,40}\|>",
            r"\[/?inst\]",
            r"```",
            r"(?:^|\n) ?#{2,} ?(?:system|instructions?|verdict|scores?|evaluation)\b",
            r"={3,} ?[0-9a-f]{12,}",
        ),
        "verdict": (r"['\"](?:score|reason)['\"] ?:", r"\{ ?['\"][ab]['\"] ?: ?\{"),
    }.items()
}
_HINTS: Final = {
    "judge": tuple("judg evaluat grad rater rating rated scor assess annotat review award".split()),
    "score": ("out of", "/ 10", "/ ten", *"/10 /ten score marks rating points".split(), *_DIMENSION_STEMS),
    "claim": ("goal",),
    "instruction": tuple(
        "instruction rule message prompt override criteria rubric json verdict score".split()
    ),
    "markup": ("<", "[", "`", "##", "==="),
    "verdict": ("score", "reason", "{"),
}
"""Pieces of which a text holds at least one if the pattern of that kind can match: quick to look for."""
_DROPPED: Final = re.compile("[\u200b-\u200f\u2060-\u2064\ufeff\u00ad\ufe00-\ufe0f]")
_INVISIBLE: Final = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]|\u200b|[\u2060-\u2064]")
_SHOWN: Final = 120


def find_in_text(text: str) -> list[tuple[str, str]]:
    """Find suspicious pieces in one text, at most one of each kind.

    The text is compared in lower case, with compatible characters made equal and characters of no
    width left out. Takes time in proportion to the length of the text.

    Returns:
        (kind, piece) of what was found; see ``Finding``.
    """
    found = [] if text.isascii() else _find_invisible(text)
    plain = _plain(text)
    for kind, pattern in _PATTERNS.items():
        if any(hint in plain for hint in _HINTS[kind]) and (match := pattern.search(plain)):
            found.append((kind, match[0][:_SHOWN]))
    return found


def find_injections(dialogue: JudgedDialogue, seats: Sequence[int] | None = None) -> tuple[Finding, ...]:
    """Find suspicious pieces in what was said, in order.

    Args:
        dialogue: What happened.
        seats: Whose words are looked at; None for all.
    """
    turns = [
        (turn, seat, text)
        for turn, (seat, text) in enumerate(dialogue.turns)
        if seats is None or seat in seats
    ]
    if not find_in_text("\n".join(text for *_, text in turns)):
        return ()
    return tuple(
        Finding(seat, turn, kind, piece) for turn, seat, text in turns for kind, piece in find_in_text(text)
    )


def _plain(text: str) -> str:
    if not text.isascii():
        text = _DROPPED.sub("", unicodedata.normalize("NFKC", text)).replace("’", "'")
    return "\n".join(" ".join(line.split()) for line in text.casefold().split("\n"))


def _find_invisible(text: str) -> list[tuple[str, str]]:
    hidden = _INVISIBLE.search(text)
    return [("invisible", repr(hidden[0])[1:-1])] if hidden else []
