"""Chat completions by a model in this process: a request in the OpenAI layout in, a reply or a refusal out.

One thread computes; requests that arrive meanwhile are computed together next, and a reply depends on its
own request alone. HTTP is ``model_server.py``'s.
"""

import queue
import secrets
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from istar_envs.errors import IstarError
from istar_trainer.constrained import JsonWriter, Outline, outline
from istar_trainer.context import encode, render
from istar_trainer.sampler import LocalSampler, Request

_MOST_ROWS: Final = 64
_SEEDS: Final = 1 << 31


class BadRequest(IstarError):
    """A request that cannot be answered.

    Attributes:
        code: Short name of the reason, for programs.
    """

    def __init__(self, message: str, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.code = code


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "user", "assistant"]
    content: str | list[_Part]


class _Schema(BaseModel):
    json_schema: dict[str, Any] = Field(alias="schema")


class _Format(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class ChatRequest(BaseModel):
    """A request for a chat completion; what this server cannot do is refused, not ignored."""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    top_p: Annotated[float, Field(ge=1, le=1)] = 1.0
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=1)] = 1
    stream: Literal[False] = False
    response_format: _Format | None = None
    user: str | None = None

    @property
    def prompt(self) -> list[dict[str, str]]:
        """The messages as a chat template reads them."""
        return [
            {
                "role": message.role,
                "content": message.content
                if isinstance(message.content, str)
                else "".join(part.text for part in message.content),
            }
            for message in self.messages
        ]

    @property
    def schema_wanted(self) -> dict[str, Any] | None:
        """The JSON schema that the reply shall follow."""
        wanted = self.response_format and self.response_format.json_schema
        return wanted.json_schema if wanted else None


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished completion.

    Attributes:
        text: The words.
        is_whole: False if it was cut off at ``max_tokens``.
        prompt_tokens: Tokens that were read.
        completion_tokens: Tokens that were written.
    """

    text: str
    is_whole: bool
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class _Job:
    prompt_ids: list[int]
    max_tokens: int
    temperature: float
    seed: int
    wanted: Outline | None
    done: "Future[Reply]"


def read_request(body: bytes) -> ChatRequest:
    """Read the body of a request.

    Raises:
        BadRequest: Names the field that is wrong.
    """
    try:
        return ChatRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        known = (
            f" Known fields: {', '.join(ChatRequest.model_fields)}."
            if first["type"] == "extra_forbidden"
            else ""
        )
        raise BadRequest(f"{where}: {first['msg']}.{known}") from error


class Completer:
    """Answers chat requests with a model; safe to use from many threads.

    Args:
        model: Causal LM.
        tokenizer: Hugging Face tokenizer with a chat template.
        force_json: Whether a wanted JSON schema is forced; otherwise it is left to the model.
        max_words: Most tokens of one text inside forced JSON.
    """

    def __init__(
        self, model: nn.Module, tokenizer: Any, *, force_json: bool = True, max_words: int = 64
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._writer = JsonWriter(model, tokenizer, max_words=max_words) if force_json else None
        config: Any = model.config
        self._most_tokens = int(config.max_position_embeddings)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._tokenizing = threading.Lock()
        self._worker = threading.Thread(target=self._work, name="istar-completions", daemon=True)
        self._worker.start()

    def complete(self, request: ChatRequest) -> Reply:
        """Answer a request and wait for it.

        Raises:
            BadRequest: If the prompt is too long, or the schema cannot be forced.
        """
        job = self._prepare(request)
        self._jobs.put(job)
        return job.done.result()

    def close(self) -> None:
        """Stop computing after what is waiting now."""
        self._jobs.put(None)
        self._worker.join()

    def _prepare(self, request: ChatRequest) -> _Job:
        with self._tokenizing:
            prompt_ids = encode(self._tokenizer, render(self._tokenizer, request.prompt))
        room = self._most_tokens - len(prompt_ids)
        if room < 1:
            raise BadRequest(
                f"the prompt has {len(prompt_ids)} tokens; with a reply there may be {self._most_tokens}.",
                "context_length_exceeded",
            )
        schema = request.schema_wanted if self._writer else None
        try:
            wanted = None if schema is None else outline(schema)
        except ValueError as error:
            raise BadRequest(f"response_format: {error}") from error
        seed = secrets.randbelow(_SEEDS) if request.seed is None else request.seed
        most = request.max_completion_tokens or request.max_tokens or room
        return _Job(prompt_ids, min(most, room), request.temperature, seed, wanted, Future())

    def _work(self) -> None:
        while jobs := self._next():
            for alike in _alike(jobs):
                try:
                    replies = self._write(alike)
                except Exception as error:  # told to those who asked; the next request may do better
                    for job in alike:
                        job.done.set_exception(error)
                else:
                    for job, reply in zip(alike, replies, strict=True):
                        job.done.set_result(reply)

    def _next(self) -> list[_Job]:
        """Wait for a job and take what else is there; nothing at the end."""
        jobs: list[_Job] = []
        while (job := self._jobs.get()) is not None:
            jobs.append(job)
            if len(jobs) == _MOST_ROWS or self._jobs.empty():
                return jobs
        if jobs:
            self._jobs.put(None)
        return jobs

    def _write(self, jobs: list[_Job]) -> list[Reply]:
        first = jobs[0]
        if self._writer and first.wanted is not None:
            written = self._writer.write(
                first.prompt_ids,
                first.wanted,
                temperature=first.temperature,
                seed=first.seed,
                max_tokens=first.max_tokens,
            )
            return [Reply(written.text, written.is_whole, len(first.prompt_ids), written.num_tokens)]
        eos = self._tokenizer.eos_token_id
        sampler = LocalSampler(self._model, eos_token_id=eos, max_new_tokens=first.max_tokens)
        requests = [Request(job.prompt_ids, job.seed) for job in jobs]
        drawn = sampler.generate(requests, temperature=first.temperature)
        return [
            Reply(
                str(self._tokenizer.decode(completion.response_ids, skip_special_tokens=True)),
                completion.response_ids[-1] == eos,
                len(job.prompt_ids),
                len(completion.response_ids),
            )
            for job, completion in zip(jobs, drawn, strict=True)
        ]


def _alike(jobs: list[_Job]) -> list[list[_Job]]:
    """Put together what can be computed together: free text of one temperature and length."""
    groups: dict[object, list[_Job]] = {}
    for place, job in enumerate(jobs):
        key = (job.temperature, job.max_tokens) if job.wanted is None else place
        groups.setdefault(key, []).append(job)
    return list(groups.values())
