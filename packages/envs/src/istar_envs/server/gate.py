"""The way into the application: every request is checked here, and every answer marked.

Steps, resets and batches come far more often than anything else and are answered here, by the same functions
that the application calls: its routing would take longer than the step.
"""

import logging
import re
import secrets
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from istar_envs.server.api import Api
from istar_envs.server.faults import Answer, answer_to
from istar_envs.server.guard import refuse_web_pages, require_token
from istar_envs.server.problems import Refusal
from istar_envs.server.service import Service

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

logger = logging.getLogger(__name__)

_PROBES: Final = frozenset({"/healthz", "/readyz"})
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MARKS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


class Gate:
    """A WSGI application around the one that answers what is not answered here.

    Args:
        service: What is served.
        api: Answers steps, resets and batches.
        app: Answers everything else; it names its route in ``environ["istar.route"]``.
    """

    def __init__(self, service: Service, api: Api, app: "WSGIApplication") -> None:
        self._service = service
        self._api = api
        self._app = app

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer a request."""
        began = time.perf_counter()
        asked = environ.get("HTTP_X_REQUEST_ID", "")
        request_id = asked if _REQUEST_ID.fullmatch(asked) else secrets.token_hex(8)
        environ["istar.request_id"] = request_id

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            route = environ.get("istar.route", "none")
            self._service.metrics.request(route, int(status[:3]))
            if logger.isEnabledFor(logging.DEBUG):
                facts = {"method": environ["REQUEST_METHOD"], "route": route, "status": int(status[:3])}
                spent = round((time.perf_counter() - began) * 1e3, 3)
                logger.debug("answered", extra={"facts": {"request_id": request_id, **facts, "ms": spent}})
            return start_response(status, [*headers, *_MARKS, ("X-Request-Id", request_id)], exc_info)

        answer = self._answer(environ)
        if answer is None:
            return self._app(environ, start)
        start(answer.status, [*answer.headers, ("Content-Length", str(len(answer.body)))])
        return [answer.body]

    def _answer(self, environ: "WSGIEnvironment") -> Answer | None:
        """Check a request, and answer it unless the application is to."""
        try:
            self._admit(environ)
            text = self._api.shortcut(environ)
        except Exception as error:
            return answer_to(error, environ, self._service.metrics)
        if text is None:
            return None
        return Answer("200 OK", [("Content-Type", "application/json")], text.encode())

    def _admit(self, environ: "WSGIEnvironment") -> None:
        service = self._service
        if environ["PATH_INFO"] in _PROBES:
            return
        if service.state != "ok":
            raise Refusal(503, "NotReady", f"the server is {service.state}. Try again later.", retry_s=1)
        service.rate.require(environ)
        refuse_web_pages(environ)
        if service.token:
            require_token(environ, service.token)
