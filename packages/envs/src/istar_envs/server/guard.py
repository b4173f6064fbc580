"""Who may send requests, how many, and what every answer carries."""

import base64
import binascii
import hmac
import logging
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from flask import Flask, g, request
from werkzeug.wrappers import Response

from istar_envs.server.problems import Refusal
from istar_envs.server.service import Service

logger = logging.getLogger(__name__)

_PROBES: Final = frozenset({"/healthz", "/readyz"})
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_ADDRESSES: Final = 10_000


class RateLimit:
    """So many requests per second of each address, on average; a client that waits may send more at once.

    Args:
        rate: Requests per second; 0 for no bound.
        burst_s: Seconds of that rate that may come at once.
    """

    def __init__(self, rate: float, burst_s: float) -> None:
        self._rate = rate
        self._burst = max(rate * burst_s, 1.0)
        self._lock = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, address: str) -> bool:
        """Whether a request that comes now may pass; if so it is counted."""
        if not self._rate:
            return True
        now = time.monotonic()
        with self._lock:
            left, since = self._left.pop(address, (self._burst, now))
            left = min(left + (now - since) * self._rate, self._burst)
            self._left[address] = max(left - 1.0, 0.0) if left >= 1.0 else left, now
            if len(self._left) > _ADDRESSES:
                self._left.popitem(last=False)
        return left >= 1.0


def guard(app: Flask, service: Service) -> None:
    """Check every request before it is answered, and mark every answer."""
    rate = RateLimit(service.limits.rate, service.limits.burst_s)

    def check() -> None:
        environ = request.environ
        asked = environ.get("HTTP_X_REQUEST_ID", "")
        g.request_id = asked if _REQUEST_ID.fullmatch(asked) else secrets.token_hex(8)
        g.began = time.perf_counter()
        if environ["PATH_INFO"] in _PROBES:
            return
        if service.state != "ok":
            raise Refusal(503, "NotReady", f"the server is {service.state}. Try again later.", retry_s=1)
        if not rate.allows(environ.get("REMOTE_ADDR", "")):
            raise Refusal(
                429,
                "TooManyRequests",
                f"more than {service.limits.rate:g} requests per second came from {request.remote_addr}. "
                "Wait, or send many steps in one batch.",
                retry_s=1,
            )
        _refuse_web_pages(environ)
        if service.token:
            _require_token(service.token)

    def mark(response: Response) -> Response:
        headers = response.headers
        for name, value in _HEADERS:
            headers.add(name, value)
        headers.add("X-Request-Id", g.request_id)
        rule = request.url_rule
        route = rule.rule if rule else "none"
        service.metrics.request(route, response.status_code)
        if logger.isEnabledFor(logging.DEBUG):
            _log(route, response.status_code)
        return response

    app.before_request(check)
    app.after_request(mark)


def _log(route: str, status: int) -> None:
    milliseconds = round((time.perf_counter() - g.began) * 1e3, 3)
    facts = {"request_id": g.request_id, "method": request.method, "route": route, "status": status}
    logger.debug("answered", extra={"facts": {**facts, "ms": milliseconds}})


def _refuse_web_pages(environ: Mapping[str, Any]) -> None:
    """Refuse what a page of some web site makes its visitor's browser send."""
    if "HTTP_ORIGIN" in environ or environ.get("HTTP_SEC_FETCH_SITE", "none") not in ("none", "same-origin"):
        raise Refusal(
            403, "ForeignPage", "this request came from a web page. Only programs may use this interface."
        )


def _require_token(token: str) -> None:
    """Take the token from ``Authorization: Bearer``, or as the password that a browser asks for."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            given = ""
    if scheme.lower() not in ("bearer", "basic") or not hmac.compare_digest(given.encode(), token.encode()):
        raise Refusal(
            401,
            "TokenNeeded",
            "the token is missing or wrong. Send the header Authorization: Bearer TOKEN with the token that "
            "the server was started with.",
        )
