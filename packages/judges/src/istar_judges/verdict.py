"""How a judge's answer is read: exactly, or not at all. Nothing is clamped, rounded or guessed.

Repaired is only what surrounds the one JSON object: a code fence, or words before and after it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from istar_envs.episode import valid_text
from istar_judges.errors import VerdictUnreadable
from istar_judges.rubric import Dimension, Rubric

_MOST_CHARACTERS: Final = 200_000
_REFUSAL: Final = re.compile(
    r"\b(?:i(?:['’]m| am) (?:sorry|unable|not able)|i (?:can ?not|can['’]t|won['’]t|must decline|will not)"
    r"|as an ai\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Score:
    """A judge's word on one dimension.

    Attributes:
        score: Within the dimension's range.
        reason: Why, in the judge's words.
    """

    score: int
    reason: str


Verdict = Mapping[str, Mapping[str, Score]]
"""Scores by seat label and dimension key."""


def verdict_schema(rubric: Rubric, labels: Sequence[str]) -> dict[str, Any]:
    """Return the JSON schema of a verdict; scores are listed one by one, as every endpoint can."""
    dimensions = {
        d.key: _object(
            {
                "reason": {"type": "string"},
                "score": {"type": "integer", "enum": list(range(d.low, d.high + 1))},
            }
        )
        for d in rubric.dimensions
    }
    return _object({label: _object(dimensions) for label in labels})


def read_verdict(text: str, rubric: Rubric, labels: Sequence[str]) -> Verdict:
    """Read a judge's answer. Scores are found by their keys, whatever the order of the answer.

    Args:
        text: The model's words.
        rubric: What was asked.
        labels: The seats that were to be scored.

    Raises:
        VerdictUnreadable: If anything is missing, unknown, twice there, no whole number or out of
            range; ``kind`` says which, the message can be shown to the model.
    """
    answer = _members(_parse(_single_object(text)), labels, "the answer")
    return {label: _read_seat(answer[label], rubric, label) for label in labels}


def is_refusal(text: str) -> bool:
    """Whether an answer without any JSON says that it will not answer."""
    return "{" not in text and _REFUSAL.search(text[:500]) is not None


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _single_object(text: str) -> str:
    """Cut the one JSON object out of an answer."""
    if len(text) > _MOST_CHARACTERS:
        raise VerdictUnreadable(f"it is longer than {_MOST_CHARACTERS} characters", "oversized")
    start, end = text.find("{"), text.rfind("}")
    if start < 0:
        raise VerdictUnreadable("it holds no JSON object", "no_json")
    if end < start:
        raise VerdictUnreadable("the JSON object is not complete", "bad_json")
    return text[start : end + 1]


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise VerdictUnreadable("its JSON is nested too deeply", "bad_json") from error
    except ValueError as error:
        raise VerdictUnreadable(f"it is not exactly one valid JSON object ({error})", "bad_json") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise VerdictUnreadable(f"the key {_shown(twice)} is there more than once", "duplicate")
    return members


def _members(value: Any, keys: Sequence[str], where: str) -> Mapping[str, Any]:
    """Return an object's members if they are exactly the wanted ones."""
    if not isinstance(value, dict):
        raise VerdictUnreadable(f"{where} must be a JSON object", "type")
    if missing := [key for key in keys if key not in value]:
        raise VerdictUnreadable(f"{where} lacks the key {_shown(missing[0])}", "missing")
    if unknown := [key for key in value if key not in keys]:
        raise VerdictUnreadable(f"{where} has the unknown key {_shown(unknown[0])}", "unknown")
    return value


def _read_seat(value: Any, rubric: Rubric, where: str) -> Mapping[str, Score]:
    members = _members(value, rubric.keys, where)
    return {d.key: _read_score(members[d.key], d, f"{where}.{d.key}") for d in rubric.dimensions}


def _read_score(value: Any, dimension: Dimension, where: str) -> Score:
    members = _members(value, ("reason", "score"), where)
    reason, score = members["reason"], members["score"]
    if not isinstance(reason, str):
        raise VerdictUnreadable(f"{where}.reason must be text", "type")
    if type(score) is not int:
        raise VerdictUnreadable(
            f"{where}.score is {_shown(score)}; write a whole number without quotes or decimal point", "type"
        )
    if not dimension.low <= score <= dimension.high:
        raise VerdictUnreadable(
            f"{where}.score is {_shown(score)}; it must be from {dimension.low} to {dimension.high}", "range"
        )
    return Score(score, valid_text(reason))


def _shown(value: Any) -> str:
    text = valid_text(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 60 else text[:60] + "…"
