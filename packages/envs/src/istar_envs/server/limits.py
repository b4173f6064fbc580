"""How much a server gives to its clients."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what clients can take up.

    Attributes:
        max_sessions: Sessions open at a time.
        max_browsers: Those among them that run a browser each.
        idle_s: Seconds without a call after which a session is closed.
        max_body: Largest body of a request, in bytes.
        rate: Requests per second that one client address may send, on average; 0 for no bound.
        burst_s: Seconds of that rate that may come at once.
        request_s: Seconds within which a request must have arrived whole.
        connections: Connections open at a time.
        grace_s: Seconds that running calls get when the server is stopped.
    """

    max_sessions: int = 2048
    max_browsers: int = 8
    idle_s: float = 900.0
    max_body: int = 4 * 2**20
    rate: float = 10_000.0
    burst_s: float = 2.0
    request_s: float = 20.0
    connections: int = 4096
    grace_s: float = 30.0
