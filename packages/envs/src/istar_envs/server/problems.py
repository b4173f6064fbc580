"""Errors as problem documents (RFC 9457): the same what, where and how as in the error's own text."""

from http import HTTPStatus
from typing import Any, Final

from istar_envs.errors import (
    EnvError,
    IstarError,
    ResetNeeded,
    SessionLost,
    UnknownEnv,
)

CONTENT_TYPE: Final = "application/problem+json"

_STATUS: Final[dict[type[IstarError], HTTPStatus]] = {
    SessionLost: HTTPStatus.NOT_FOUND,
    UnknownEnv: HTTPStatus.NOT_FOUND,
    ResetNeeded: HTTPStatus.CONFLICT,
    EnvError: HTTPStatus.UNPROCESSABLE_ENTITY,
}


class Refusal(IstarError):
    """A request that is answered by a problem document.

    Args:
        status: HTTP status.
        error: Short name of what went wrong, for programs.
        detail: What happened, where, and how to fix it.
        retry_s: Seconds after which the same request may succeed.
        facts: More members of the document.
    """

    def __init__(
        self, status: int, error: str, detail: str, *, retry_s: int | None = None, **facts: Any
    ) -> None:
        super().__init__(detail)
        self.status = HTTPStatus(status)
        self.error = error
        self.retry_s = retry_s
        self.facts = facts

    def document(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the problem document.

        Args:
            request_id: Id of the request that is answered.
        """
        document: dict[str, Any] = {
            "type": f"urn:istar:problem:{self.error}",
            "title": self.status.phrase,
            "status": int(self.status),
            "detail": str(self),
            "error": self.error,
            **self.facts,
        }
        if request_id is not None:
            document["instance"] = f"urn:istar:request:{request_id}"
        return document


def refusal_of(error: IstarError) -> Refusal:
    """Return how an error of the environments is answered."""
    if isinstance(error, Refusal):
        return error
    status = next(
        (_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), HTTPStatus.UNPROCESSABLE_ENTITY
    )
    return Refusal(status, type(error).__name__, str(error))
