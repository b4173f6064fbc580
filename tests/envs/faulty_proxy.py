"""A proxy that breaks connections: before a request is passed on, after it, or within the answer."""

import random
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class FaultyProxy:
    """A running proxy.

    Attributes:
        url: Where clients connect.
        broken: How often it broke a connection, by place.
    """

    url: str
    target: tuple[str, int]
    share: float
    random: random.Random
    broken: dict[str, int] = field(default_factory=lambda: {"before": 0, "after": 0, "midway": 0})

    def relay(self, client: socket.socket) -> None:
        """Pass bytes on in both directions until one side ends or the connection is to break."""
        with client, suppress(OSError), socket.create_connection(self.target) as server:
            for side in (client, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector = selectors.DefaultSelector()
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(2**16)
                    if not data or self._passes(data, key.data, is_answer=key.fileobj is server):
                        return

    def _passes(self, data: bytes, to: socket.socket, *, is_answer: bool) -> bool:
        """Pass bytes on; returns whether the connection is to break now."""
        is_begin = data.startswith(b"HTTP/" if is_answer else (b"POST", b"GET", b"DELETE"))
        if not is_begin or self.random.random() >= self.share / 2:
            to.sendall(data)
            return False
        if not is_answer:
            self.broken["before"] += 1
        elif self.random.random() < 0.5:
            self.broken["after"] += 1
        else:
            self.broken["midway"] += 1
            to.sendall(data[: len(data) // 2])
        return True


@contextmanager
def faulty_proxy(url: str, *, share: float, seed: int) -> Iterator[FaultyProxy]:
    """Run a proxy in front of a server that breaks a share of the requests."""
    host, _, port = url.removeprefix("http://").partition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    own = f"http://127.0.0.1:{listener.getsockname()[1]}"
    proxy = FaultyProxy(own, (host, int(port)), share, random.Random(seed))

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=proxy.relay, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield proxy
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
