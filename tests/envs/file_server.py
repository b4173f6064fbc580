"""A file server on this machine whose faults can be chosen."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """What the server holds, how it misbehaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    """Content by path, such as ``/a.json``."""
    cuts: list[int] = field(default_factory=list)
    """The next answers break off after so many bytes."""
    statuses: list[int] = field(default_factory=list)
    """The next requests are answered with these codes."""
    knows_ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """(path, Range header) of every request."""
    address: str = ""


class _Handler(BaseHTTPRequestHandler):
    plan: FileServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        plan = self.plan
        wanted = self.headers.get("Range")
        plan.requests.append((self.path, wanted))
        if plan.statuses or self.path not in plan.files:
            self.send_error(plan.statuses.pop(0) if plan.statuses else 404)
            return
        content = plan.files[self.path]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and plan.knows_ranges else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = start + plan.cuts.pop(0) if plan.cuts else len(content)
        self.wfile.write(content[start:end])


@contextmanager
def file_server() -> Iterator[FileServer]:
    """Serve on a free port of the loopback interface."""
    plan = FileServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"plan": plan}))
    plan.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield plan
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
