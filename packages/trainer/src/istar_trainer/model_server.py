"""A model on disk as an OpenAI-compatible endpoint of this machine: partner, judge or policy for others.

Served are ``POST /v1/chat/completions`` and ``GET /v1/models``; errors are documents, as in the original.
There are no keys, so it listens on the loopback interface unless told otherwise.
"""

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Literal, Self

from tyro.conf import Positional

from istar_envs.errors import ConfigError, suggest
from istar_trainer.completions import BadRequest, Completer, Reply, read_request
from istar_trainer.weights import load_model

logger = logging.getLogger(__name__)

_MOST_BYTES: Final = 16 << 20
_STATUSES: Final = {
    "model_not_found": HTTPStatus.NOT_FOUND,
    "unknown_path": HTTPStatus.NOT_FOUND,
    "bad_length": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
}


@dataclass
class ServeArgs:
    """Serve a model as an OpenAI-compatible endpoint; Ctrl-C stops it."""

    model_dir: Positional[Path]
    """Run folder, or model in Hugging Face layout."""
    name: str = ""
    """What clients call the model; by default the name of the folder."""
    host: str = "127.0.0.1"
    """Interface to listen on. There are no keys: whoever reaches it can use it."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    schemas: Literal["forced", "free"] = "forced"
    """Whether a wanted JSON schema is forced on the reply, or left to the model."""
    max_words: int = 64
    """Most tokens of one text inside forced JSON."""


class ModelServer:
    """Serves a model until it is closed; as a context manager, in threads of its own.

    Args:
        completer: Who answers.
        name: What clients call the model.
        host: Interface to listen on.
        port: Port to listen on; 0 takes a free one.

    Attributes:
        name: What clients call the model.
        url: Address up to the version, for clients.

    Raises:
        ConfigError: If the port cannot be listened on.
    """

    def __init__(self, completer: Completer, name: str, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._completer = completer
        try:
            self._http = _Http((host, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror}. Choose another port; 0 takes a free one."
            ) from error
        self._http.completer, self._http.name = completer, name
        self.name = name
        self.url = f"http://{host}:{self._http.server_address[1]}/v1"

    def serve_forever(self) -> None:
        """Answer until another thread closes it."""
        self._http.serve_forever()

    def close(self) -> None:
        """Stop answering."""
        self._http.shutdown()
        self._http.server_close()
        self._completer.close()

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, name="istar-model-server", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_server(args: ServeArgs) -> ModelServer:
    """Load a model and listen; nothing is answered yet.

    Raises:
        ConfigError: If there is no model, or the port cannot be listened on.
    """
    if args.max_words < 1:
        raise ConfigError(f"max_words = {args.max_words}: a text needs at least 1 token.")
    folder = args.model_dir
    model, tokenizer = load_model(folder / "policy" if (folder / "policy").is_dir() else folder)
    completer = Completer(model, tokenizer, force_json=args.schemas == "forced", max_words=args.max_words)
    return ModelServer(completer, args.name or folder.resolve().name, host=args.host, port=args.port)


class _Http(ThreadingHTTPServer):
    """One thread for each connection."""

    daemon_threads = True
    request_queue_size = 1024
    completer: Completer
    name: str
    numbers = itertools.count(1)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: _Http
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """List the one model."""
        self._respond(self._models)

    def do_POST(self) -> None:
        """Complete a chat."""
        self._respond(self._completion)

    def log_message(self, format: str, *args: Any) -> None:
        """Note a request in the log."""
        logger.debug(format, *args)

    def _respond(self, work: Callable[[], dict[str, Any]]) -> None:
        """Answer with what the work returns, or with why it cannot be done."""
        try:
            self._answer(HTTPStatus.OK, work())
        except BadRequest as error:
            status = _STATUSES.get(error.code, HTTPStatus.BAD_REQUEST)
            self._answer(status, _refusal(str(error), "invalid_request_error", error.code))
        except Exception as error:  # one request failed; others are still answered
            logger.exception("a request failed")
            document = _refusal(f"the model failed: {error!r}", "server_error", "server_error")
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, document)

    def _models(self) -> dict[str, Any]:
        self._require_path("/v1/models")
        model = {"id": self.server.name, "object": "model", "created": 0, "owned_by": "istar"}
        return {"object": "list", "data": [model]}

    def _completion(self) -> dict[str, Any]:
        body = self._body()
        self._require_path("/v1/chat/completions")
        request = read_request(body)
        if request.model != self.server.name:
            known = suggest(request.model, [self.server.name])
            raise BadRequest(f"no model {request.model!r}.{known}", "model_not_found")
        reply = self.server.completer.complete(request)
        return _document(reply, self.server.name, next(self.server.numbers))

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MOST_BYTES:
            self.close_connection = True
            raise BadRequest(f"a body needs a Content-Length of at most {_MOST_BYTES} bytes", "bad_length")
        return self.rfile.read(int(length))

    def _require_path(self, path: str) -> None:
        if self.path != path:
            raise BadRequest(f"no {self.command} {self.path!r} here. Known: {path!r}.", "unknown_path")

    def _answer(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _refusal(message: str, kind: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _document(reply: Reply, model: str, number: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply.text, "refusal": None}
    reason = "stop" if reply.is_whole else "length"
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        },
    }
