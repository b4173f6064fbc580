"""The session API: one small function per route; what they share is in ``service`` and ``sessions``."""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from pydantic import ValidationError

from istar_envs.errors import IstarError
from istar_envs.server.problems import Refusal, refusal_of
from istar_envs.server.service import Service
from istar_envs.wire import messages
from istar_envs.wire.messages import MAX_IDS, MAX_START, InvalidStep, Message, Reset, Step, Truncate
from istar_envs.wire.values import dumps, to_wire

M = TypeVar("M", bound=Message)
Environ = MutableMapping[str, Any]
"""A request as WSGI tells it."""

_JSON: Final = "application/json"
_BATCH: Final = ["", "v1", "batch"]
_SESSIONS: Final = ["v1", "sessions"]
_MOVES: Final[Mapping[str, type[Reset | Step | InvalidStep | Truncate]]] = {
    "reset": Reset,
    "step": Step,
    "invalid_step": InvalidStep,
    "truncate": Truncate,
}
_SHOWN_ERRORS: Final = 5


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the API, as the server registers it and the OpenAPI document shows it.

    Attributes:
        method: HTTP method.
        path: With parameters in braces.
        view: What answers a WSGI environment and the parameters of the path with JSON; its docstring is the
            summary.
        request: What the body holds, if there is one.
        answer: What the answer holds; None for nothing.
        status: Status of a good answer.
        refusals: Status codes of problem documents that are this route's own.
        query: Names of integer parameters of the query.
    """

    method: str
    path: str
    view: Callable[..., str]
    request: type[Message] | None = None
    answer: type[Message] | None = None
    status: int = 200
    refusals: tuple[int, ...] = ()
    query: tuple[str, ...] = ()


class Api:
    """Answers requests.

    Args:
        service: What is served.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sessions = service.sessions

    def routes(self) -> tuple[Route, ...]:
        """Return all operations."""
        m, session = messages, "/v1/sessions/{session}"
        invalid = f"{session}/invalid_step"
        moves = (404, 409, 413, 415, 422)
        return (
            Route("GET", "/v1/envs", self.list_envs, answer=m.EnvNames),
            Route("GET", "/v1/envs/{env}", self.describe, answer=m.Description, refusals=(404,)),
            Route("POST", "/v1/sessions", self.create, m.Create, m.Session, 201, (404, 413, 415, 422)),
            Route("DELETE", session, self.close, status=204, refusals=(404,)),
            Route("POST", f"{session}/clone", self.clone, m.Clone, m.Session, 201, (404, 413, 415, 422)),
            Route("POST", f"{session}/reset", self.reset, m.Reset, m.Started, refusals=moves),
            Route("POST", f"{session}/step", self.step, m.Step, m.Stepped, refusals=moves),
            Route("POST", invalid, self.invalid_step, m.InvalidStep, m.Stepped, refusals=moves),
            Route("POST", f"{session}/truncate", self.truncate, m.Truncate, m.Stepped, refusals=moves),
            Route("GET", f"{session}/expert_action", self.expert, answer=m.Answer, refusals=moves),
            Route("GET", f"{session}/render", self.render, answer=m.Answer, refusals=moves),
            Route(
                "GET", f"{session}/task_ids", self.task_ids, answer=m.TaskIds, refusals=(404, 422),
                query=("start", "limit"),
            ),
            Route("POST", "/v1/batch", self.batch, m.Batch, m.BatchAnswer, refusals=(413, 415, 422)),
        )  # fmt: skip

    def shortcut(self, environ: Environ) -> str | None:
        """Answer a step, a reset or a batch; None if the request is for something else."""
        if environ["REQUEST_METHOD"] != "POST":
            return None
        parts = environ["PATH_INFO"].split("/")
        if parts == _BATCH:
            environ["istar.route"] = "/v1/batch"
            return self.batch(environ)
        if len(parts) == 5 and parts[1:3] == _SESSIONS and parts[4] in _MOVES:
            environ["istar.route"] = f"/v1/sessions/<session>/{parts[4]}"
            return self._sessions.play(parts[3], self._read(environ, _MOVES[parts[4]]))
        return None

    def list_envs(self, environ: Environ) -> str:
        """List the ids of the environments."""
        return dumps({"envs": self._service.worlds.names})

    def describe(self, environ: Environ, env: str) -> str:
        """Describe spaces and language of an environment."""
        return dumps(self._service.describe(env))

    def create(self, environ: Environ) -> str:
        """Open a session with an environment of its own."""
        return dumps(self._sessions.create(self._read(environ, messages.Create)))

    def close(self, environ: Environ, session: str) -> str:
        """Close a session."""
        self._sessions.close(session)
        return ""

    def clone(self, environ: Environ, session: str) -> str:
        """Open a session that goes on as this one would."""
        return dumps(self._sessions.clone(session, self._read(environ, messages.Clone).key))

    def reset(self, environ: Environ, session: str) -> str:
        """Start an episode."""
        return self._sessions.play(session, self._read(environ, messages.Reset))

    def step(self, environ: Environ, session: str) -> str:
        """Take an action."""
        return self._sessions.play(session, self._read(environ, messages.Step))

    def invalid_step(self, environ: Environ, session: str) -> str:
        """Spend a step on a reply that is no action."""
        return self._sessions.play(session, self._read(environ, messages.InvalidStep))

    def truncate(self, environ: Environ, session: str) -> str:
        """End the episode at a limit of the agent's own."""
        return self._sessions.play(session, self._read(environ, messages.Truncate))

    def expert(self, environ: Environ, session: str) -> str:
        """Ask for the action that the environment's expert would take."""
        return self._asked(session, "expert_action")

    def render(self, environ: Environ, session: str) -> str:
        """Show the environment in its render mode."""
        return self._asked(session, "render")

    def task_ids(self, environ: Environ, session: str) -> str:
        """List a part of the task ids that a reset can ask for."""
        asked = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
        start, limit = _number(asked, "start", 0, MAX_START), _number(asked, "limit", MAX_IDS, MAX_IDS)
        with self._sessions.using(session) as held:
            world: Any = held.env.unwrapped
            ids = world.task_ids()
        total = None if ids is None else len(ids)
        return dumps({"total": total, "ids": list(ids[start : start + limit]) if ids else []})

    def batch(self, environ: Environ) -> str:
        """Make calls to many sessions at once."""
        calls = self._read(environ, messages.Batch).calls
        with self._sessions.turn(call.session for call in calls):
            answers = [self._called(call) for call in calls]
        return f'{{"answers":[{",".join(answers)}]}}'

    def _called(self, call: Any) -> str:
        try:
            return self._sessions.play(call.session, call)
        except IstarError as error:
            refusal = refusal_of(error)
            self._service.metrics.count("problems", refusal.error)
            return dumps({"problem": refusal.document()})

    def _asked(self, session: str, question: str) -> str:
        with self._sessions.using(session) as held:
            world: Any = held.env.unwrapped
            if not hasattr(world, question):
                raise Refusal(422, "NotOffered", f"{held.name} has no {question}.")
            return dumps({"value": to_wire(getattr(world, question)(), held.pictures)})

    def _read(self, environ: Environ, kind: type[M]) -> M:
        """Read the body of a request.

        Raises:
            Refusal: If it is no JSON of that kind, or too long.
        """
        media, length = environ.get("CONTENT_TYPE", ""), int(environ.get("CONTENT_LENGTH") or 0)
        if media != _JSON and media.partition(";")[0].strip().lower() != _JSON:
            raise Refusal(
                415, "NotJson", f"the body is {media[:50] or 'of no type'}. Send Content-Type: {_JSON}."
            )
        if length > self._service.limits.max_body:
            raise Refusal(
                413,
                "RequestEntityTooLarge",
                f"the body has {length} bytes, {self._service.limits.max_body} are allowed. Send less.",
            )
        try:
            return kind.model_validate_json(environ["wsgi.input"].read(length))
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
        is_broken = faults[0]["type"] == "json_invalid"
        told = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}"
            for fault in faults[:_SHOWN_ERRORS]
        )
        raise Refusal(
            400 if is_broken else 422,
            "JsonBroken" if is_broken else "RequestInvalid",
            f"{told} ({kind.__name__}). /openapi.json says what is expected.",
        )


def _number(asked: Mapping[str, str], name: str, default: int, highest: int) -> int:
    text = asked.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and int(text[:12]) <= highest):
        raise Refusal(
            422, "RequestInvalid", f"{name}={text[:20]!r} is no number from 0 to {highest} (address)."
        )
    return int(text)
