"""Requests and answers of the session API, as the server checks them and its OpenAPI document shows them.

``sequence`` numbers what is done to a session: 1, 2, 3, … A number that was carried out already gets the
same answer again and nothing happens; any other than the next one is refused. So a request may be repeated
whenever its answer did not arrive.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from istar_envs.wire.values import Pictures

MAX_BATCH: Final = 1024
"""Most calls in one batch."""
MAX_IDS: Final = 1000
"""Most task ids in one answer."""
MAX_START: Final = 10**9
"""Largest place in a list of task ids that can be asked for."""

_JSON_VALUE: Final = (
    "A JSON value. What JSON does not have is an object with one key: "
    '{"$array": {"dtype": "|u1", "shape": [2, 2], "data": base64}}, {"$scalar": …}, {"$png": base64}, '
    '{"$tuple": […]}, {"$float": "nan" | "inf" | "-inf"}, {"$dict": [[key, value], …]}.'
)
Value = Annotated[Any, Field(description=_JSON_VALUE)]


def _whole(value: Any) -> Any:
    """Take a number such as 3.0 for the whole number that it is in JSON."""
    return int(value) if type(value) is float and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
Sequence = Annotated[Whole, Field(ge=1, le=2**53, description="Number of this call in its session, from 1.")]
Key = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_-]{16,64}$",
        description="Random text of the client's: a repeated request with it makes no second session.",
    ),
]
Seed = Annotated[Whole, Field(ge=0, lt=2**63)]


class Message(BaseModel):
    """Base of all: unknown keys are refused, nothing is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Create(Message):
    """Open a session with an environment of its own."""

    env: str = Field(max_length=100, description="Id of the environment.", examples=["istar/Sokoban-v0"])
    options: dict[str, Any] = Field(default={}, description="Arguments of the environment.")
    pictures: Pictures = Field(default="png", description="How pictures are sent.")
    key: Key | None = None


class Clone(Message):
    """Copy a session as it stands: both go on alike and apart."""

    key: Key | None = None


class Reset(Message):
    """Start an episode."""

    sequence: Sequence
    seed: Seed | None = None
    options: dict[str, Any] | None = None


class Step(Message):
    """Take an action."""

    sequence: Sequence
    action: Value


class InvalidStep(Message):
    """Spend a step on a reply that is no action."""

    sequence: Sequence
    reason: str = Field(max_length=10_000)


class Truncate(Message):
    """End the episode at a limit of the agent's own."""

    sequence: Sequence


Move = Reset | Step | InvalidStep | Truncate
"""What is done to a session."""


class ResetCall(Reset):
    """One call of a batch: a reset."""

    call: Literal["reset"]
    session: str


class StepCall(Step):
    """One call of a batch: a step."""

    call: Literal["step"]
    session: str


class InvalidStepCall(InvalidStep):
    """One call of a batch: an invalid step."""

    call: Literal["invalid_step"]
    session: str


class Batch(Message):
    """Calls to many sessions, carried out in order; one that is refused does not disturb the others."""

    calls: list[Annotated[ResetCall | StepCall | InvalidStepCall, Field(discriminator="call")]] = Field(
        max_length=MAX_BATCH
    )


class EnvNames(Message):
    """Ids of the environments that are served."""

    envs: list[str]


class Description(Message):
    """What an environment takes and gives."""

    env: str
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    language: dict[str, Any]
    metadata: dict[str, Any]
    render_mode: str | None
    offers: list[str] = Field(description='What else it can do: "truncate", "expert_action", "task_ids".')
    num_tasks: int | None = Field(description="Length of its list of task ids; null if it is endless.")


class Session(Description):
    """A session: whoever knows its id can play it."""

    session: str
    server: str = Field(description="Changes when the server is restarted; all sessions are lost then.")
    sequence: int = Field(description="Calls carried out so far.")
    observation: Value = None
    info: dict[str, Any] | None = Field(default=None, description="Null before the first reset.")


class Started(Message):
    """Answer to a reset."""

    sequence: int
    observation: Value
    info: dict[str, Any]


class Stepped(Message):
    """Answer to a step."""

    sequence: int
    observation: Value
    reward: Value
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Problem(BaseModel):
    """What went wrong, where and how to fix it (RFC 9457)."""

    type: str = Field(description="urn:istar:problem: and the name of the error.")
    title: str
    status: int
    detail: str
    instance: str | None = Field(default=None, description="urn:istar:request: and the id of the request.")
    error: str = Field(description="Name of the error.")
    server: str | None = Field(default=None, description="With SessionLost: the server that answers now.")


class Refused(Message):
    """Answer to a call of a batch that was refused."""

    problem: Problem


class BatchAnswer(Message):
    """One answer for each call, in order."""

    answers: list[Stepped | Started | Refused]


class TaskIds(Message):
    """A part of the list of task ids."""

    total: int | None = Field(description="Null if the list is endless; there are no ids then.")
    ids: list[str]


class Answer(Message):
    """One value."""

    value: Value


class Health(Message):
    """Whether the server works."""

    status: Literal["ok", "starting", "stopping"]
