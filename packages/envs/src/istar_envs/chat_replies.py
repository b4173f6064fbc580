"""What a chat endpoint answered: a reply, or a failure with its cause and whether to ask again.

Pure: bytes in, records out. The wire is ``chat_wire.py``, the asking ``chat.py``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Final

from pydantic import BaseModel, Field, ValidationError

from istar_envs.episode import valid_text
from istar_envs.errors import EnvError


class ChatError(EnvError):
    """A chat model gave no reply.

    Attributes:
        failures: Cause of every failed attempt of the call, in order, such as ``"429"``,
            ``"timeout"``, ``"dropped"``.
    """

    def __init__(self, message: str, failures: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.failures = failures


class ChatUnavailable(ChatError):
    """The endpoint does not answer, or not with a reply; asking again later may work."""


class ChatTimeout(ChatError):
    """The endpoint did not answer in time."""


class ChatRefused(ChatError):
    """The model, or a filter before it, will not answer this; asking again will not help."""


class ChatBudget(ChatError):
    """The call would have cost more than what is left of the budget; it was not made."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call, as the endpoint counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens
        )


NO_USAGE: Final = Usage()


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What a chat model said.

    Attributes:
        text: Its words, verbatim.
        model: The model that answered, by the endpoint's word; an alias shows its snapshot here.
        finish_reason: ``stop``, or ``length`` if the reply was cut off, or what else the endpoint says.
        usage: Tokens, or None if the endpoint did not say.
        system_fingerprint: The endpoint's mark of its own version, or None.
        failures: Cause of every failed attempt before this reply.
    """

    text: str
    model: str
    finish_reason: str
    usage: Usage | None = None
    system_fingerprint: str | None = None
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt without a reply.

    Attributes:
        cause: Short name for counting: a status code, ``timeout``, ``dropped``, ``unreadable``,
            ``oversized`` or ``refused``.
        message: What happened, for people.
        error: The error that the call ends with if this was its last attempt.
        is_final: Whether asking again is pointless.
        wait_s: Seconds that the endpoint asked to wait, or None.
        usage: Tokens that it cost all the same, or None if nobody can tell.
    """

    cause: str
    message: str
    error: type[ChatError] = ChatUnavailable
    is_final: bool = False
    wait_s: float | None = None
    usage: Usage | None = None


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: Annotated[int, Field(ge=0, strict=True)]
    completion_tokens: Annotated[int, Field(ge=0, strict=True)] = 0


class _Completion(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    model: str = ""
    system_fingerprint: str | None = None
    usage: object = None


_PASSING: Final = frozenset({408, 409, 425, 429})
"""Codes below 500 after which the same request may succeed."""
_FILTERS: Final = frozenset({"content_filter", "content_policy_violation"})
_SHOWN: Final = 200


def read_answer(status: int, headers: Mapping[str, str], body: bytes) -> ChatReply | Failure:
    """Read an HTTP answer of a chat completions endpoint; never raises.

    Args:
        status: HTTP status code.
        headers: Header fields, names in lower case.
        body: The body, decoded from its transfer encoding.
    """
    if status != 200:
        return _read_error(status, headers, body)
    try:
        completion = _Completion.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        return Failure("unreadable", f"not a chat completion: {where}: {first['msg']}")
    choice, usage = completion.choices[0], _read_usage(completion.usage)
    if choice.message.refusal or choice.finish_reason in _FILTERS:
        why = choice.message.refusal or "stopped by a content filter"
        return Failure("refused", f"refused: {_short(why)}", ChatRefused, is_final=True, usage=usage)
    if choice.message.content is None:
        return Failure("unreadable", "the message has no content", usage=usage)
    return ChatReply(
        text=valid_text(choice.message.content),
        model=completion.model,
        finish_reason=choice.finish_reason or "stop",
        usage=usage,
        system_fingerprint=completion.system_fingerprint,
    )


def _read_usage(raw: object) -> Usage | None:
    """A count that makes no sense is no count."""
    try:
        read = _Usage.model_validate(raw)
    except ValidationError:
        return None
    return Usage(read.prompt_tokens, read.completion_tokens)


def _read_error(status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    code, said = _error_of(body)
    message = f"HTTP {status}" + (f": {said}" if said else "")
    if code in _FILTERS:
        return Failure("refused", message, ChatRefused, is_final=True, usage=NO_USAGE)
    may_pass = (status in _PASSING or status >= 500) and code != "insufficient_quota"
    return Failure(str(status), message, is_final=not may_pass, wait_s=retry_after(headers), usage=NO_USAGE)


def _error_of(body: bytes) -> tuple[str | None, str]:
    """Code and words of an error body in the usual layout, else its first characters."""
    try:
        error = json.loads(body)["error"]
        code, said = error.get("code"), error.get("message")
        return (code if isinstance(code, str) else None), _short(str(said))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, _short(body[: 4 * _SHOWN].decode("utf-8", "replace"))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read how long an endpoint asks to wait.

    Understood are ``retry-after-ms``, and ``retry-after`` as seconds or as a date, which is compared
    with the answer's own ``date`` so that clocks need not agree.

    Args:
        headers: Header fields, names in lower case.

    Returns:
        Seconds, at least 0; None without a readable wish.
    """
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    raw = headers.get("retry-after")
    if (seconds := _number(raw)) is not None:
        return seconds
    until = _date(raw)
    if until is None:
        return None
    now = _date(headers.get("date")) or datetime.now(UTC)
    return max(0.0, (until - now).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def _date(text: str | None) -> datetime | None:
    try:
        read = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def _short(text: str) -> str:
    one_line = " ".join(valid_text(text[: 4 * _SHOWN]).split())
    return one_line if len(one_line) <= _SHOWN else one_line[:_SHOWN] + "…"
