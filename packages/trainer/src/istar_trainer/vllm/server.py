"""vLLM behind its OpenAI-compatible HTTP server: one that is started here, or one that runs already.

Every request is a connection of its own, so that an idle one that the server closed is never taken for a
crash. What breaks is ``SamplerDown`` if asking again can help, and ``SamplerFailed`` if not.
"""

import http.client
import json
import re
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from istar_trainer.errors import SamplerFailed
from istar_trainer.pictures import PlacedPicture
from istar_trainer.sampler import Completion, Request
from istar_trainer.vllm.pictures import features
from istar_trainer.vllm.process import ServerProcess, free_port
from istar_trainer.vllm.served.istar_receiver import address_towards
from istar_trainer.vllm.wire import (
    SamplerDown,
    as_flags,
    read_completion,
    read_prompt_logprobs,
)

_MODEL = "policy"
_POLL_S = 0.25
_STARTED = re.compile(rb"^process_start_time_seconds (\S+)", re.MULTILINE)

StartProcess = Callable[[list[str]], ServerProcess]
"""Starts a server with some flags."""


class VllmServer:
    """Speaks to a vLLM server.

    Args:
        arguments: Server arguments for a folder of weights.
        start_process: Starts a server; None to use the one at ``url``.
        url: Address of a server that runs already.
        pixels: Precision of pictures.
        concurrency: Requests at a time.
        start_timeout_s: Seconds that it may take to come up.
        request_timeout_s: Seconds that a request may take.
    """

    def __init__(
        self,
        arguments: Callable[[Path], Mapping[str, Any]],
        *,
        start_process: StartProcess | None,
        url: str | None = None,
        pixels: torch.dtype,
        concurrency: int,
        start_timeout_s: float,
        request_timeout_s: float,
    ) -> None:
        self._arguments = arguments
        self._start_process = start_process
        self._pixels = pixels
        self._start_timeout_s = start_timeout_s
        self._request_timeout_s = request_timeout_s
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="vllm")
        self._process: ServerProcess | None = None
        self._host, self._port = _address(url) if url else ("127.0.0.1", 0)
        self._model = _MODEL
        self._adapter: str | None = None
        self._identity: bytes | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the server that was started here."""
        return self._process.pid if self._process else None

    def start(self, model: Path) -> bool:
        """Bring the server up with the weights of a folder.

        Returns:
            Whether it has read them; one that ran already has not.

        Raises:
            SamplerDown: If it ends or does not answer in time.
        """
        self.stop()
        if self._start_process is not None:
            self._port = free_port()
            place = {"host": self._host, "port": self._port, "served_model_name": _MODEL}
            self._process = self._start_process(as_flags({**place, **self._arguments(model)}))
        self._wait_until_healthy()
        if self._start_process is None:
            self._model = self._only_model()
        self._identity = self._started_at()
        return self._start_process is not None

    def is_alive(self) -> bool:
        """Whether the server that was started, or the very one that weights were given to, still runs."""
        if self._identity is None:
            return False
        if self._process is not None:
            return self._process.exit_code is None
        try:
            return self._started_at() == self._identity
        except SamplerDown:
            return False

    def answer(
        self,
        requests: Sequence[Request],
        parameters: Sequence[Mapping[str, Any]],
        done: Callable[[int, Completion], None],
    ) -> None:
        """Ask for replies, many at a time.

        Args:
            requests: What to reply to.
            parameters: How to draw each reply.
            done: Gets the place of each reply and the reply, as they come.

        Raises:
            SamplerDown: If some did not come; those that came were handed over.
            SamplerFailed: If the server refuses a request or its answer cannot be used.
        """
        broken: list[SamplerDown] = []

        def ask(place: int) -> None:
            if broken:
                return
            try:
                done(place, self._reply(requests[place], parameters[place]))
            except SamplerDown as error:
                broken.append(error)

        for future in [self._pool.submit(ask, place) for place in range(len(requests))]:
            future.result()
        if broken:
            raise broken[0]

    def prompt_logprobs(self, ids: Sequence[int], pictures: Sequence[PlacedPicture] = ()) -> list[float]:
        """Score a text: the logprob of every token but the first, at temperature 1."""
        parameters = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        if pictures:
            answer = self._generate(ids, pictures, parameters)
        else:
            answer = self._complete({"prompt": list(ids), **parameters})["choices"][0]
        return read_prompt_logprobs(answer["prompt_logprobs"], ids)

    def load_weights(self, folder: Path) -> None:
        """Take over the weights of a folder and forget what was cached for the old ones."""
        self.call_workers("reload_weights", weights_path=str(folder))
        self._forget()

    def receive_weights(self, send: Callable[[Future[Any]], None], **told: Any) -> None:
        """Take over weights that are sent, and forget what was cached for the old ones.

        Args:
            send: Sends them while the workers receive; gets their answer, which comes when they are ready.
            told: What the workers must know.
        """
        answer = self._pool.submit(self.call_workers, "receive_weights", **told)
        answer.add_done_callback(self._end_if_lost)
        send(answer)
        answer.result()
        self._forget()

    def call_workers(self, method: str, **arguments: Any) -> list[Any]:
        """Call a method of every worker; returns what each of them says."""
        body = {"method": method, "kwargs": arguments}
        answers: list[Any] = self._call("POST", "/collective_rpc", body).get("results", [])
        return answers

    def address_here(self) -> str:
        """Return the address by which the server's machine reaches this one; raises SamplerDown if none."""
        try:
            return address_towards(self._host, self._port)
        except OSError as error:
            raise SamplerDown(f"no connection to {self._host}:{self._port}: {error!r}") from error

    def load_adapter(self, name: str, folder: Path) -> None:
        """Use a LoRA adapter from now on, in place of the one before."""
        if self._adapter is not None:
            self._call("POST", "/v1/unload_lora_adapter", {"lora_name": self._adapter})
            self._adapter = None
        self._call(
            "POST",
            "/v1/load_lora_adapter",
            {"lora_name": name, "lora_path": str(folder), "load_inplace": True},
        )
        self._adapter = name

    def sleep(self) -> None:
        """Leave the GPU's memory to others."""
        self._call("POST", "/sleep?level=1")

    def wake(self) -> None:
        """Take the GPU's memory back."""
        self._call("POST", "/wake_up")
        self._forget()

    def stop(self) -> None:
        """End the server if it was started here."""
        self._identity = self._adapter = None
        if self._process is not None:
            self._process.kill()
            self._process = None

    def close(self) -> None:
        """End the server if it was started here, and all waiting requests."""
        self.stop()
        self._pool.shutdown(cancel_futures=True)

    def diagnosis(self) -> str:
        """What there is to say about a server that does not work."""
        if self._process is None:
            return f"It is the server at http://{self._host}:{self._port} (sampler.url)."
        code = self._process.exit_code
        state = "It still runs." if code is None else f"It ended with code {code}."
        return f"{state} {self._process.tail()}"

    def _forget(self) -> None:
        if self._call("POST", "/reset_prefix_cache").get("success") is False:
            raise SamplerDown("the prefix cache could not be emptied")
        self._call("POST", "/reset_encoder_cache")

    def _end_if_lost(self, answer: Future[Any]) -> None:
        """End the workers of a server that gave no good answer; a sender would go on waiting for them."""
        if self._process is not None and answer.exception() is not None:
            self._process.kill()

    def _reply(self, request: Request, parameters: Mapping[str, Any]) -> Completion:
        if request.pictures:
            return read_completion(self._generate(request.prompt_ids, request.pictures, parameters))
        body = {"prompt": list(request.prompt_ids), "return_token_ids": True, **parameters}
        return read_completion(self._complete(body))

    def _generate(
        self, ids: Sequence[int], pictures: Sequence[PlacedPicture], parameters: Mapping[str, Any]
    ) -> Any:
        body = {
            "model": self._adapter or self._model,
            "token_ids": list(ids),
            "features": features(pictures, self._pixels),
            "sampling_params": {**parameters, "detokenize": False},
        }
        return self._call("POST", "/inference/v1/generate", body)

    def _complete(self, body: Mapping[str, Any]) -> Any:
        return self._call("POST", "/v1/completions", {"model": self._adapter or self._model, **body})

    def _wait_until_healthy(self) -> None:
        end = time.monotonic() + self._start_timeout_s
        while True:
            if self._process is not None and self._process.exit_code is not None:
                raise SamplerDown("it ended before it was up")
            try:
                self._call("GET", "/health")
            except SamplerDown as error:
                if time.monotonic() > end:
                    raise SamplerDown(
                        f"it was not up after {self._start_timeout_s:g} s (sampler.start_timeout_s)"
                    ) from error
                time.sleep(_POLL_S)
            else:
                return

    def _only_model(self) -> str:
        models = [m for m in self._call("GET", "/v1/models")["data"] if m.get("parent") is None]
        return str(models[0]["id"])

    def _started_at(self) -> bytes:
        """When the server started: tells whether it is still the same."""
        found = _STARTED.search(self._fetch("GET", "/metrics"))
        return found.group(1) if found else b"unknown"

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        text = self._fetch(method, path, body)
        try:
            return json.loads(text)
        except ValueError:
            return {"text": text.decode("utf-8", errors="replace")}

    def _fetch(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._request_timeout_s)
        payload = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            status, text = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise SamplerDown(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        if status >= 500:
            raise SamplerDown(f"{method} {path}: HTTP {status}: {text[:300]!r}")
        if status >= 400:
            raise SamplerFailed(_refusal(method, path, status, text))
        return text


def _refusal(method: str, path: str, status: int, text: bytes) -> str:
    hint = ""
    if status == 404 and path != "/v1/completions":
        hint = (
            " Start the server with VLLM_SERVER_DEV_MODE=1 and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 so that it "
            "takes new weights."
        )
    return (
        f"vLLM refused {method} {path}: HTTP {status}: {text[:500].decode('utf-8', errors='replace')}.{hint}"
    )


def _address(url: str) -> tuple[str, int]:
    parts = urllib.parse.urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 80
