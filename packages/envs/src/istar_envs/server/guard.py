"""Who may send requests, and how many."""

import base64
import binascii
import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from istar_envs.server.problems import Refusal

Environ = Mapping[str, Any]
"""A request as WSGI tells it."""

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
            may_pass = left >= 1.0
            self._left[address] = left - may_pass, now
            if len(self._left) > _ADDRESSES:
                self._left.popitem(last=False)
        return may_pass

    def require(self, environ: Environ) -> None:
        """Refuse a request of an address that has sent too many."""
        address = environ.get("REMOTE_ADDR", "")
        if not self.allows(address):
            raise Refusal(
                429,
                "TooManyRequests",
                f"more than {self._rate:g} requests per second came from {address}. Wait, or send many steps "
                "in one batch.",
                retry_s=1,
            )


def refuse_web_pages(environ: Environ) -> None:
    """Refuse what a page of some web site makes its visitor's browser send."""
    if "HTTP_ORIGIN" in environ or environ.get("HTTP_SEC_FETCH_SITE", "none") not in ("none", "same-origin"):
        raise Refusal(
            403, "ForeignPage", "this request came from a web page. Only programs may use this interface."
        )


def require_token(environ: Environ, token: str) -> None:
    """Refuse a request without the token.

    It is taken from ``Authorization: Bearer``, or as the password that a browser asks for.
    """
    scheme, _, given = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
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
