"""All sessions of a server, bounded in number and idle time."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from istar_envs.errors import IstarError
from istar_envs.server.limits import Limits
from istar_envs.server.metrics import Metrics
from istar_envs.server.problems import Refusal
from istar_envs.server.session import Session
from istar_envs.server.worlds import BROWSER, INSTANT, Worlds, describe_env
from istar_envs.wire.messages import Create, Move, Reset
from istar_envs.wire.values import to_wire

logger = logging.getLogger(__name__)

_STEPS: Final = ("step", "invalid_step")
_BUSY_S: Final = 5.0
"""Seconds that a call waits for another one to the same session."""


class SessionTable:
    """All sessions of a server.

    Args:
        worlds: What can be played.
        limits: How many, and for how long.
        metrics: Where calls are counted.

    Attributes:
        server: Random name of this table; another one means that all sessions are lost.
    """

    def __init__(self, worlds: Worlds, limits: Limits, metrics: Metrics) -> None:
        self.server = secrets.token_hex(8)
        self._worlds = worlds
        self._limits = limits
        self._metrics = metrics
        self._sessions: dict[str, Session] = {}
        self._by_key: dict[str, Session] = {}
        self._opening = threading.Lock()
        self._computing = threading.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def create(self, request: Create) -> dict[str, Any]:
        """Open a session; a request with the key of an open one gets that one.

        Returns:
            The members of ``messages.Session``.

        Raises:
            Refusal: If there are too many sessions.
            EnvError: If the environment cannot be made so.
        """
        return self._opened(
            request.env,
            request.key,
            lambda: Session(
                request.env,
                lambda: self._worlds.make(request.env, request.options),
                request.pictures,
                request.key,
            ),
        )

    def clone(self, session_id: str, key: str | None) -> dict[str, Any]:
        """Open a session that goes on as another one would.

        Returns:
            The members of ``messages.Session``.

        Raises:
            Refusal: If there is no such session, or there are too many.
        """

        def copied() -> Session:
            with self.using(session_id) as session:
                return session.twin(key)

        with self.using(session_id) as session:
            name = session.name
        return self._opened(name, key, copied)

    def play(self, session_id: str, move: Move) -> str:
        """Carry out a call of a session.

        Returns:
            The answer, as JSON.

        Raises:
            Refusal: If there is no such session or it is not this call's turn.
            IstarError: If the environment refuses.
        """
        with self.using(session_id) as session:
            answer, seconds = session.play(move)
        if seconds is None:
            self._metrics.count("replays")
        elif not isinstance(move, Reset):
            self._metrics.step(session.name, seconds)
        return answer

    @contextmanager
    def using(self, session_id: str) -> Iterator[Session]:
        """Hold a session for oneself; if the environment breaks, the session is closed.

        Raises:
            Refusal: If there is no such session, it stays busy, or the environment breaks.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise self._lost()
        if not session.lock.acquire(timeout=_BUSY_S):
            raise Refusal(
                503,
                "SessionBusy",
                f"another call to this session of {session.name} is still running. Repeat this one later.",
                retry_s=1,
            )
        try:
            if session.is_closed:
                raise self._lost()
            session.used_at = time.monotonic()
            yield session
        except IstarError:
            raise
        except Exception as error:
            logger.exception("environment failed", extra={"facts": {"env": session.name}})
            self._drop(session, "failed")
            raise Refusal(
                500,
                "EnvironmentFailed",
                f"{session.name} broke in this call, and its session was closed. Open a new one; the log of "
                "the server says more.",
            ) from error
        finally:
            session.used_at = time.monotonic()
            session.lock.release()

    def turn(self, session_ids: Iterable[str]) -> AbstractContextManager[object]:
        """Let batches that do nothing but compute go one after the other.

        Threads that compute at once only fight for the interpreter, which costs them a sixth.
        """
        sessions = (self._sessions.get(session_id) for session_id in session_ids)
        only_computes = all(session is None or session.name in INSTANT for session in sessions)
        return self._computing if only_computes else nullcontext()

    def is_instant(self, path: str) -> bool:
        """Whether what is asked at a path takes microseconds and waits for nothing."""
        place, _, call = path.rpartition("/")
        session = self._sessions.get(place.removeprefix("/v1/sessions/")) if call in _STEPS else None
        return session is not None and session.name in INSTANT and not session.lock.locked()

    def close(self, session_id: str) -> None:
        """Close a session.

        Raises:
            Refusal: If there is no such session, or a call to it is running.
        """
        with self.using(session_id) as session:
            self._drop(session, "closed")

    def sweep(self) -> int:
        """Close the sessions that were idle for too long; returns how many."""
        oldest = time.monotonic() - self._limits.idle_s
        return sum(self._drop_if_free(session, "expired") for session in self if session.used_at < oldest)

    def close_all(self) -> None:
        """Close every session that no call is running in."""
        for session in self:
            self._drop_if_free(session, "stopped")

    def _opened(self, name: str, key: str | None, make: Callable[[], Session]) -> dict[str, Any]:
        with self._opening:
            session = self._by_key.get(key) if key is not None else None
            if session is None:
                self._require_room(name)
                session = make()
                self._sessions[session.id] = session
                if key is not None:
                    self._by_key[key] = session
                self._metrics.session("opened")
                _log("session opened", session)
        with self.using(session.id):
            return self._described(session)

    def _described(self, session: Session) -> dict[str, Any]:
        described = {
            **describe_env(session.name, session.env),
            "session": session.id,
            "server": self.server,
            "sequence": session.sequence,
            "observation": None,
            "info": None,
        }
        if session.was_reset:
            world: Any = session.env.unwrapped
            observation, info = world.restore_state(world.clone_state())
            described["observation"] = to_wire(observation, session.pictures)
            described["info"] = to_wire(info, session.pictures)
        return described

    def _require_room(self, name: str) -> None:
        """Refuse one more session of an environment if there are too many, even without the idle ones."""
        if not self._has_room(name):
            self.sweep()
        if not self._has_room(name):
            raise Refusal(
                503,
                "SessionsFull",
                f"{len(self)} sessions are open, and no more of {name} are allowed. Close some, or wait "
                f"until an idle one expires (after {self._limits.idle_s:g} s).",
                retry_s=1,
            )

    def _has_room(self, name: str) -> bool:
        browsers = sum(session.name == BROWSER for session in self) if name == BROWSER else 0
        return len(self) < self._limits.max_sessions and browsers < self._limits.max_browsers

    def _drop_if_free(self, session: Session, how: str) -> bool:
        if not session.lock.acquire(blocking=False):
            return False
        try:
            self._drop(session, how)
        finally:
            session.lock.release()
        return True

    def _drop(self, session: Session, how: str) -> None:
        """Forget and close a session whose lock is held."""
        if self._sessions.pop(session.id, None) is None:
            return
        if session.key is not None:
            self._by_key.pop(session.key, None)
        self._metrics.session(how)
        _log(f"session {how}", session)
        try:
            session.close()
        except Exception:
            logger.exception("closing failed", extra={"facts": {"env": session.name}})

    def _lost(self) -> Refusal:
        return Refusal(
            404,
            "SessionLost",
            "there is no such session: it was closed, was idle for more than "
            f"{self._limits.idle_s:g} s, or the server was restarted. Open a new one.",
            server=self.server,
        )


def _log(event: str, session: Session) -> None:
    logger.info(event, extra={"facts": {"env": session.name, "session": session.short_id}})
