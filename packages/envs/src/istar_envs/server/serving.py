"""The server process: waitress, with an end that loses nothing and no patience for slow senders."""

import logging
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from istar_envs.errors import EnvError
from istar_envs.server.app import create_app
from istar_envs.server.problems import CONTENT_TYPE, Refusal
from istar_envs.server.service import Service
from istar_envs.wire.values import dumps

try:
    import waitress.channel  # type: ignore[import-untyped]
    import waitress.server  # type: ignore[import-untyped]
    from waitress import wasyncore
    from waitress.adjustments import Adjustments  # type: ignore[import-untyped]
    from waitress.task import ErrorTask, ThreadedTaskDispatcher, WSGITask  # type: ignore[import-untyped]
except ImportError as error:
    raise EnvError('waitress is not installed. Run "pip install istar-envs[server]".') from error

logger = logging.getLogger(__name__)

_MAX_HEADER: Final = 16 * 2**10
_POLL_S: Final = 0.25
_SHORT: Final = 1000
"""Bytes of a request that is read in an instant."""


class _BrokenRequest(ErrorTask):  # type: ignore[misc]
    """Answers what is no HTTP request by a problem document."""

    def execute(self) -> None:
        """Write the answer and close the connection."""
        fault = self.request.error
        refusal = Refusal(fault.code, "RequestBroken", f"{fault.reason}: {fault.body}. Correct the request.")
        body = dumps(refusal.document()).encode()
        self.status = f"{fault.code} {fault.reason}"
        self.response_headers.append(("Content-Type", CONTENT_TYPE))
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class _Answer(WSGITask):  # type: ignore[misc]
    """Answers a request; head and body leave together, as sending costs more than a step."""

    wrote_header = False

    def write(self, data: bytes) -> None:
        """Take the answer, or a part of it."""
        if self.wrote_header or self.content_length != len(data) or not self.has_body:
            super().write(data)
            return
        head = self.build_response_header()
        self.wrote_header = True
        self.channel.write_soon(head + data)
        self.content_bytes_written = len(data)


class _Channel(waitress.channel.HTTPChannel):  # type: ignore[misc]
    """One connection, which knows since when it waits for the rest of a request."""

    task_class = _Answer
    error_task_class = _BrokenRequest
    waiting_since: float | None = None

    def received(self, data: bytes) -> bool:
        """Take what has arrived."""
        taken = bool(super().received(data))
        if self.request is None:
            self.waiting_since = None
        elif self.waiting_since is None:
            self.waiting_since = time.time()
        return taken


class Server(waitress.server.TcpWSGIServer):  # type: ignore[misc]
    """Serves a service on one address.

    Args:
        service: What is served; started when the server runs.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        threads: Requests answered at a time.

    Attributes:
        url: Where it is, without a slash at the end.

    Raises:
        EnvError: If the address is taken.
    """

    channel_class = _Channel

    def __init__(
        self, service: Service, *, host: str = "127.0.0.1", port: int = 8700, threads: int = 8
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, port), family=family)
        except OSError as error:
            raise EnvError(
                f"cannot listen on {host}:{port}: {error.strerror} (istar-envs serve). Choose another port."
            ) from error
        limits = service.limits
        settings = Adjustments(
            sockets=[listener],
            threads=threads,
            ident=None,
            backlog=1024,
            connection_limit=limits.connections,
            max_request_header_size=_MAX_HEADER,
            max_request_body_size=limits.max_body,
            channel_timeout=max(120, int(limits.request_s)),
            cleanup_interval=max(1, min(10, int(limits.request_s / 2))),
            asyncore_use_poll=True,
            clear_untrusted_proxy_headers=True,
        )
        dispatcher = ThreadedTaskDispatcher()
        dispatcher.set_thread_count(threads)
        super().__init__(
            create_app(service),
            {},
            _sock=listener,
            dispatcher=dispatcher,
            adj=settings,
            sockinfo=(family, listener.type, listener.proto, listener.getsockname()),
            bind_socket=False,
        )
        self._service = service
        self._reader = 0
        self._arrived: deque[_Channel] = deque()
        self._deadline: float | None = None
        self._running: list[tuple[Any, Any]] | None = None
        place = f"[{host}]" if ":" in host else host
        self.url = f"http://{place}:{listener.getsockname()[1]}"

    def run(self) -> None:
        """Serve until ``stop`` was called and what was running has been answered.

        Raises:
            EnvError: If an environment cannot be made.
        """
        try:
            self._service.start()
            self._reader = threading.get_ident()
            while not self._is_finished():
                wasyncore.loop(timeout=_POLL_S, use_poll=True, map=self._map, count=1)
                self._begin()
        finally:
            self.task_dispatcher.shutdown(timeout=_POLL_S)
            self._service.stop()
            wasyncore.close_all(self._map)

    def add_task(self, channel: _Channel) -> None:
        """Take a connection whose next request has arrived."""
        if threading.get_ident() == self._reader:
            self._arrived.append(channel)
        else:
            super().add_task(channel)

    def pull_trigger(self) -> None:
        """Wake the thread that reads, unless it is this one."""
        if threading.get_ident() != self._reader:
            self._wake()

    def stop(self, *_: Any) -> None:
        """Take no more requests, and let ``run`` return when the running ones are answered."""
        self._service.refuse()
        if self._deadline is None:
            self._deadline = time.monotonic() + self._service.limits.grace_s
            self._wake()

    def maintenance(self, now: float) -> None:
        """Close connections that do nothing or are too slow with a request."""
        super().maintenance(now)
        for channel in list(self.active_channels.values()):
            since = channel.waiting_since
            if since is not None and since < now - self._service.limits.request_s:
                channel.will_close = True

    def _wake(self) -> None:
        with suppress(OSError):  # which says that ``run`` has returned meanwhile
            super().pull_trigger()

    def _begin(self) -> None:
        """Answer the instant ones of the requests that have arrived, and hand the others to the threads."""
        while self._arrived:
            channel = self._arrived.popleft()
            request = channel.requests[0]
            if self._is_instant(request):
                channel.service()
            else:
                super().add_task(channel)

    def _is_instant(self, request: Any) -> bool:
        """Whether a request takes hardly longer than handing it to another thread."""
        is_short = request.error is None and request.content_length <= _SHORT
        return is_short and self._service.sessions.is_instant(request.path)

    def _is_finished(self) -> bool:
        """Whether ``stop`` was called, and all that ran then is answered or has taken too long."""
        if self._deadline is None:
            return False
        if self._running is None:
            channels = list(self.active_channels.values())
            self._running = [(channel, request) for channel in channels for request in channel.requests]
        self._running = [pair for pair in self._running if not _is_answered(*pair)]
        return not self._running or time.monotonic() > self._deadline


def _is_answered(channel: Any, request: Any) -> bool:
    """Whether the answer to a request has left; a client that asks again has it, too."""
    waiting = list(channel.requests)
    return request not in waiting and (
        bool(waiting) or not channel.total_outbufs_len or not channel.connected
    )


@contextmanager
def stopped_by_signals(server: Server) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop a server that runs in the main thread."""
    before = {number: signal.signal(number, server.stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def running_server(service: Service, **options: Any) -> Iterator[Server]:
    """Serve from a thread of this process, on a free port unless told otherwise.

    Args:
        service: What is served.
        options: Arguments of ``Server``.

    Yields:
        The server, once it takes requests.
    """
    server = Server(service, **{"port": 0, **options})
    thread = threading.Thread(target=server.run, daemon=True, name="istar-server")
    thread.start()
    try:
        while service.state == "starting" and thread.is_alive():
            time.sleep(0.01)
        yield server
    finally:
        server.stop()
        thread.join()
