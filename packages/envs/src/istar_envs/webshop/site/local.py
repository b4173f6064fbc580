"""The site on a free port of this machine, for a browser in the same process."""

import threading
import weakref
from typing import TYPE_CHECKING, Any

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

if TYPE_CHECKING:
    from flask import Flask


class LocalSite:
    """Serves a site in a thread until ``close``, garbage collection or exit.

    Args:
        app: Made by ``create_app``.

    Attributes:
        url: Where it is, without a slash at the end.
    """

    def __init__(self, app: "Flask") -> None:
        server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
        thread = threading.Thread(
            target=server.serve_forever, args=(0.05,), daemon=True, name="istar-webshop"
        )
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        self._finalizer = weakref.finalize(self, _stop, server, thread)

    def close(self) -> None:
        """Stop serving; calling it again does nothing."""
        self._finalizer()


class _Quiet(WSGIRequestHandler):
    """Writes no line per request."""

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        pass


def _stop(server: BaseWSGIServer, thread: threading.Thread) -> None:
    server.shutdown()
    thread.join()
    server.server_close()
