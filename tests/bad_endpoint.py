"""An OpenAI-compatible endpoint on this machine that judges rightly, and misbehaves when told to.

It knows the right answer: a seat whose goal ends in ``#7`` scores 7 on the goal, and on every other
dimension 7 places above the lowest score, as far as the range goes. Where a goal has no such number, the
record decides which one it gets. Run as a script it serves until
it is killed and prints its address.
"""

import asyncio
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

CAUSES = {
    "429": "429",
    "429_wait": "429",
    "500": "500",
    "slow": "timeout",
    "dropped": "dropped",
    "half_body": "dropped",
    "cut_body": "unreadable",
    "no_choices": "unreadable",
    "oversized": "oversized",
    "refusal": "refused",
    "refusal_text": "refused",
    "cut_json": "verdict:bad_json",
    "cut_off": "verdict:cut_off",
    "no_json": "verdict:no_json",
    "range": "verdict:range",
    "float": "verdict:type",
    "string": "verdict:type",
    "missing": "verdict:missing",
    "unknown": "verdict:unknown",
    "duplicate": "verdict:duplicate",
}
"""What a client should call each fault."""
HARMLESS = ("swapped_keys", "prose", "fence")
"""Odd answers that are right all the same."""
SLOW_S = 60.0


@dataclass
class BadEndpoint:
    """How the endpoint behaves, and what it was asked and did."""

    share: float = 0.0
    """Share of requests that are answered with one of ``faults``, the same ones for the same seed."""
    seed: int = 0
    faults: tuple[str, ...] = (*CAUSES, *HARMLESS)
    script: list[str] = field(default_factory=list)
    """What the next requests get, before ``share`` applies: a fault, ``ok``, or ``=`` and a text to say."""
    delay_s: float = 0.0
    retry_after: str = "0.01"
    model: str = "judge-2025-01-01"
    served: Counter[str] = field(default_factory=Counter)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    num_connections: int = 0
    most_in_flight: int = 0
    url: str = ""
    _in_flight: int = 0
    _asked: Counter[str] = field(default_factory=Counter)

    def causes(self) -> Counter[str]:
        """Count the faults that were served, by what a client should call them."""
        counts: Counter[str] = Counter()
        for fault, number in self.served.items():
            if fault in CAUSES:
                counts[CAUSES[fault]] += number
        return counts

    def choose(self, body: bytes) -> str:
        """Choose what a request gets; it depends on its content and how often it came, not on the order."""
        if self.script:
            return self.script.pop(0)
        key = sha256(body).hexdigest()
        self._asked[key] += 1
        dice = sha256(f"{self.seed} {key} {self._asked[key]}".encode()).digest()
        if int.from_bytes(dice[:4], "big") >= self.share * 2**32:
            return "ok"
        return self.faults[int.from_bytes(dice[4:8], "big") % len(self.faults)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.num_connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        headers, body = await _read_request(reader)
        request = json.loads(body)
        self.headers.append(headers)
        self.requests.append(request)
        fault = self.choose(body)
        self.served[fault if fault[0] != "=" else "said"] += 1
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            await asyncio.sleep(self.delay_s)
            if fault == "slow":
                await asyncio.wait_for(reader.read(1), SLOW_S)
                return False
            if fault == "dropped":
                return False
            answer, is_whole = self._respond(fault, request)
            writer.write(answer)
            await writer.drain()
        finally:
            self._in_flight -= 1
        return is_whole

    def _respond(self, fault: str, request: dict[str, Any]) -> tuple[bytes, bool]:
        """Return the bytes of an answer and whether the connection stays open."""
        if fault in ("429", "429_wait", "500"):
            extra = f"Retry-After: {self.retry_after}\r\n" if fault == "429_wait" else ""
            return _http(int(fault[:3]), {"error": {"message": "please wait", "code": "busy"}}, extra), True
        if fault == "no_choices":
            return _http(200, {"choices": [], "model": self.model}), True
        text, finish, refusal = _words(fault, request)
        message = {"role": "assistant", "content": text, "refusal": refusal}
        completion = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": self.model,
            "system_fingerprint": "fp_1",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        }
        if fault == "oversized":
            completion["padding"] = "x" * 3_000_000
        whole = json.dumps(completion).encode()
        if fault == "cut_body":
            return _head(200, len(whole) // 2) + whole[: len(whole) // 2], True
        if fault == "half_body":
            return _head(200, len(whole)) + whole[: len(whole) // 2], False
        return _head(200, len(whole)) + whole, True


def right_scores(request: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Work out the right answer to a judge's request."""
    goals = {}
    asked = request["messages"][1]["content"]
    for line in asked.splitlines():
        if line.startswith('{"participant"'):
            person = json.loads(line)
            number = person["goal"].rpartition("#")[2]
            goals[person["participant"]] = int(number) if number.isdecimal() else _any_goal(asked, line)
    seats = request["response_format"]["json_schema"]["schema"]["properties"]
    return {
        label: {
            key: {"reason": f"as {label} did", "score": _level(key, goals[label], d["properties"]["score"])}
            for key, d in seat["properties"].items()
        }
        for label, seat in seats.items()
    }


def _any_goal(asked: str, person: str) -> int:
    return sha256((asked + person).encode()).digest()[0] % 11


def _level(key: str, goal: int, schema: dict[str, Any]) -> int:
    allowed = schema["enum"]
    return goal if key == "goal" else allowed[min(goal, len(allowed) - 1)]


def _words(fault: str, request: dict[str, Any]) -> tuple[str | None, str, str | None]:
    """Return (text, finish_reason, refusal) of an answer."""
    if fault.startswith("="):
        return fault[1:], "stop", None
    if fault == "refusal":
        return None, "stop", "I will not rate this."
    if fault == "refusal_text":
        return "I'm sorry, but I can't help with rating people.", "stop", None
    if fault == "no_json":
        return "Both did rather well, I would say.", "stop", None
    if "response_format" not in request:
        return "hello", "stop", None
    answer = _spoilt(fault, right_scores(request))
    text = _dressed(fault, json.dumps(answer), next(iter(answer)))
    return text, ("length" if fault == "cut_off" else "stop"), None


def _spoilt(fault: str, answer: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Make the first seat's last score, or the whole answer, what the fault says."""
    seat = next(iter(answer.values()))
    key = next(reversed(seat))
    score = seat[key]
    if fault == "range":
        score["score"] = 11
    elif fault == "float":
        score["score"] = float(score["score"])
    elif fault == "string":
        score["score"] = str(score["score"])
    elif fault == "missing":
        del seat[key]
    elif fault == "unknown":
        seat["charm"] = score
    elif fault == "swapped_keys":
        return dict(reversed(answer.items()))
    return answer


def _dressed(fault: str, text: str, first: str) -> str:
    if fault in ("cut_json", "cut_off"):
        return text[: len(text) * 2 // 3]
    if fault == "duplicate":
        return text[:-1] + f', "{first}": {{}}}}'
    if fault == "prose":
        return f"Here is my verdict:\n\n{text}\n\nLet me know if you need more."
    return f"```json\n{text}\n```" if fault == "fence" else text


def _http(status: int, value: object, extra: str = "") -> bytes:
    body = json.dumps(value).encode()
    return _head(status, len(body), extra) + body


def _head(status: int, length: int, extra: str = "") -> bytes:
    lines = (
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{extra}\r\n"
    )
    return lines.encode()


async def _read_request(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    return headers, await reader.readexactly(int(headers["content-length"]))


async def _run(endpoint: BadEndpoint, started: threading.Event, stop: asyncio.Event) -> None:
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0, backlog=1024, limit=1 << 20)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    started.set()
    await stop.wait()
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def bad_endpoint(**behaviour: Any) -> Iterator[BadEndpoint]:
    """Serve on a free port of the loopback interface."""
    endpoint = BadEndpoint(**behaviour)
    loop, stop, started = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(_run(endpoint, started, stop),))
    thread.start()
    started.wait()
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _main(delay_s: float) -> None:
    endpoint = BadEndpoint(delay_s=delay_s)
    endpoint.requests = endpoint.headers = _Forgetful()
    started = threading.Event()
    serving = asyncio.create_task(_run(endpoint, started, asyncio.Event()))
    while not started.is_set():
        await asyncio.sleep(0.01)
    print(endpoint.url, flush=True)
    await serving


class _Forgetful(list):
    def append(self, _: object) -> None:
        pass


if __name__ == "__main__":
    asyncio.run(_main(float(sys.argv[1])))
