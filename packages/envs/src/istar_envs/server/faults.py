"""Errors as answers: a problem document for the client, a line for the log, a count for the operator."""

import logging
from dataclasses import dataclass
from typing import Final

from werkzeug.exceptions import HTTPException

from istar_envs.errors import IstarError
from istar_envs.server.guard import Environ
from istar_envs.server.metrics import Metrics
from istar_envs.server.problems import CONTENT_TYPE, Refusal, refusal_of
from istar_envs.wire.values import dumps

logger = logging.getLogger(__name__)

_SHOWN: Final = 100
_REALM: Final = 'Bearer realm="istar-envs", Basic realm="istar-envs"'


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request.

    Attributes:
        status: Status line.
        headers: Names and values.
        body: What is sent.
    """

    status: str
    headers: list[tuple[str, str]]
    body: bytes


def answer_to(error: Exception, environ: Environ, metrics: Metrics) -> Answer:
    """Turn an error into the answer to the request that met it; only the log tells what was no refusal.

    Args:
        error: Anything.
        environ: The request.
        metrics: Where problems are counted.
    """
    request_id = environ.get("istar.request_id")
    headers = [("Content-Type", CONTENT_TYPE)]
    if isinstance(error, IstarError):
        refusal = refusal_of(error)
    elif isinstance(error, HTTPException):
        place = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO'][:_SHOWN]}"
        told = f"{error.name} ({place}). /openapi.json lists what there is."
        refusal = Refusal(error.code or 500, type(error).__name__, told)
        headers += [(name, value) for name, value in error.get_headers() if name == "Allow"]
    else:
        logger.error("request failed", exc_info=error, extra={"facts": {"request_id": request_id}})
        refusal = Refusal(500, "ServerFailed", "the server has a fault; its log says more.")
    facts = {"status": int(refusal.status), "request_id": request_id, "detail": str(refusal)[:300]}
    metrics.fault(refusal.error, **facts)
    level = logging.WARNING if refusal.status >= 500 else logging.INFO
    logger.log(level, "refused", extra={"facts": {"error": refusal.error, **facts}})
    if refusal.retry_s is not None:
        headers.append(("Retry-After", str(refusal.retry_s)))
    if refusal.status == 401:
        headers.append(("WWW-Authenticate", _REALM))
    body = dumps(refusal.document(request_id)).encode()
    return Answer(f"{refusal.status:d} {refusal.status.phrase}", headers, body)
