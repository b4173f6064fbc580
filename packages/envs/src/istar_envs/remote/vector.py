"""Many sessions on a server stepped together, in a few requests for all of them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from istar_envs.errors import EnvError, ResetNeeded, SessionLost
from istar_envs.remote.client import Client
from istar_envs.remote.env import action_on_wire
from istar_envs.remote.session import RemoteSession, sendable
from istar_envs.vector_infos import stack_infos
from istar_envs.wire.descriptions import build
from istar_envs.wire.messages import MAX_BATCH
from istar_envs.wire.values import Pictures

Infos = dict[str, Any]


class RemoteVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """Many episodes of one environment on a server; what ``gymnasium.make_vec("istar/Remote-v0", …)`` makes.

    An ended episode is replaced at its next step (Gymnasium's ``NEXT_STEP``): that step's action is
    ignored and its reward is 0. The infos hold every key of the single environment as an array with its
    ``_key`` mask.

    Args:
        num_envs: Number of episodes.
        url: Address of the server.
        env: Id of the environment there.
        options: Arguments of that environment.
        token: The server's token, if it asks for one.
        pictures: ``png`` or ``raw``: how pictures travel.
        timeout_s: Seconds to wait for one answer.
        patience_s: Seconds during which a request that fails is repeated.
        connections: Requests that the rows are spread over; the server answers them side by side.
        render_mode: Render mode of that environment.

    Raises:
        ServerUnreachable: If the server does not answer.
        EnvError: If it has no such environment, or an argument is out of range.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array", "ansi"],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        *,
        url: str,
        env: str,
        options: dict[str, Any] | None = None,
        token: str = "",
        pictures: Pictures = "png",
        timeout_s: float = 60.0,
        patience_s: float = 30.0,
        connections: int = 2,
        render_mode: str | None = None,
    ) -> None:
        for name, value in (("num_envs", num_envs), ("connections", connections)):
            if value < 1:
                raise EnvError(f"{name} must be at least 1, got {value} (vectorised istar/Remote-v0).")
        self.num_envs = num_envs
        self.env_id = env
        self._options = dict(options or {}) | ({} if render_mode is None else {"render_mode": render_mode})
        self._pictures: Pictures = pictures
        self._client = Client(url, token=token, timeout_s=timeout_s, patience_s=patience_s)
        self._threads = ThreadPoolExecutor(connections, "istar-remote")
        self._part = min(-(-num_envs // connections), MAX_BATCH)
        self._sessions: list[RemoteSession] = []
        self._has_ended: list[bool] = []
        described = self._open_all()[0].described
        self.single_observation_space = build(described["observation_space"])
        self.single_action_space = build(described["action_space"])
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.language = build(described["language"])
        self.render_mode = described["render_mode"]

    def task_ids(self) -> Sequence[str] | None:
        """Return the task ids, as for the single environment."""
        return self._open_all()[0].task_ids()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Start an episode in every row.

        Args:
            seed: Row ``i`` is reset with ``seed + i``, or with the ``i``-th of a list.
            options: As the single environment takes them; ``{"task_ids": [...]}`` gives each row its
                ``task_id``.

        Raises:
            SessionLost: If a session is gone; the next reset starts in new ones.
            EnvError: If the environment refuses, or a list has the wrong length.
        """
        sessions = self._open_all()
        seeds = (
            seed
            if isinstance(seed, Sequence)
            else [None if seed is None else seed + i for i in range(self.num_envs)]
        )
        shared = dict(options or {})
        tasks = shared.pop("task_ids", None)
        for name, values in (("seeds", seeds), ("task_ids", tasks)):
            if values is not None and len(values) != self.num_envs:
                raise EnvError(
                    f"{len(values)} {name} for {self.num_envs} rows (vectorised istar/Remote-v0, reset)."
                )
        each = [
            shared if tasks is None else {**shared, "task_id": tasks[row]} for row in range(self.num_envs)
        ]
        answers = self._send(
            [
                session.batched("reset", seed=own, options=sendable(chosen, "options") or None)
                for session, own, chosen in zip(sessions, seeds, each, strict=True)
            ]
        )
        self._has_ended = [False] * self.num_envs
        return self._observations(answers), stack_infos([answer["info"] for answer in answers])

    def step(
        self, actions: Sequence[Any] | NDArray[Any]
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Take one action in every row.

        Args:
            actions: ``num_envs`` actions.

        Returns:
            Observations, float64 rewards, bool terminations, bool truncations (each of length
            ``num_envs``) and infos.

        Raises:
            ResetNeeded: Before the first reset.
            SessionLost: If a session is gone.
            EnvError: If there are more or fewer actions than rows, or the environment refuses one.
        """
        if not self._has_ended:
            raise ResetNeeded("step() before reset() (vectorised istar/Remote-v0). Call reset() first.")
        if len(actions) != self.num_envs:
            raise EnvError(
                f"{len(actions)} actions for {self.num_envs} rows (vectorised istar/Remote-v0, step)."
            )
        answers = self._send(
            [
                session.batched("reset") if ended else session.batched("step", action=action_on_wire(action))
                for session, ended, action in zip(self._sessions, self._has_ended, actions, strict=True)
            ]
        )
        terminated = np.array([answer.get("terminated", False) for answer in answers], np.bool_)
        truncated = np.array([answer.get("truncated", False) for answer in answers], np.bool_)
        self._has_ended = (terminated | truncated).tolist()
        rewards = np.array([answer.get("reward", 0.0) for answer in answers], np.float64)
        infos = stack_infos([answer["info"] for answer in answers])
        return self._observations(answers), rewards, terminated, truncated, infos

    def render(self) -> tuple[Any, ...] | None:
        """Return what every row shows in the render mode, or None without one."""
        return (
            None if self.render_mode is None else tuple(session.ask("render") for session in self._sessions)
        )

    def close_extras(self, **kwargs: Any) -> None:
        """Close all sessions and connections."""
        for session in self._sessions:
            session.close()
        self._sessions = []
        self._threads.shutdown()
        self._client.close()

    def _open_all(self) -> list[RemoteSession]:
        if not self._sessions:
            self._sessions = [
                RemoteSession.open(self._client, self.env_id, self._options, pictures=self._pictures)
                for _ in range(self.num_envs)
            ]
        return self._sessions

    def _send(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Make one call for each session; note what was carried out even if another call failed."""
        parts = [calls[start : start + self._part] for start in range(0, len(calls), self._part)]
        rows = [row for part in self._threads.map(self._send_part, parts) for row in part]
        problem: EnvError | None = None
        for session, answer in zip(self._sessions, rows, strict=True):
            try:
                session.accept(answer)
            except EnvError as error:
                problem = problem or error
        if isinstance(problem, SessionLost):
            self._sessions, self._has_ended = [], []
        if problem is not None:
            raise problem
        return rows

    def _send_part(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = self._client.call("POST", "/v1/batch", {"calls": calls})["answers"]
        return answers

    def _observations(self, answers: Sequence[dict[str, Any]]) -> Any:
        observations = [answer["observation"] for answer in answers]
        if isinstance(self.single_observation_space, gym.spaces.Box):
            return np.stack(observations)
        return tuple(observations)
