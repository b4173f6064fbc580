"""Text of a model into actions of a dialogue, and back, in four notations.

- ``plain``: ``say: words``, ``nonverbal: gesture``, ``do: act``, ``pass`` or ``leave``; a private one reads
  ``say to 1: words``.
- ``json``: ``{"action_type": "speak", "argument": "words"}``, private with ``"to": [1]``.
- ``react``: ``<think>why</think><action>say: words</action>``.
- ``speech``: nothing but the words, or ``[leave]``.

Reading takes time linear in the text and never raises. Words are opaque: nothing inside them is markup.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from istar_envs.actions import format_reply, parse_reply, shorten
from istar_envs.language import InvalidAction
from istar_envs.sotopia.dialogue import ACTION_KINDS, MAX_ARGUMENT, WORDLESS, Action, ActionKind

ProtocolName = Literal["plain", "json", "react", "speech"]

PROTOCOLS: Final[tuple[ProtocolName, ...]] = get_args(ProtocolName)
"""Every notation."""

LEAVE_TOKEN: Final = "[leave]"
"""The whole of an utterance that leaves, in ``speech``."""

ErrorKind = Literal["empty", "syntax", "unknown_type", "not_allowed", "argument", "too_long", "receiver"]

JSON_TYPES: Final[dict[str, ActionKind]] = {
    "none": "none",
    "speak": "speak",
    "non-verbal communication": "nonverbal",
    "action": "action",
    "leave": "leave",
}
"""Kinds by their names in ``json``."""

_VERBS: Final[dict[str, ActionKind]] = {"say": "speak", "nonverbal": "nonverbal", "do": "action"}
_BARE: Final[dict[str, ActionKind]] = {"pass": "none", "leave": "leave"}
_JSON_NAMES: Final = {kind: name for name, kind in JSON_TYPES.items()}
_WORDS: Final = {kind: word for word, kind in (_VERBS | _BARE).items()}
_TAGS: Final = ("<think>", "</think>", "<action>", "</action>")
_KEYS: Final = frozenset({"action_type", "argument", "to"})
_WRAPPERS: Final = ("properties", "value")
_SCHEMA_WORDS: Final = frozenset({"type", "title", "description", "required", *_WRAPPERS})
_HOW_PLAIN: Final = "an action reads say: words, nonverbal: gesture, do: act, pass or leave"


@dataclass(frozen=True, slots=True)
class ParseError:
    """Why a text is no action; an outcome, never an exception.

    Attributes:
        kind: ``empty``: no text; ``syntax``: not the notation; ``unknown_type``: no such action;
            ``not_allowed``: an action that cannot be done now; ``argument``: no words or no text;
            ``too_long``: too many words; ``receiver``: for a seat that does not exist.
        span: Where in the text, as (start, end) in characters.
        reason: What was wrong, in words that can be shown to a person or the model.
    """

    kind: ErrorKind
    span: tuple[int, int]
    reason: str


@dataclass(frozen=True, slots=True)
class _Draft:
    """What was read, before it is checked; receivers as written."""

    kind: ActionKind
    argument: str
    to: tuple[str, ...]
    span: tuple[int, int]


def parse_action(
    text: str,
    protocol: ProtocolName,
    allowed: Collection[ActionKind] = ACTION_KINDS,
    *,
    num_seats: int = 2,
) -> Action | ParseError:
    """Read one action.

    Types and verbs may be written in any case. Words that are one JSON string literal, as in
    ``say: "well"``, are unquoted. In ``json``, whatever surrounds the one object is dropped, such as a code
    fence, and so are ``properties`` and ``value`` objects around the fields. In ``react`` the last action
    block counts. Nothing else is repaired.

    Args:
        text: Whatever the model wrote.
        protocol: The notation.
        allowed: Kinds that may be done now.
        num_seats: How many take part.

    Returns:
        The action, or why the text is none.

    Raises:
        ValueError: If there is no such protocol.

    Example:
        >>> parse_action("Say: I left my keys.", "plain")
        Action(kind='speak', argument='I left my keys.', to=())
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}; give one of {', '.join(PROTOCOLS)}")
    if not text.strip():
        return ParseError("empty", (0, len(text)), "there is no text")
    draft = _READERS[protocol](text)
    return draft if isinstance(draft, ParseError) else _check(draft, allowed, num_seats)


def write_action(action: Action, protocol: ProtocolName) -> str:
    """Write an action so that ``parse_action`` reads back an equal one.

    Raises:
        ValueError: If the protocol has no way to say it: an action that lacks its words; in ``speech``
            also a pass, a gesture, an act, a private action and the leave token as an utterance.

    Example:
        >>> write_action(Action("nonverbal", "nods"), "json")
        '{"action_type": "non-verbal communication", "argument": "nods"}'
    """
    if action.kind not in WORDLESS and not action.argument.strip():
        raise ValueError(f"a {action.kind!r} action needs words")
    match protocol:
        case "plain":
            return _write_plain(action)
        case "json":
            return _write_json(action)
        case "react":
            return format_reply((_write_plain(action),), thought="")
        case "speech":
            return _write_speech(action)
        case _:
            raise ValueError(f"unknown protocol {protocol!r}; give one of {', '.join(PROTOCOLS)}")


def _check(draft: _Draft, allowed: Collection[ActionKind], num_seats: int) -> Action | ParseError:
    if draft.kind not in allowed:
        names = ", ".join(kind for kind in ACTION_KINDS if kind in allowed)
        return ParseError("not_allowed", draft.span, f"{draft.kind} is not possible now; possible: {names}")
    if draft.kind in WORDLESS:
        return Action(draft.kind)
    if not draft.argument.strip():
        return ParseError("argument", draft.span, f"{draft.kind} needs words")
    if len(draft.argument) > MAX_ARGUMENT:
        length = f"{len(draft.argument)} characters; at most {MAX_ARGUMENT} are allowed"
        return ParseError("too_long", draft.span, f"the words have {length}")
    seats = {str(seat): seat for seat in range(num_seats)}
    if not seats.keys() >= set(draft.to):
        return ParseError("receiver", draft.span, f"seats are numbered 0 to {num_seats - 1}")
    return Action(draft.kind, draft.argument, tuple(seats[name] for name in draft.to))


def _read_plain(text: str) -> _Draft | ParseError:
    start = len(text) - len(text.lstrip())
    whole = (start, len(text.rstrip()))
    bare = _BARE.get(text.strip().lower())
    if bare is not None:
        return _Draft(bare, "", (), whole)
    head, colon, words = text.partition(":")
    verb, *receivers = head.replace(",", " ").split() or [""]
    kind = _VERBS.get(verb.lower())
    if not colon or kind is None or (receivers and receivers[0].lower() != "to"):
        return ParseError("syntax", whole, f"{_HOW_PLAIN}, not {shorten(text.strip())}")
    if len(receivers) == 1:
        return ParseError(
            "receiver", (start, len(head)), f"a private action reads {verb.lower()} to 1: words"
        )
    return _Draft(kind, _unquote(words), tuple(receivers[1:]), (len(head) + 1, whole[1]))


def _read_react(text: str) -> _Draft | ParseError:
    whole = (0, len(text))
    reply = parse_reply(text, "think_action")
    if isinstance(reply, InvalidAction):
        return ParseError("syntax", whole, reply.reason)
    draft = _read_plain(reply.actions[0])
    if isinstance(draft, ParseError):
        return ParseError(draft.kind, whole, draft.reason)
    return _Draft(draft.kind, draft.argument, draft.to, whole)


def _read_speech(text: str) -> _Draft:
    whole = (0, len(text))
    words = _unquote(text)
    if words.strip().lower() == LEAVE_TOKEN:
        return _Draft("leave", "", (), whole)
    return _Draft("speak", words, (), whole)


def _read_json(text: str) -> _Draft | ParseError:
    start = text.find("{")
    if start < 0:
        return ParseError("syntax", (0, len(text)), "there is no JSON object")
    try:
        value, end = _OBJECTS.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return ParseError("syntax", (start, len(text)), f"the JSON object cannot be read: {what}")
    if "{" in text[end:]:
        return ParseError("syntax", (start, len(text)), "there is more than one JSON object")
    return _read_fields(_unwrap(value), (start, end))


def _read_fields(value: Any, span: tuple[int, int]) -> _Draft | ParseError:
    if not isinstance(value, dict) or "action_type" not in value:
        return ParseError("syntax", span, "the JSON object has no action_type")
    if unknown := value.keys() - _KEYS:
        return ParseError("syntax", span, f"the JSON object has the unknown key {shorten(min(unknown))}")
    name = _unwrap(value["action_type"])
    kind = JSON_TYPES.get(name.strip().casefold()) if isinstance(name, str) else None
    if kind is None:
        names = ", ".join(JSON_TYPES)
        return ParseError("unknown_type", span, f"action_type is one of {names}, not {_show(name)}")
    argument = "" if kind in WORDLESS else _unwrap(value.get("argument"))
    if not isinstance(argument, str):
        return ParseError("argument", span, f"the argument of {name.strip().casefold()} must be text")
    receivers = _unwrap(value.get("to", []))
    if not isinstance(receivers, list) or not all(isinstance(seat, int) for seat in receivers):
        return ParseError("receiver", span, "to must be a list of seat numbers")
    return _Draft(kind, argument, tuple(map(str, receivers)), span)


def _unwrap(value: Any) -> Any:
    """Take a value out of the objects that a copied JSON schema puts around it."""
    while isinstance(value, dict) and value.keys() <= _SCHEMA_WORDS:
        inner = [value[key] for key in _WRAPPERS if key in value]
        if len(inner) != 1:
            return value
        value = inner[0]
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that says something twice."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key is there more than once")
    return members


def _show(value: Any) -> str:
    return shorten(value) if isinstance(value, str) else f"a {type(value).__name__}"


def _unquote(words: str) -> str:
    """Strip outer white space, then the quotes if all of it is one JSON string literal."""
    words = words.strip()
    if not (words.startswith('"') and words.endswith('"')):
        return words
    try:
        return str(_STRINGS.decode(words))
    except ValueError:
        return words


def _quote(words: str) -> str:
    """Write a JSON string literal in which no tag can be seen."""
    return json.dumps(words, ensure_ascii=False).replace("<", "\\u003c")


def _quote_if_needed(words: str) -> str:
    """Quote words that would not come back as they are: at their edges or because of a tag."""
    lowered = words.lower()
    is_safe = _unquote(words) == words and not any(tag in lowered for tag in _TAGS)
    return words if is_safe else _quote(words)


def _write_plain(action: Action) -> str:
    word = _WORDS[action.kind]
    if action.kind in WORDLESS:
        return word
    receivers = f" to {', '.join(map(str, action.to))}" if action.to else ""
    return f"{word}{receivers}: {_quote_if_needed(action.argument)}"


def _write_json(action: Action) -> str:
    receivers = f', "to": {json.dumps(action.to)}' if action.to else ""
    name = _JSON_NAMES[action.kind]
    return f'{{"action_type": "{name}", "argument": {_quote(action.argument)}{receivers}}}'


def _write_speech(action: Action) -> str:
    if action.kind == "leave":
        return LEAVE_TOKEN
    if action.kind != "speak" or action.to or action.argument.strip().lower() == LEAVE_TOKEN:
        raise ValueError(f"speech can only speak to everyone or leave, not {action}")
    return _quote_if_needed(action.argument)


_OBJECTS: Final = json.JSONDecoder(object_pairs_hook=_unique)
_STRINGS: Final = json.JSONDecoder(strict=False)

_READERS: Final = {
    "plain": _read_plain,
    "json": _read_json,
    "react": _read_react,
    "speech": _read_speech,
}
