"""The environment ``istar/Remote-v0``: any other one, on a server.

Spaces, language, observations, rewards and infos are exactly those of the environment there.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from istar_envs.errors import ResetNeeded, SessionLost
from istar_envs.remote.client import Client
from istar_envs.remote.session import RemoteSession, sendable
from istar_envs.wire.descriptions import build
from istar_envs.wire.values import Pictures

StepResult = tuple[Any, float, bool, bool, dict[str, Any]]


class RemoteSnapshot:
    """A session that stands where an episode stood; made by ``clone_state``.

    It expires on the server like any other session that nobody uses.

    Args:
        session: Never played itself.

    Attributes:
        session: As given.
    """

    def __init__(self, session: RemoteSession) -> None:
        self.session = session

    def close(self) -> None:
        """Give it up; it cannot be restored any more."""
        self.session.close()


class RemoteEnv(gym.Env[Any, Any]):
    """An environment on a server started by ``istar-envs serve``.

    What it observes, takes, pays and reports is what the environment there does. A copy, by ``pickle`` or
    ``copy.deepcopy``, has a session of its own. When a session is lost (the server was restarted, or nobody
    played for too long), the call that notices raises ``SessionLost`` and ``reset`` starts in a new one.

    Args:
        url: Address of the server.
        env: Id of the environment there.
        options: Arguments of that environment; the server may not let you choose all of them.
        token: The server's token, if it asks for one.
        pictures: ``png`` or ``raw``: how pictures travel; what arrives is the same.
        timeout_s: Seconds to wait for one answer.
        patience_s: Seconds during which a request that fails is repeated.
        render_mode: Render mode of that environment.

    Attributes:
        env_id: Id of the environment there.
        language: How a language model plays it.

    Raises:
        ServerUnreachable: If the server does not answer.
        EnvError: If it has no such environment.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        url: str,
        env: str,
        *,
        options: Mapping[str, Any] | None = None,
        token: str = "",
        pictures: Pictures = "png",
        timeout_s: float = 60.0,
        patience_s: float = 30.0,
        render_mode: str | None = None,
    ) -> None:
        self.env_id = env
        self._options = dict(options or {}) | ({} if render_mode is None else {"render_mode": render_mode})
        self._pictures: Pictures = pictures
        self._client = Client(url, token=token, timeout_s=timeout_s, patience_s=patience_s)
        self._session: RemoteSession | None = None
        described = self._opened().described
        self.observation_space = build(described["observation_space"])
        self.action_space = build(described["action_space"])
        self.language = build(described["language"])
        self.render_mode = described["render_mode"]
        self.metadata = described["metadata"]
        self._offers = frozenset(described["offers"])

    def __getattr__(self, name: str) -> Any:
        if name == "truncate" and name in self.__dict__.get("_offers", ()):
            return self._truncate
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; as the environment there does.

        Args:
            seed: Restarts the generator of the environment.
            options: As the environment there takes them; they must be JSON-ready.

        Raises:
            SessionLost: If the session is gone; the next reset starts in a new one.
            EnvError: If the environment refuses.
        """
        super().reset(seed=seed)
        self._opened()
        answer = self._move("reset", seed=seed, options=sendable(options, "options"))
        return answer["observation"], answer["info"]

    def step(self, action: Any) -> StepResult:
        """Take an action.

        Args:
            action: As the environment there takes it.

        Raises:
            ResetNeeded: Before the first reset and after the end of an episode.
            SessionLost: If the session is gone.
            EnvError: If the environment refuses the action.
        """
        return step_result(self._move("step", action=action_on_wire(action)))

    def invalid_step(self, reason: str) -> StepResult:
        """Spend one step on an unreadable action.

        Args:
            reason: Why the action could not be read.
        """
        return step_result(self._move("invalid_step", reason=reason))

    def expert_action(self) -> Any:
        """Return what the environment's expert would do."""
        return self._running().ask("expert_action")

    def task_ids(self) -> Sequence[str] | None:
        """Return the ids for ``reset(options={"task_id": …})``; None if there is no end of them."""
        return self._opened().task_ids()

    def clone_state(self) -> RemoteSnapshot:
        """Return where the episode stands, for ``restore_state`` to use any number of times."""
        return RemoteSnapshot(self._running().clone())

    def restore_state(self, snapshot: RemoteSnapshot) -> tuple[Any, dict[str, Any]]:
        """Go on from a snapshot of an environment of the same server.

        Returns:
            Observation and ``info`` of that state.

        Raises:
            SessionLost: If the snapshot has expired.
        """
        session = snapshot.session.clone()
        self._close_session()
        self._session = session
        return session.described["observation"], session.described["info"]

    def render(self) -> Any:
        """Show what the environment there shows in its render mode."""
        return None if self.render_mode is None else self._running().ask("render")

    def close(self) -> None:
        """Close session and connections; calling it again does nothing, and ``reset`` opens new ones."""
        self._close_session()
        self._client.close()

    def __getstate__(self) -> dict[str, Any]:
        session = None if self._session is None else self._session.clone()
        return {**self.__dict__, "_session": session}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._session is not None:
            self._session = self._session.clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> "RemoteEnv":
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        session = None if self._session is None else self._session.clone()
        shared = {"_session": session, "_client": self._client}
        twin.__dict__.update(
            {key: copy.deepcopy(value, memo) for key, value in self.__dict__.items() if key not in shared}
        )
        twin.__dict__.update(shared)
        return twin

    def _truncate(self) -> StepResult:
        """End the episode at a limit of the agent's own."""
        return step_result(self._move("truncate"))

    def _move(self, call: str, **arguments: Any) -> dict[str, Any]:
        session = self._running()
        try:
            return session.move(call, **arguments)
        except SessionLost:
            self._session = None
            raise

    def _opened(self) -> RemoteSession:
        if self._session is None:
            self._session = RemoteSession.open(
                self._client, self.env_id, self._options, pictures=self._pictures
            )
        return self._session

    def _running(self) -> RemoteSession:
        if self._session is None:
            raise ResetNeeded(f"there is no session (istar/Remote-v0, {self.env_id}). Call reset() first.")
        return self._session

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def action_on_wire(action: Any) -> Any:
    """Return an action as it travels; NumPy numbers become plain ones.

    Raises:
        EnvError: If it cannot be sent.
    """
    return sendable(action.item() if isinstance(action, np.generic) else action, "action")


def step_result(answer: Mapping[str, Any]) -> StepResult:
    """Return what a step returns."""
    return (
        answer["observation"],
        answer["reward"],
        answer["terminated"],
        answer["truncated"],
        answer["info"],
    )
