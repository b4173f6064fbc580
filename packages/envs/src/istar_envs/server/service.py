"""What all requests of a server share."""

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from istar_envs.server.guard import RateLimit
from istar_envs.server.limits import Limits
from istar_envs.server.metrics import Metrics
from istar_envs.server.sessions import SessionTable
from istar_envs.server.worlds import Worlds, describe_env

logger = logging.getLogger(__name__)

State = Literal["starting", "ok", "stopping"]


class Service:
    """The environments of a server, their sessions, and what was counted.

    Args:
        worlds: What can be played.
        limits: How much clients may take up.
        token: What clients have to show; "" asks for nothing.

    Attributes:
        worlds: As given.
        limits: As given.
        token: As given.
        metrics: What was counted.
        rate: How many requests each address may send.
        sessions: All sessions.
        state: Whether requests are taken.
    """

    def __init__(self, worlds: Worlds, limits: Limits, token: str = "") -> None:
        self.worlds = worlds
        self.limits = limits
        self.token = token
        self.metrics = Metrics()
        self.rate = RateLimit(limits.rate, limits.burst_s)
        self.sessions = SessionTable(worlds, limits, self.metrics)
        self.state: State = "starting"
        self._descriptions: dict[str, dict[str, Any]] = {}
        self._stopped = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, daemon=True, name="istar-sweep")

    def start(self) -> None:
        """Open what the environments read, take requests, and close idle sessions from now on.

        Raises:
            EnvError: If an environment cannot be made.
        """
        for name in self.worlds.names:
            self.describe(name)
        if self.state == "starting":
            self.state = "ok"
        self._sweeper.start()

    def refuse(self) -> None:
        """Take no more requests."""
        self.state = "stopping"

    def stop(self) -> None:
        """Close all sessions; no request may be running."""
        self.refuse()
        self._stopped.set()
        self.sessions.close_all()
        logger.info("stopped", extra={"facts": {"steps": self.metrics.total("steps")}})

    def describe(self, name: str) -> dict[str, Any]:
        """Return the members of ``messages.Description``, for the arguments that clients get by default."""
        if name not in self._descriptions:
            env = self.worlds.make(name, {})
            try:
                self._descriptions[name] = describe_env(name, env)
            finally:
                env.close()
        return self._descriptions[name]

    def open_sessions(self) -> Mapping[str, int]:
        """Return the number of open sessions of each environment that is served."""
        counts = Counter(session.name for session in self.sessions)
        return {name: counts[name] for name in self.worlds.names}

    def _sweep(self) -> None:
        while not self._stopped.wait(min(self.limits.idle_s / 4, 10.0)):
            self.sessions.sweep()
