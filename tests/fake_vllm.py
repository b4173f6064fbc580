"""A scripted server that speaks as vLLM 0.32 does, over HTTP on this machine; what it says, a brain decides.

The shapes of requests and answers were recorded from the real server.
"""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

_STARTED = "process_start_time_seconds"


class Brain(Protocol):
    """The model behind the server."""

    def load(self, folder: Path) -> None: ...

    def complete(self, body: dict[str, Any]) -> tuple[list[int], list[float], str]: ...

    def score(self, ids: list[int]) -> list[float]: ...


class NumberBrain:
    """Its weights are one number, the logprob of everything; replies tell prompt length, seed and weights."""

    def __init__(self) -> None:
        self.value = 0

    def load(self, folder: Path) -> None:
        self.value = int((folder / "number").read_text())

    def complete(self, body: dict[str, Any]) -> tuple[list[int], list[float], str]:
        ids = [len(body["prompt"]), body["seed"] % 1000, self.value][: body["max_tokens"]]
        return ids, [-float(self.value)] * len(ids), "length"

    def score(self, ids: list[int]) -> list[float]:
        return [-float(self.value)] * (len(ids) - 1)


class FakeVllm:
    """One server.

    Args:
        brain: The model.
        port: Where to listen; 0 for any.
        intercept: May answer a request otherwise: gets the path and the body, and returns a status and a
            body, ``crash`` to end the server, or None.
    """

    def __init__(
        self, brain: Brain, *, port: int = 0, intercept: Callable[[str, Any], Any] = lambda path, body: None
    ) -> None:
        self.brain = brain
        self.intercept = intercept
        self.calls: list[tuple[str, Any]] = []
        self.adapters: dict[str, Path] = {}
        self.started_at = 1.79601018643e09
        self.exit_code: int | None = None
        self._http = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self.pid = 1
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def calls_to(self, path: str) -> list[Any]:
        return [body for called, body in self.calls if called == path]

    def kill(self) -> None:
        if self.exit_code is None:
            self.exit_code = -9
            self._http.shutdown()
            self._http.server_close()

    def crash(self) -> None:
        """End as a server that is lost; ``kill`` also ends what it started."""
        self.kill()

    def tail(self) -> str:
        return "Its log is nowhere."

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        self.calls.append((path, body))
        return self.intercept(path, body) or self._answer(path, body)

    def _answer(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/completions":
            return self._complete(body)
        if path == "/inference/v1/generate":
            return self._generate(body)
        if path == "/collective_rpc":
            return self._reload(body)
        if path == "/v1/load_lora_adapter":
            self.adapters[body["lora_name"]] = Path(body["lora_path"])
            self.brain.load(Path(body["lora_path"]))
        if path == "/v1/unload_lora_adapter":
            del self.adapters[body["lora_name"]]
        plain = {
            "/v1/models": {"object": "list", "data": [{"id": "policy", "parent": None}]},
            "/reset_prefix_cache": {"success": True},
            "/metrics": f"# TYPE {_STARTED} gauge\n{_STARTED} {self.started_at}\n",
        }
        return 200, plain.get(path, "")

    def _reload(self, body: Any) -> tuple[int, Any]:
        assert body["method"] == "reload_weights"
        try:
            self.brain.load(Path(body["kwargs"]["weights_path"]))
        except OSError as error:
            message = f"Call to collective_rpc method failed: Worker failed with error '{error}'"
            return 500, {"error": {"message": message, "type": "InternalServerError", "code": 500}}
        return 200, {"results": [None]}

    def _complete(self, body: Any) -> tuple[int, Any]:
        if body["model"] not in {"policy", *self.adapters}:
            message = f"The model `{body['model']}` does not exist. Valid aliases: policy."
            return 404, {
                "error": {"message": message, "type": "NotFoundError", "param": "model", "code": 404}
            }
        choice = {"index": 0, "text": "", "logprobs": None, "token_ids": None, "prompt_logprobs": None}
        if "prompt_logprobs" in body:
            ids = body["prompt"]
            scores = zip(ids[1:], self.brain.score(ids), strict=True)
            shown = [{str(i): {"logprob": value, "rank": 8, "decoded_token": "$"}} for i, value in scores]
            choice |= {"prompt_logprobs": [None, *shown], "finish_reason": "length"}
        else:
            ids, logprobs, reason = self.brain.complete(body)
            told = {"text_offset": [0] * len(ids), "token_logprobs": logprobs, "tokens": [""] * len(ids)}
            choice |= {"token_ids": ids, "logprobs": told, "finish_reason": reason, "stop_reason": None}
        return 200, {"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": [choice]}

    def _generate(self, body: Any) -> tuple[int, Any]:
        """Answer a prompt with pictures: other names, and logprobs of another shape."""
        asked = {"model": body["model"], "prompt": body["token_ids"], **body["sampling_params"]}
        status, answer = self._complete(asked)
        if status != 200:
            return status, answer
        (choice,) = answer["choices"]
        told = choice["logprobs"] and choice["logprobs"]["token_logprobs"]
        entries = [{"token_id": 1, "logprob": value, "rank": 1, "top_logprobs": []} for value in told or ()]
        choice["logprobs"] = {"content": entries}
        return 200, {"choices": [choice], "prompt_logprobs": choice.pop("prompt_logprobs")}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None: ...

            def do_GET(self) -> None:
                self._respond(None)

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                self._respond(json.loads(self.rfile.read(length)) if length else None)

            def _respond(self, body: Any) -> None:
                answer = server.answer(self.path, body)
                if server.exit_code is not None or answer == "crash":
                    server.crash()
                    self.close_connection = True
                    return
                status, content = answer
                text = content if isinstance(content, str) else json.dumps(content)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

        return Handler
