"""A chat model behind an OpenAI-compatible endpoint: one call in, a reply or a typed error out.

Calls are asynchronous inside; ``complete`` and ``complete_many`` are for callers that are not.
A failed attempt is repeated with the same model only. What a reply means is the caller's matter.
"""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, Literal, Protocol
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter

from istar_envs import background
from istar_envs.chat_openai import OpenAIWire
from istar_envs.chat_replies import (
    NO_USAGE,
    ChatBudget,
    ChatError,
    ChatRefused,
    ChatReply,
    ChatTimeout,
    ChatUnavailable,
    Failure,
    Usage,
    read_answer,
)
from istar_envs.chat_wire import DirectWire, Wire, WireError, split_url
from istar_envs.episode import valid_text
from istar_envs.errors import ConfigError
from istar_envs.seeding import CounterRng, derive_seed

__all__ = [
    "NO_USAGE",
    "ChatBudget",
    "ChatClient",
    "ChatError",
    "ChatMessages",
    "ChatRefused",
    "ChatReply",
    "ChatTimeout",
    "ChatUnavailable",
    "Meter",
    "Usage",
]

ChatMessages = Sequence[Mapping[str, Any]]
"""``{"role": "system" | "user" | "assistant", "content": str}`` in order."""
Structured = Literal["json_schema", "json_object", "off"]

_ANYTHING: Final = TypeAdapter(Any)
_POLL_S: Final = 0.05
_MESSAGE_TOKENS: Final = 16
"""More than any model spends on the frame of one message."""
_HINTS: Final = {
    "401": " Check the key in the variable that api_key_env names.",
    "404": " Check base_url and model.",
}


class Meter(Protocol):
    """Something that says whether a call may be paid for; safe to use from many threads."""

    def reserve(self, prompt_tokens: int, completion_tokens: int) -> int | None:
        """Set aside the most that an attempt can cost.

        Returns:
            A ticket for ``settle``, or None if other attempts have to be settled first.

        Raises:
            ChatBudget: If the attempt cannot be paid for whatever the others cost.
        """
        ...

    def settle(self, ticket: int, usage: Usage | None) -> None:
        """Replace what was set aside by what was used; None if nobody can tell."""
        ...


@dataclass(frozen=True, slots=True)
class _Link:
    """What belongs to one event loop: connections, and the right to use so many at a time."""

    wire: Wire
    slots: asyncio.Semaphore


class ChatClient:
    """A chat model at an address.

    Making one opens nothing. It may be shared by threads and pickled.

    Args:
        base_url: Address of the endpoint up to its version, such as ``http://127.0.0.1:8000/v1``.
        model: Model name as the endpoint knows it; for results that count, a dated snapshot.
        api_key_env: Environment variable that holds the key; None sends no key.
        timeout_s: Seconds that one attempt may take, from connecting to the last byte.
        max_retries: How often a failed attempt is repeated, with the same model.
        concurrency: How many calls run at a time in one event loop; the others wait.
        backoff_s: Seconds before the first repetition; doubled each time, with jitter.
        max_wait_s: Longest pause between attempts. An endpoint that asks for more is unavailable.
        structured: How a wanted schema is asked for: ``json_schema`` (strict), ``json_object``, or
            ``off`` for endpoints that know neither.
        extra: Further fields of the request body; None as a value removes a field, so
            ``{"max_tokens": None, "max_completion_tokens": 512}`` renames one.
        max_body: Largest answer accepted, in bytes.
        meter: Asked before each attempt and told what it cost.
        transport: ``direct``, or ``openai`` to go through that package (proxies; extra ``llm``).

    Raises:
        ConfigError: If an option is out of range, or the key's variable is not set.
        EnvError: If the transport's package is not installed.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        timeout_s: float = 60.0,
        max_retries: int = 4,
        concurrency: int = 32,
        backoff_s: float = 0.5,
        max_wait_s: float = 60.0,
        structured: Structured = "json_schema",
        extra: Mapping[str, Any] | None = None,
        max_body: int = 4 << 20,
        meter: Meter | None = None,
        transport: Literal["direct", "openai"] = "direct",
    ) -> None:
        split_url(base_url)
        limits = {"timeout_s": timeout_s, "concurrency": concurrency, "max_body": max_body}
        waits = {"max_retries": max_retries, "backoff_s": backoff_s, "max_wait_s": max_wait_s}
        wrong = [k for k, v in limits.items() if not v > 0] + [k for k, v in waits.items() if not v >= 0]
        if wrong:
            raise ConfigError(
                f"chat model {model!r}: {wrong[0]} = {(limits | waits)[wrong[0]]} is out of range. "
                "timeout_s, concurrency and max_body must be > 0; max_retries, backoff_s and max_wait_s >= 0."
            )
        if transport == "openai":
            OpenAIWire.require()
        self.base_url, self.model = base_url, model
        self.timeout_s, self.max_retries, self.concurrency = timeout_s, max_retries, concurrency
        self.backoff_s, self.max_wait_s, self.max_body = backoff_s, max_wait_s, max_body
        self.structured, self.extra = structured, dict(extra or {})
        self.meter, self.transport = meter, transport
        self._key = _read_key(api_key_env, model)
        self._links: WeakKeyDictionary[asyncio.AbstractEventLoop, _Link] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"ChatClient({self.base_url!r}, {self.model!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_links": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _links=WeakKeyDictionary())

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything about the model and its settings that can change a reply, JSON-ready."""
        return {"model": self.model, "structured": self.structured, "extra": self.extra}

    async def acomplete(
        self,
        messages: ChatMessages,
        *,
        response_schema: Mapping[str, Any] | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        max_tokens: int = 1024,
        seed: int | None = None,
    ) -> ChatReply:
        """Ask the model for the next message.

        Args:
            messages: The conversation so far.
            response_schema: JSON schema that the reply shall follow; whether it does is not checked.
            temperature: Sampling temperature.
            top_p: Nucleus of the sampling.
            max_tokens: Most tokens of the reply.
            seed: Seed of the sampling, for endpoints that know one.

        Raises:
            ChatUnavailable, ChatTimeout, ChatRefused, ChatBudget: Why there is no reply.
        """
        body = self._body(messages, response_schema, (temperature, top_p, max_tokens, seed))
        most = (len(body) + _MESSAGE_TOKENS * len(messages), max_tokens)
        link = self._link()
        async with link.slots:
            return await self._persist(link.wire, body, most)

    def complete(self, messages: ChatMessages, **options: Any) -> ChatReply:
        """Ask the model and wait; options and errors are those of ``acomplete``."""
        return background.run(self.acomplete(messages, **options))

    def complete_many(self, requests: Sequence[ChatMessages], **options: Any) -> list[ChatReply | ChatError]:
        """Ask for many replies at a time and wait for all.

        Returns:
            For each request in order its reply, or the error that ``acomplete`` would raise.
        """
        return background.run(self._complete_many(requests, options))

    def close(self) -> None:
        """Close the connections of the synchronous calls; a later call opens new ones."""
        background.run(self.aclose())

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        if link := self._links.pop(asyncio.get_running_loop(), None):
            await link.wire.close()

    async def _complete_many(
        self, requests: Sequence[ChatMessages], options: Mapping[str, Any]
    ) -> list[ChatReply | ChatError]:
        async def one(messages: ChatMessages) -> ChatReply | ChatError:
            try:
                return await self.acomplete(messages, **options)
            except ChatError as error:
                return error

        return await asyncio.gather(*map(one, requests))

    def _link(self) -> _Link:
        loop = asyncio.get_running_loop()
        if loop not in self._links:
            self._links[loop] = _Link(self._make_wire(), asyncio.Semaphore(self.concurrency))
        return self._links[loop]

    def _make_wire(self) -> Wire:
        if self.transport == "openai":
            return OpenAIWire(self.base_url, self._key, self.max_body)
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        return DirectWire(self.base_url, headers, self.max_body)

    def _body(
        self,
        messages: ChatMessages,
        schema: Mapping[str, Any] | None,
        sampling: tuple[float, float, int, int | None],
    ) -> bytes:
        temperature, top_p, max_tokens, seed = sampling
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_tokens,
            "seed": seed,
        }
        if schema is not None and self.structured == "json_schema":
            wanted = {"name": "reply", "strict": True, "schema": schema}
            fields["response_format"] = {"type": "json_schema", "json_schema": wanted}
        elif schema is not None and self.structured == "json_object":
            fields["response_format"] = {"type": "json_object"}
        fields.update(self.extra)
        kept = {key: value for key, value in fields.items() if value is not None}
        return _json(kept)

    async def _persist(self, wire: Wire, body: bytes, most: tuple[int, int]) -> ChatReply:
        """Repeat an attempt until there is a reply or no sense in another attempt."""
        failures: tuple[str, ...] = ()
        while True:
            answer = await self._attempt(wire, body, most, failures)
            if isinstance(answer, ChatReply):
                return replace(answer, failures=failures) if failures else answer
            failures = (*failures, answer.cause)
            asked = answer.wait_s or 0.0
            if answer.is_final or asked > self.max_wait_s or len(failures) > self.max_retries:
                raise answer.error(self._explain(answer, len(failures)), failures)
            pause = min(self.max_wait_s, self.backoff_s * 2 ** (len(failures) - 1))
            await asyncio.sleep(asked + pause * (0.5 + 0.5 * _dice(body, len(failures))))

    async def _attempt(
        self, wire: Wire, body: bytes, most: tuple[int, int], failures: tuple[str, ...]
    ) -> ChatReply | Failure:
        ticket = await self._reserve(most, failures)
        usage: Usage | None = None
        try:
            async with asyncio.timeout(self.timeout_s):
                http = await wire.post(body)
            answer = read_answer(http.status, http.headers, http.body)
            usage = answer.usage
            return answer
        except TimeoutError:
            return Failure("timeout", f"no answer within {self.timeout_s:g} s", ChatTimeout)
        except WireError as error:
            return Failure(error.cause, str(error))
        finally:
            if self.meter is not None and ticket is not None:
                self.meter.settle(ticket, usage)

    async def _reserve(self, most: tuple[int, int], failures: tuple[str, ...]) -> int | None:
        if self.meter is None:
            return None
        try:
            while (ticket := self.meter.reserve(*most)) is None:
                await asyncio.sleep(_POLL_S)
        except ChatBudget as error:
            raise ChatBudget(str(error), failures) from error
        return ticket

    def _explain(self, failure: Failure, attempts: int) -> str:
        hint = _HINTS.get(failure.cause, "")
        if failure.wait_s is not None and failure.wait_s > self.max_wait_s:
            hint = f" It asks to wait {failure.wait_s:g} s; max_wait_s is {self.max_wait_s:g}."
        tried = f"{attempts} attempt{'s' if attempts > 1 else ''}"
        return f"{failure.message} (model {self.model!r} at {self.base_url}, {tried}).{hint}"


def _json(value: object) -> bytes:
    """Write JSON, half a surrogate pair as the replacement character."""
    try:
        return _ANYTHING.dump_json(value)
    except ValueError:
        return valid_text(json.dumps(value, ensure_ascii=False)).encode()


def _dice(body: bytes, attempt: int) -> float:
    """Draw from [0, 1): the same in every run for a request and the number of its attempt."""
    return CounterRng(derive_seed(0, "back-off", sha256(body).hexdigest(), attempt)).random()


def _read_key(variable: str | None, model: str) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "")
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"chat model {model!r}: the environment variable {variable} (api_key_env) holds no usable key. "
            "Set it, or leave api_key_env out for an endpoint without keys."
        )
    return key
