"""Any environment as a server that the clients of OpenEnv play.

An action is the reply of a language model, an observation holds the messages that ask for the next one. All
environments have the same action and observation, and no reply is ever refused. Each connection has an
environment of its own.

    uvicorn --factory module:app    # with app = lambda: create_app("istar/Sokoban-v0") in module.py

OpenEnv and uvicorn are in the extra ``openenv``.
"""

from typing import Any

from istar_envs.agent import Conversation, Message
from istar_envs.errors import EnvError
from istar_envs.interop.messages import portable
from istar_envs.registration import make

try:
    from fastapi import FastAPI
    from openenv.core.env_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
    from pydantic import Field
except ImportError as error:
    raise EnvError(
        'istar_envs.interop.openenv needs OpenEnv. Run: pip install "istar-envs[openenv]"'
    ) from error

_TOLD = ("task_id", "success", "score", "valid", "invalid_reason")


class Reply(Action):  # type: ignore[misc]
    """What the language model answers."""

    reply: str = Field(
        description="The model's text; it holds an action in the form that the messages ask for"
    )


class Turn(Observation):  # type: ignore[misc]
    """What asks for the next reply; ``metadata`` tells of the latest step what ``info`` tells."""

    messages: list[Message] = Field(
        default_factory=list, description="Chat messages in OpenAI's form; none at the end of an episode"
    )


class ConversationEnvironment(Environment):  # type: ignore[misc]
    """One environment in OpenEnv's interface.

    Args:
        name: Id of the environment.
        options: Its arguments.
        template: Prompt template, as for ``Conversation``.
        window: How much of the past a prompt repeats, as for ``Conversation``.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self, name: str, options: dict[str, Any], *, template: str = "think-v1", window: int | None = 2
    ) -> None:
        super().__init__()
        self._name = name
        self._conversation = Conversation(make(name, **options), template=template, window=window)
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Turn:
        """Start an episode.

        Args:
            seed: Restarts the generator of the environment.
            episode_id: Kept in the state, and nothing else.
            options: Options of the environment's own ``reset``, such as ``task_id``.
        """
        self._conversation.reset(seed=seed, options=options or None)
        self._state = State(episode_id=episode_id, step_count=0, task_id=self._conversation.task_id)
        return self._turn(None)

    def step(self, action: Reply, timeout_s: float | None = None, **_: Any) -> Turn:
        """Take a reply as the next step.

        Args:
            action: The reply.
            timeout_s: Ignored: steps are short.

        Raises:
            ResetNeeded: Without a running episode.
        """
        transition = self._conversation.respond(action.reply)
        self._state.step_count += 1
        return self._turn(transition.reward)

    @property
    def state(self) -> State:
        """Identity of the episode and the number of its steps."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Describe the environment."""
        role = " ".join(self._conversation.env.unwrapped.language.role.split())  # type: ignore[attr-defined]
        return EnvironmentMetadata(name=self._name, description=role)

    def close(self) -> None:
        """Close the environment."""
        self._conversation.env.close()

    def _turn(self, reward: float | None) -> Turn:
        game = self._conversation
        return Turn(
            messages=[] if game.done else portable(game.messages()),
            reward=reward,
            done=game.done,
            metadata={key: game.info[key] for key in _TOLD},
        )


def create_app(
    name: str,
    options: dict[str, Any] | None = None,
    *,
    template: str = "think-v1",
    window: int | None = 2,
    max_sessions: int = 64,
) -> FastAPI:
    """Make the application of a server, for uvicorn or any other ASGI server.

    Args:
        name: Id of the environment.
        options: Its arguments.
        template: Prompt template, as for ``Conversation``.
        window: How much of the past a prompt repeats, as for ``Conversation``.
        max_sessions: Connections that play at a time.
    """

    def opened() -> ConversationEnvironment:
        return ConversationEnvironment(name, options or {}, template=template, window=window)

    return create_fastapi_app(opened, Reply, Turn, max_concurrent_envs=max_sessions, env_name=name)
