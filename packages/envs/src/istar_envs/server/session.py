"""One session: an environment of its own, played by numbered calls."""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Final, cast

import gymnasium as gym

from istar_envs.server.problems import Refusal
from istar_envs.wire.messages import InvalidStep, Move, Reset, Step
from istar_envs.wire.values import Pictures, dumps, from_wire, to_wire

_STEPPED: Final = ("observation", "reward", "terminated", "truncated", "info")


class Session:
    """One environment and the number of calls that were carried out.

    Args:
        name: Id of the environment.
        make: Makes it.
        pictures: How pictures travel.
        key: The client's name for the request that opened it.

    Attributes:
        id: Unguessable; whoever knows it can play.
        name: As given.
        key: As given.
        env: The environment.
        pictures: As given.
        sequence: Calls carried out.
        was_reset: Whether an episode was started.
        lock: Held while the environment is used.
        used_at: When a call last began or ended, on the monotonic clock.
        is_closed: Whether the environment was closed.
    """

    def __init__(
        self, name: str, make: Callable[[], gym.Env[Any, Any]], pictures: Pictures, key: str | None
    ) -> None:
        self.id = secrets.token_urlsafe(24)
        self.name = name
        self.key = key
        self.env = make()
        self._make = make
        self.pictures: Pictures = pictures
        self.sequence = 0
        self.was_reset = False
        self.lock = threading.Lock()
        self.used_at = time.monotonic()
        self.is_closed = False
        self._last: Move | None = None
        self._answer = ""

    @property
    def short_id(self) -> str:
        """A name for logs from which the id cannot be found."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:8]

    def play(self, move: Move) -> tuple[str, float | None]:
        """Carry out a call, or repeat the answer if it was carried out already; the lock must be held.

        Returns:
            The answer as JSON, and how long the environment took in seconds; None for a repetition.

        Raises:
            Refusal: If it is not this call's turn.
            IstarError: If the environment refuses; nothing has changed then.
        """
        if move.sequence != self.sequence + 1:
            return self._repeated(move), None
        start = time.perf_counter()
        answer = self._carried_out(move)
        seconds = time.perf_counter() - start
        answer["sequence"] = move.sequence
        self._answer = dumps(answer)
        self.sequence, self._last = move.sequence, move
        return self._answer, seconds

    def twin(self, key: str | None) -> "Session":
        """Return a session with a copy of the environment; the lock must be held."""
        twin = Session(self.name, self._make, self.pictures, key)
        if self.was_reset:
            here, there = cast(Any, self.env.unwrapped), cast(Any, twin.env.unwrapped)
            there.restore_state(here.clone_state())
            twin.was_reset = True
        return twin

    def close(self) -> None:
        """Close the environment; the lock must be held."""
        if not self.is_closed:
            self.is_closed = True
            self.env.close()

    def _repeated(self, move: Move) -> str:
        if move.sequence != self.sequence:
            raise Refusal(
                409,
                "OutOfOrder",
                f"call {move.sequence} came when {self.sequence} calls had been carried out (session of "
                f"{self.name}). Number calls from 1 and send call {self.sequence + 1} next.",
            )
        if move != self._last:
            raise Refusal(
                409,
                "NumberTaken",
                f"call {move.sequence} was another one (session of {self.name}). Repeat a call as it was, or "
                f"send call {self.sequence + 1} next.",
            )
        return self._answer

    def _carried_out(self, move: Move) -> dict[str, Any]:
        if isinstance(move, Reset):
            observation, info = self.env.reset(seed=move.seed, options=self._value(move.options, "options"))
            self.was_reset = True
            return cast(dict[str, Any], to_wire({"observation": observation, "info": info}, self.pictures))
        stepped = dict(zip(_STEPPED, self._stepped(move), strict=True))
        return cast(dict[str, Any], to_wire(stepped, self.pictures))

    def _stepped(self, move: Move) -> Any:
        if isinstance(move, Step):
            return self.env.step(self._value(move.action, "action"))
        world: Any = self.env.unwrapped
        if isinstance(move, InvalidStep):
            return world.invalid_step(move.reason)
        if not hasattr(world, "truncate"):
            raise Refusal(
                422, "NotOffered", f"{self.name} has no limits to be told of: do not call truncate."
            )
        return world.truncate()

    def _value(self, sent: Any, what: str) -> Any:
        try:
            return from_wire(sent)
        except ValueError as error:
            raise Refusal(422, "ValueUnreadable", f"{what}: {error} (session of {self.name}).") from error
