"""From a dialogue and a rubric to the messages that ask a judge; pure and the same every time.

What was said is data: one JSON object per line between two equal marks that nobody who spoke could
foresee, put into the text in one pass, so that no utterance can end the record or fill a placeholder.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from istar_envs.errors import ConfigError, suggest
from istar_envs.templates import fill
from istar_judges.dialogue import JudgedDialogue
from istar_judges.rubric import Dimension, Rubric, name_of, read_toml

Message = dict[str, str]
"""``{"role": …, "content": …}``."""

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories that a reader cannot see."""
_quote: Final = json.JSONEncoder(ensure_ascii=False).encode
_NOT_ASCII: Final = re.compile(r"[^ -~]")
_REPLY_SHOWN: Final = 4_000
"""Characters of an unusable answer that are shown to its author again."""


class Prompt(BaseModel):
    """The texts around a record, versioned by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    system: str
    user: str
    """With ``{mark} {record} {participants} {dimensions} {labels} {keys}``."""
    reask: str
    """With ``{problem}``."""

    @property
    def version(self) -> str:
        """Name and a hash of the content."""
        return f"{self.name}#{sha256(self.model_dump_json().encode()).hexdigest()[:8]}"


@cache
def load_prompt(name: str) -> Prompt:
    """Load a shipped prompt by name, or one of your own by path.

    Raises:
        ConfigError: If it does not exist or breaks the format.
    """
    try:
        raw = read_toml("prompts", name)
        prompt = Prompt.model_validate({**raw, "name": name_of(name)})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"prompt {name!r}: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from error
    for text, known in ((prompt.user, _USER_FIELDS), (prompt.reask, {"problem"})):
        for field in re.findall(r"\{([a-z_]+)\}", text):
            if field not in known:
                raise ConfigError(f"prompt {name!r}: unknown placeholder {{{field}}}.{suggest(field, known)}")
    return prompt


_USER_FIELDS: Final = frozenset({"mark", "record", "participants", "dimensions", "labels", "keys"})


def seat_labels(num_seats: int, *, swapped: bool = False) -> tuple[str, ...]:
    """Name the seats without saying who came first: ``A``, ``B`` … by seat, or the other way round.

    Example:
        >>> seat_labels(2, swapped=True)
        ('B', 'A')
    """
    labels = tuple(chr(ord("A") + seat) for seat in range(num_seats))
    return labels[::-1] if swapped else labels


def ask(
    prompt: Prompt, rubric: Rubric, dialogue: JudgedDialogue, seats: Sequence[int], *, swapped: bool = False
) -> list[Message]:
    """Write the messages that ask for a verdict.

    Args:
        prompt: The texts around the record.
        rubric: What is asked.
        dialogue: What happened.
        seats: Seats to be scored in this call.
        swapped: Whether the last seat is called A and presented first.
    """
    labels = seat_labels(len(dialogue.names), swapped=swapped)
    record = _record(dialogue, labels)
    scored = sorted(labels[seat] for seat in seats)
    text = _filled(
        prompt.user,
        {
            "mark": f"=== {sha256(record.encode()).hexdigest()[:24]} ===",
            "record": record,
            "participants": " and ".join(f"participant {label}" for label in scored),
            "dimensions": "\n".join(map(_asked, rubric.dimensions)),
            "labels": _listed(scored),
            "keys": _listed(rubric.keys),
        },
    )
    return [{"role": "system", "content": prompt.system}, {"role": "user", "content": text}]


def ask_again(prompt: Prompt, messages: Sequence[Message], reply: str, problem: str) -> list[Message]:
    """Write the messages that ask the same model again, with what was wrong with its answer."""
    return [
        *messages,
        {"role": "assistant", "content": reply[:_REPLY_SHOWN]},
        {"role": "user", "content": _filled(prompt.reask, {"problem": problem})},
    ]


def json_line(members: Mapping[str, object]) -> str:
    """Write an object of texts and whole numbers as one line of JSON, its invisible characters spelt out."""
    line = "{" + ", ".join(f'"{key}": {_value(value)}' for key, value in members.items()) + "}"
    return line if line.isascii() and line.isprintable() else _NOT_ASCII.sub(_spell_out, line)


def _value(value: object) -> str:
    return str(value) if isinstance(value, int) else _quote(value)


def _spell_out(found: re.Match[str]) -> str:
    character = found[0]
    return json.dumps(character)[1:-1] if unicodedata.category(character) in _HIDDEN else character


def _record(dialogue: JudgedDialogue, labels: Sequence[str]) -> str:
    people = sorted(zip(labels, dialogue.names, dialogue.seat_goals, strict=True))
    lines: list[Mapping[str, object]] = [
        {"background": dialogue.background},
        *({"participant": label, "name": name, "goal": goal} for label, name, goal in people),
        *(
            {"turn": number, "participant": labels[seat], "text": text}
            for number, (seat, text) in enumerate(dialogue.turns, start=1)
        ),
    ]
    return "\n".join(map(json_line, lines))


def _asked(dimension: Dimension) -> str:
    """Write a dimension: its range and question, and a line for each band."""
    head = f"- {dimension.key}, from {dimension.low} to {dimension.high}: {dimension.question}"
    ranges = (f"{b.low} to {b.high}" if b.low < b.high else str(b.low) for b in dimension.bands)
    return "\n".join([head, *(f"  {r}: {b.meaning}" for r, b in zip(ranges, dimension.bands, strict=True))])


def _filled(text: str, values: Mapping[str, str]) -> str:
    return "".join(map(str, fill(text, values)))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
