"""One session on a server: its calls are numbered, so each is carried out once however often it is sent."""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from istar_envs.errors import EnvError
from istar_envs.remote.client import Client, error_of
from istar_envs.wire.messages import MAX_IDS
from istar_envs.wire.values import Pictures, to_wire


class RemoteSession:
    """A session that is open on a server.

    Args:
        client: Speaks with the server.
        described: What the server said when it was opened (``messages.Session``).

    Attributes:
        client: As given.
        described: As given.
    """

    def __init__(self, client: Client, described: Mapping[str, Any]) -> None:
        self.client = client
        self.described = described
        self._id = str(described["session"])
        self._server = str(described["server"])
        self._sequence = int(described["sequence"])

    @classmethod
    def open(
        cls, client: Client, env: str, options: Mapping[str, Any], *, pictures: Pictures = "png"
    ) -> "RemoteSession":
        """Open a session.

        Args:
            client: Speaks with the server.
            env: Id of the environment.
            options: Arguments of the environment.
            pictures: How pictures travel.

        Raises:
            ServerUnreachable: If there is no such server.
            EnvError: If the server has no such environment.
        """
        body = {
            "env": env,
            "options": sendable(dict(options), "options"),
            "pictures": pictures,
            "key": _key(),
        }
        return cls(client, client.call("POST", "/v1/sessions", body))

    def clone(self) -> "RemoteSession":
        """Open a session that goes on as this one would."""
        return RemoteSession(self.client, self._call("POST", "/clone", {"key": _key()}))

    def move(self, call: str, **arguments: Any) -> dict[str, Any]:
        """Make a numbered call and return its answer.

        Args:
            call: ``reset``, ``step``, ``invalid_step`` or ``truncate``.
            arguments: What it takes.

        Raises:
            SessionLost: If the session is gone.
            EnvError: If the environment refuses.
        """
        body = {"sequence": self._sequence + 1, **arguments}
        return self.accept(self._call("POST", f"/{call}", body))

    def batched(self, call: str, **arguments: Any) -> dict[str, Any]:
        """Return a numbered call as a part of a batch; its answer goes to ``accept``."""
        return {"call": call, "session": self._id, "sequence": self._sequence + 1, **arguments}

    def accept(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Take the answer to the latest call and return it.

        Raises:
            EnvError: If it tells of a problem; the call was not carried out then.
        """
        if "problem" in answer:
            raise error_of(answer["problem"], self._server)
        self._sequence = answer["sequence"]
        return answer

    def ask(self, question: str) -> Any:
        """Return an answer that changes nothing: ``expert_action`` or ``render``."""
        return self._call("GET", f"/{question}")["value"]

    def task_ids(self) -> "Sequence[str] | None":
        """Return the task ids, each fetched when it is looked at; None if there is no end of them."""
        total = self.described["num_tasks"]
        return None if total is None else _TaskIds(self, int(total))

    def some_task_ids(self, start: int) -> list[str]:
        """Return up to ``MAX_IDS`` task ids from one on."""
        return list(self._call("GET", f"/task_ids?start={start}&limit={MAX_IDS}")["ids"])

    def close(self) -> None:
        """Close the session; one that is gone, or whose server is, is left alone."""
        with suppress(EnvError):
            self.client.call("DELETE", f"/v1/sessions/{self._id}", patience_s=0.0)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        return self.client.call(method, f"/v1/sessions/{self._id}{path}", body, opened_on=self._server)


class _TaskIds(Sequence[str]):
    """A list of task ids on a server, read in parts."""

    def __init__(self, session: RemoteSession, total: int) -> None:
        self._session = session
        self._total = total
        self._parts: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._total))]
        part, place = divmod(range(self._total)[index], MAX_IDS)
        if part not in self._parts:
            self._parts[part] = self._session.some_task_ids(part * MAX_IDS)
        return self._parts[part][place]


def sendable(value: Any, what: str) -> Any:
    """Return a value as it travels.

    Args:
        value: Anything.
        what: What it is, for the message.

    Raises:
        EnvError: If it cannot be sent.
    """
    try:
        return to_wire(value)
    except TypeError as error:
        raise EnvError(
            f"{what}: {error} (istar/Remote-v0). Give texts, numbers, lists and dictionaries."
        ) from error


def _key() -> str:
    return secrets.token_urlsafe(16)
