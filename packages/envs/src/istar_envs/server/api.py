"""The session API: one small function per route; what they share is in ``service`` and ``sessions``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from flask import Response, request
from pydantic import ValidationError

from istar_envs.errors import IstarError
from istar_envs.server.problems import Refusal, refusal_of
from istar_envs.server.service import Service
from istar_envs.wire import messages
from istar_envs.wire.messages import MAX_IDS, MAX_START, Message
from istar_envs.wire.values import dumps, to_wire

M = TypeVar("M", bound=Message)

_SHOWN_ERRORS: Final = 5


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the API, as the server registers it and the OpenAPI document shows it.

    Attributes:
        method: HTTP method.
        path: With parameters in braces.
        view: What answers; its docstring is the summary.
        request: What the body holds, if there is one.
        answer: What the answer holds; None for nothing.
        status: Status of a good answer.
        refusals: Status codes of problem documents that are this route's own.
        query: Names of integer parameters of the query.
    """

    method: str
    path: str
    view: Callable[..., Response]
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

    def list_envs(self) -> Response:
        """List the ids of the environments."""
        return _answer(dumps({"envs": self._service.worlds.names}))

    def describe(self, env: str) -> Response:
        """Describe spaces and language of an environment."""
        return _answer(dumps(self._service.describe(env)))

    def create(self) -> Response:
        """Open a session with an environment of its own."""
        return _answer(dumps(self._sessions.create(read(messages.Create))), 201)

    def close(self, session: str) -> Response:
        """Close a session."""
        self._sessions.close(session)
        return Response(status=204)

    def clone(self, session: str) -> Response:
        """Open a session that goes on as this one would."""
        return _answer(dumps(self._sessions.clone(session, read(messages.Clone).key)), 201)

    def reset(self, session: str) -> Response:
        """Start an episode."""
        return _answer(self._sessions.play(session, read(messages.Reset)))

    def step(self, session: str) -> Response:
        """Take an action."""
        return _answer(self._sessions.play(session, read(messages.Step)))

    def invalid_step(self, session: str) -> Response:
        """Spend a step on a reply that is no action."""
        return _answer(self._sessions.play(session, read(messages.InvalidStep)))

    def truncate(self, session: str) -> Response:
        """End the episode at a limit of the agent's own."""
        return _answer(self._sessions.play(session, read(messages.Truncate)))

    def expert(self, session: str) -> Response:
        """Ask for the action that the environment's expert would take."""
        return self._asked(session, "expert_action")

    def render(self, session: str) -> Response:
        """Show the environment in its render mode."""
        return self._asked(session, "render")

    def task_ids(self, session: str) -> Response:
        """List a part of the task ids that a reset can ask for."""
        start, limit = _query("start", 0, MAX_START), _query("limit", MAX_IDS, MAX_IDS)
        with self._sessions.using(session) as held:
            world: Any = held.env.unwrapped
            ids = world.task_ids()
        total = None if ids is None else len(ids)
        return _answer(dumps({"total": total, "ids": list(ids[start : start + limit]) if ids else []}))

    def batch(self) -> Response:
        """Make calls to many sessions at once."""
        answers = [self._called(call) for call in read(messages.Batch).calls]
        return _answer(f'{{"answers":[{",".join(answers)}]}}')

    def _called(self, call: Any) -> str:
        try:
            return self._sessions.play(call.session, call)
        except IstarError as error:
            refusal = refusal_of(error)
            self._service.metrics.count("problems", refusal.error)
            return dumps({"problem": refusal.document()})

    def _asked(self, session: str, question: str) -> Response:
        with self._sessions.using(session) as held:
            world: Any = held.env.unwrapped
            if not hasattr(world, question):
                raise Refusal(422, "NotOffered", f"{held.name} has no {question}.")
            return _answer(dumps({"value": to_wire(getattr(world, question)(), held.pictures)}))


def read(kind: type[M]) -> M:
    """Read the body of the request.

    Raises:
        Refusal: If it is no JSON of that kind.
    """
    if request.mimetype != "application/json":
        raise Refusal(
            415,
            "NotJson",
            f"the body is {request.mimetype or 'of no type'}. Send Content-Type: application/json.",
        )
    try:
        return kind.model_validate_json(request.get_data())
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
    is_broken = faults[0]["type"] == "json_invalid"
    told = "; ".join(
        f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in faults[:_SHOWN_ERRORS]
    )
    raise Refusal(
        400 if is_broken else 422,
        "JsonBroken" if is_broken else "RequestInvalid",
        f"{told} ({kind.__name__}). /openapi.json says what is expected.",
    )


def _query(name: str, default: int, highest: int) -> int:
    text = request.args.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and int(text[:12]) <= highest):
        raise Refusal(
            422, "RequestInvalid", f"{name}={text[:20]!r} is no number from 0 to {highest} (address)."
        )
    return int(text)


def _answer(text: str, status: int = 200) -> Response:
    return Response(text, status, mimetype="application/json")
