"""One question to a model judge: asked, read, asked again if need be, and remembered.

The same model answers every time. What the question is and what the answer means is ``llm_judge.py``'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Protocol

from istar_envs.chat import (
    NO_USAGE,
    ChatBudget,
    ChatError,
    ChatMessages,
    ChatRefused,
    ChatReply,
    ChatTimeout,
    Usage,
)
from istar_envs.episode import OutcomeStatus
from istar_judges.cache import CachedReply, VerdictCache, cache_key
from istar_judges.errors import JudgeError, VerdictUnreadable
from istar_judges.prompting import Message, Prompt, ask_again
from istar_judges.rubric import Rubric
from istar_judges.verdict import Verdict, is_refusal, read_verdict, verdict_schema

_STATUSES: Final[Mapping[type[ChatError], OutcomeStatus]] = {
    ChatTimeout: "timeout",
    ChatRefused: "refused",
    ChatBudget: "budget",
}


class Chat(Protocol):
    """The model that is asked, such as an ``istar_envs.chat.ChatClient``."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything about the model and its settings that can change an answer, JSON-ready."""
        ...

    @property
    def concurrency(self) -> int:
        """How many calls may run at a time."""
        ...

    async def acomplete(
        self,
        messages: ChatMessages,
        *,
        response_schema: Mapping[str, Any] | None,
        temperature: float,
        top_p: float,
        max_tokens: int,
        seed: int | None,
    ) -> ChatReply:
        """Return the next message, or raise a ``ChatError``."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the judge's words are sampled.

    Attributes:
        temperature: 0 for the likeliest words, which is still not the same every time.
        top_p: Nucleus of the sampling.
        max_tokens: Most tokens of an answer.
        seed: Seed for endpoints that know one; sample ``k`` uses ``seed + k``.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 2048
    seed: int | None = None


GREEDY: Final = Sampling()
"""The likeliest words, 2048 tokens at most."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a question ended.

    Attributes:
        status: ``ok``, or why there are no scores.
        scores: By seat label and dimension; empty unless ``ok``.
        detail: What went wrong, for people.
        failures: Cause of every failed attempt, in order.
        usage: Tokens as counted by the endpoint, for every answer it gave.
        model: The model that answered last, by the endpoint's word.
        fingerprint: The endpoint's mark of its own version, or None.
        is_cached: Whether it came from the cache.
    """

    status: OutcomeStatus
    scores: Verdict
    detail: str = ""
    failures: tuple[str, ...] = ()
    usage: Usage = NO_USAGE
    model: str = ""
    fingerprint: str | None = None
    is_cached: bool = False

    def failed(self, status: OutcomeStatus, detail: str, *causes: str) -> "Answer":
        """Return the answer after a failed attempt."""
        return replace(self, status=status, detail=detail, failures=(*self.failures, *causes))


class Asker:
    """Puts questions to a model and reads the answers as verdicts.

    Args:
        chat: The model.
        rubric: What is asked.
        prompt: The texts of asking again.
        sampling: How answers are sampled.
        max_reasks: How often the model is asked again after an answer that is no verdict.
        snapshot: The model that every answer must come from, or None.
        cache: Where verdicts are kept, or None.
    """

    def __init__(
        self,
        chat: Chat,
        rubric: Rubric,
        prompt: Prompt,
        *,
        sampling: Sampling,
        max_reasks: int,
        snapshot: str | None,
        cache: VerdictCache | None,
    ) -> None:
        self._chat, self._rubric, self._prompt = chat, rubric, prompt
        self._sampling, self._max_reasks = sampling, max_reasks
        self._snapshot, self._cache = snapshot, cache
        self._schemas: dict[tuple[str, ...], dict[str, Any]] = {}
        self._settings = {
            "chat": dict(chat.identity),
            "snapshot": snapshot,
            "prompt": prompt.version,
            "rubric": rubric.version,
            "sampling": asdict(sampling),
        }

    async def answer(self, messages: list[Message], labels: Sequence[str], sample: int) -> Answer:
        """Get a verdict from the cache or the model.

        Args:
            messages: The question.
            labels: Labels of the seats that are scored.
            sample: Which of several independent answers to the same question this is.

        Raises:
            CacheMiss: If the cache is read-only and does not know the question.
        """
        if self._cache is None:
            return (await self._ask(messages, labels, sample))[0]
        key = cache_key({**self._settings, "sample": sample, "messages": messages})
        if kept := self._cache.get(key):
            return self._recall(kept, labels)
        answer, reply = await self._ask(messages, labels, sample)
        if answer.status == "ok" and reply is not None:
            self._cache.put(key, CachedReply(reply.text, reply.model, reply.system_fingerprint))
        return answer

    async def _ask(
        self, messages: list[Message], labels: Sequence[str], sample: int
    ) -> tuple[Answer, ChatReply | None]:
        answer, asked, reply = Answer("invalid", {}), messages, None
        for _ in range(self._max_reasks + 1):
            answer, reply = await self._attempt(answer, asked, labels, sample)
            if answer.status != "invalid" or reply is None:
                break
            asked = ask_again(self._prompt, messages, reply.text, answer.detail)
        return answer, reply

    async def _attempt(
        self, answer: Answer, messages: list[Message], labels: Sequence[str], sample: int
    ) -> tuple[Answer, ChatReply | None]:
        sampling = self._sampling
        try:
            reply = await self._chat.acomplete(
                messages,
                response_schema=self._schema(labels),
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                seed=None if sampling.seed is None else sampling.seed + sample,
            )
        except ChatError as error:
            status = _STATUSES.get(type(error), "unavailable")
            return answer.failed(status, str(error), *error.failures), None
        answer = replace(
            answer,
            failures=answer.failures + reply.failures,
            usage=answer.usage + (reply.usage or NO_USAGE),
            model=reply.model,
            fingerprint=reply.system_fingerprint,
        )
        return self._read(answer, reply, labels), reply

    def _read(self, answer: Answer, reply: ChatReply, labels: Sequence[str]) -> Answer:
        if self._snapshot is not None and reply.model != self._snapshot:
            detail = f"{reply.model!r} answered, but {self._snapshot!r} is pinned"
            return answer.failed("unavailable", detail, "snapshot")
        if is_refusal(reply.text):
            return answer.failed("refused", "the model says that it will not judge this", "refused")
        try:
            scores = read_verdict(reply.text, self._rubric, labels)
        except VerdictUnreadable as error:
            cut_off = reply.finish_reason == "length"
            detail = f"it was cut off at {self._sampling.max_tokens} tokens" if cut_off else str(error)
            return answer.failed("invalid", detail, f"verdict:{'cut_off' if cut_off else error.kind}")
        return replace(answer, status="ok", scores=scores, detail="")

    def _recall(self, kept: CachedReply, labels: Sequence[str]) -> Answer:
        try:
            scores = read_verdict(kept.text, self._rubric, labels)
        except VerdictUnreadable as error:
            raise JudgeError(
                f"the verdict cache holds an answer that is no verdict: {error}. Its file is damaged; "
                "judge with a new one."
            ) from error
        return Answer("ok", scores, model=kept.model, fingerprint=kept.fingerprint, is_cached=True)

    def _schema(self, labels: Sequence[str]) -> dict[str, Any]:
        wanted = tuple(labels)
        if wanted not in self._schemas:
            self._schemas[wanted] = verdict_schema(self._rubric, wanted)
        return self._schemas[wanted]
