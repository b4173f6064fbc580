"""Chat models behind an endpoint: what is asked, what is repeated, and how failure is told."""

import asyncio
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bad_endpoint import bad_endpoint
from free_ports import refusing_address
from istar_envs import background, chat, chat_openai
from istar_envs.chat import (
    ChatBudget,
    ChatClient,
    ChatError,
    ChatRefused,
    ChatReply,
    ChatTimeout,
    ChatUnavailable,
    Usage,
)
from istar_envs.chat_replies import Failure, read_answer, retry_after
from istar_envs.chat_wire import DirectWire, HttpAnswer, WireError
from istar_envs.errors import ConfigError, EnvError
from virtual_time import run_virtual

HELLO = [{"role": "user", "content": "hello"}]
OK = {
    "model": "m-2025",
    "system_fingerprint": "fp",
    "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2},
}


def answer(status: int = 200, value: object = OK, **headers: str) -> HttpAnswer:
    fields = {name.replace("_", "-"): text for name, text in headers.items()}
    return HttpAnswer(status, fields, json.dumps(value).encode())


class ScriptedWire:
    """Gives the answers of a script and notes when it was asked."""

    def __init__(self, *script: HttpAnswer | float | Exception) -> None:
        self.script = list(script)
        self.times: list[float] = []
        self.bodies: list[dict] = []

    async def post(self, body: bytes) -> HttpAnswer:
        self.times.append(asyncio.get_running_loop().time())
        self.bodies.append(json.loads(body))
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        if isinstance(step, float):
            await asyncio.sleep(step)
            return answer()
        return step

    async def close(self) -> None:
        pass


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ScriptedWire]:
    """Put a scripted wire into every client."""

    def wire(*script: HttpAnswer | float | Exception) -> ScriptedWire:
        scripted = ScriptedWire(*script)
        monkeypatch.setattr(chat, "DirectWire", lambda *_: scripted)
        return scripted

    return wire


def client(url: str = "http://127.0.0.1:1/v1", **options: object) -> ChatClient:
    return ChatClient(url, "m", **options)


def ask(options: Mapping[str, object] | None = None, **client_options: object) -> tuple[ChatReply, float]:
    return run_virtual(client(**client_options).acomplete(HELLO, **(options or {})))


# What is sent and what comes back


def test_a_reply_carries_its_words_its_model_and_its_cost(wired):
    wired(answer())
    reply, _ = ask()
    assert reply == ChatReply("hi", "m-2025", "stop", Usage(7, 2), "fp")


def test_a_request_names_model_messages_and_sampling(wired):
    wire = wired(answer())
    ask({"temperature": 0.7, "top_p": 0.9, "max_tokens": 5, "seed": 3})
    assert wire.bodies == [
        {"model": "m", "messages": HELLO, "temperature": 0.7, "top_p": 0.9, "max_tokens": 5, "seed": 3}
    ]


@pytest.mark.parametrize(
    ("structured", "kind"), [("json_schema", "json_schema"), ("json_object", "json_object"), ("off", None)]
)
def test_a_schema_is_asked_for_in_the_way_that_the_endpoint_knows(wired, structured, kind):
    wire = wired(answer())
    ask({"response_schema": {"type": "object"}}, structured=structured)
    assert wire.bodies[0].get("response_format", {}).get("type") == kind


def test_extra_fields_are_sent_and_none_removes_a_field(wired):
    wire = wired(answer())
    ask(extra={"max_tokens": None, "max_completion_tokens": 9})
    assert "max_tokens" not in wire.bodies[0]
    assert wire.bodies[0]["max_completion_tokens"] == 9


def test_half_a_surrogate_pair_is_sent_as_the_replacement_character(wired):
    wire = wired(answer())
    run_virtual(client().acomplete([{"role": "user", "content": "a\ud800b"}]))
    assert wire.bodies[0]["messages"][0]["content"] == "a\ufffdb"


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": -1, "completion_tokens": 2}, "7", {}])
def test_a_count_of_tokens_that_makes_no_sense_is_no_count(usage):
    read = read_answer(200, {}, json.dumps({**OK, "usage": usage}).encode())
    assert isinstance(read, ChatReply)
    assert read.usage is None


# What is repeated


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_a_passing_failure_is_repeated_and_told(wired, status):
    wire = wired(answer(status), answer())
    reply, _ = ask()
    assert reply.text == "hi"
    assert reply.failures == (str(status),)
    assert wire.bodies[0] == wire.bodies[1]


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 422])
def test_a_lasting_failure_is_not_repeated(wired, status):
    wire = wired(answer(status, {"error": {"message": "no such thing"}}))
    with pytest.raises(ChatUnavailable, match=f"HTTP {status}: no such thing .*1 attempt"):
        ask()
    assert len(wire.times) == 1


def test_an_exhausted_quota_is_not_waited_for(wired):
    wire = wired(answer(429, {"error": {"message": "quota", "code": "insufficient_quota"}}))
    with pytest.raises(ChatUnavailable, match="quota"):
        ask()
    assert len(wire.times) == 1


def test_pauses_double_and_are_shortened_by_at_most_half(wired):
    wire = wired(answer(500))
    with pytest.raises(ChatUnavailable, match="5 attempts") as caught:
        ask(backoff_s=1.0)
    assert caught.value.failures == ("500",) * 5
    pauses = [after - before for before, after in zip(wire.times, wire.times[1:], strict=False)]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, (1, 2, 4, 8), strict=True))


def test_pauses_are_the_same_in_every_run_and_differ_between_requests(wired):
    seconds = []
    for words in ("hello", "hello", "other"):
        wired(answer(500), answer())
        seconds.append(run_virtual(client().acomplete([{"role": "user", "content": words}]))[1])
    assert seconds[0] == seconds[1] != seconds[2]


def test_j12_an_endpoint_that_asks_to_wait_is_not_asked_earlier(wired):
    wire = wired(answer(429, retry_after="20"), answer())
    ask(backoff_s=1.0)
    assert 20.5 <= wire.times[1] <= 21.0


def test_an_endpoint_that_asks_to_wait_too_long_is_unavailable_at_once(wired):
    wire = wired(answer(429, retry_after="3600"))
    with pytest.raises(ChatUnavailable, match="asks to wait 3600 s; max_wait_s is 60"):
        ask()
    assert wire.times == [0.0]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        (
            {"retry-after": "Wed, 01 Jan 2025 00:00:30 GMT", "date": "Wed, 01 Jan 2025 00:00:10 GMT"},
            20.0,
        ),
        ({"retry-after": "Wed, 01 Jan 2020 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_the_wish_to_wait_is_read(headers, seconds):
    assert retry_after(headers) == seconds


def test_a_slow_endpoint_times_out_after_every_attempt(wired):
    wire = wired(100.0)
    with pytest.raises(ChatTimeout, match="no answer within 3 s") as caught:
        ask(timeout_s=3.0, max_retries=1, backoff_s=0.0)
    assert caught.value.failures == ("timeout", "timeout")
    assert wire.times == [0.0, 3.0]


def test_what_the_last_attempt_failed_of_names_the_error(wired):
    wired(answer(500), 100.0)
    with pytest.raises(ChatTimeout) as caught:
        ask(timeout_s=3.0, max_retries=1)
    assert caught.value.failures == ("500", "timeout")


@pytest.mark.parametrize(
    "refusal",
    [
        answer(200, {**OK, "choices": [{"message": {"content": None, "refusal": "no"}}]}),
        answer(200, {**OK, "choices": [{"message": {"content": "so"}, "finish_reason": "content_filter"}]}),
        answer(400, {"error": {"message": "filtered", "code": "content_filter"}}),
    ],
    ids=["refusal", "filtered reply", "filtered prompt"],
)
def test_a_refusal_is_told_and_not_repeated(wired, refusal):
    wire = wired(refusal)
    with pytest.raises(ChatRefused) as caught:
        ask()
    assert caught.value.failures == ("refused",)
    assert len(wire.times) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{"message": {}}]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_an_answer_that_is_no_completion_is_a_passing_failure(body):
    read = read_answer(200, {}, body)
    assert isinstance(read, Failure)
    assert (read.cause, read.is_final) == ("unreadable", False)


@pytest.mark.property
@given(st.integers(100, 599), st.binary(max_size=200))
def test_no_answer_of_an_endpoint_raises(status, body):
    assert isinstance(read_answer(status, {"retry-after": body.decode("latin-1")}, body), ChatReply | Failure)


def test_many_requests_get_replies_and_errors_in_order(wired):
    wired(answer(), answer(404), answer())
    first, second, third = client(concurrency=1).complete_many([HELLO] * 3)
    assert (first.text, third.text) == ("hi", "hi")
    assert isinstance(second, ChatError)


# Keys and options


def test_the_key_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    with bad_endpoint() as endpoint:
        asked = client(endpoint.url, api_key_env="SOME_KEY")
        asked.complete(HELLO)
        asked.close()
        assert endpoint.headers[0]["authorization"] == "Bearer sk-secret"
    with refusing_address() as nobody, pytest.raises(ChatUnavailable) as caught:
        client(nobody, api_key_env="SOME_KEY", max_retries=0).complete(HELLO)
    assert "sk-secret" not in repr(asked) + str(caught.value)


def test_a_rejected_key_is_explained(wired):
    wired(answer(401, {"error": {"message": "bad key"}}))
    with pytest.raises(ChatUnavailable, match="api_key_env"):
        ask()


def test_a_key_that_is_not_there_is_refused_before_any_call():
    with pytest.raises(ConfigError, match="ABSENT_KEY"):
        client(api_key_env="ABSENT_KEY")


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://host/v1",
        "http://",
        "http://user:pw@host/v1",
        "http://host/v1?x=1",
        "http://h\r\nX: 1/",
        "http://host:99999/",
    ],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="base_url") as caught:
        client(url)
    assert "pw@" not in str(caught.value)


@pytest.mark.parametrize("option", ["timeout_s", "concurrency", "max_body"])
def test_an_option_out_of_range_is_named(option):
    with pytest.raises(ConfigError, match=f"{option} = 0 is out of range"):
        client(**{option: 0})


# The budget


class CountingMeter:
    def __init__(self, tickets: list[int | None]) -> None:
        self.tickets = tickets
        self.asked: list[tuple[int, int]] = []
        self.settled: list[tuple[int, Usage | None]] = []

    def reserve(self, prompt_tokens: int, completion_tokens: int) -> int | None:
        self.asked.append((prompt_tokens, completion_tokens))
        if not self.tickets:
            raise ChatBudget("spent")
        return self.tickets.pop(0)

    def settle(self, ticket: int, usage: Usage | None) -> None:
        self.settled.append((ticket, usage))


def test_every_attempt_is_reserved_and_settled(wired):
    wired(answer(500), WireError("dropped", "gone"), answer())
    meter = CountingMeter([1, 2, 3])
    ask({"max_tokens": 50}, meter=meter)
    assert meter.settled == [(1, Usage()), (2, None), (3, Usage(7, 2))]
    assert {most for _, most in meter.asked} == {50}
    assert all(tokens > len("hello") for tokens, _ in meter.asked)


def test_an_attempt_waits_until_others_are_settled(wired):
    wired(answer())
    meter = CountingMeter([None, None, 1])
    _, seconds = ask(meter=meter)
    assert seconds > 0
    assert meter.settled == [(1, Usage(7, 2))]


def test_no_call_is_made_beyond_the_budget(wired):
    wire = wired(answer(500), answer())
    with pytest.raises(ChatBudget, match="spent") as caught:
        ask(meter=CountingMeter([1]))
    assert caught.value.failures == ("500",)
    assert len(wire.times) == 1


def test_a_timed_out_attempt_counts_in_full(wired):
    wired(100.0)
    meter = CountingMeter([1])
    with pytest.raises(ChatTimeout):
        ask(meter=meter, timeout_s=1.0, max_retries=0)
    assert meter.settled == [(1, None)]


# The wire


def test_connections_are_kept_and_replaced_when_the_other_side_closed_them():
    async def work(url: str) -> None:
        asked = client(url)
        for _ in range(3):
            await asked.acomplete(HELLO)
        await asked.aclose()

    with bad_endpoint() as endpoint:
        asyncio.run(work(endpoint.url))
        assert endpoint.num_connections == 1


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("dropped", "dropped"),
        ("half_body", "dropped"),
        ("cut_body", "unreadable"),
        ("oversized", "oversized"),
        ("slow", "timeout"),
        ("no_choices", "unreadable"),
        ("429_wait", "429"),
    ],
)
@pytest.mark.parametrize("transport", ["direct", "openai"])
def test_a_fault_on_the_wire_is_named_and_survived(fault, cause, transport):
    with bad_endpoint(script=[fault, "ok"]) as endpoint:
        timeout_s = 3.0 if fault == "slow" else 60.0
        asked = client(
            endpoint.url, timeout_s=timeout_s, backoff_s=0.01, max_body=1_000_000, transport=transport
        )
        reply = asked.complete(HELLO)
        asked.close()
    assert reply.text == "hello"
    assert reply.failures == (cause,)


def test_nobody_listening_is_told_with_the_address():
    with (
        refusing_address() as nobody,
        pytest.raises(ChatUnavailable, match="cannot connect to 127") as caught,
    ):
        client(nobody, max_retries=1, backoff_s=0.01).complete(HELLO)
    assert caught.value.failures == ("dropped", "dropped")


def raw_exchange(*answers: bytes, max_body: int = 1000) -> list[HttpAnswer | WireError]:
    """Post once per answer to a server that sends these bytes and then hangs up."""
    left = list(answers)
    hung_up = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(left.pop(0))
        with suppress(ConnectionError):  # of a client that has seen enough
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        hung_up.set()

    async def one(wire: DirectWire) -> HttpAnswer | WireError:
        try:
            return await wire.post(b"{}")
        except WireError as error:
            return error

    async def work() -> list[HttpAnswer | WireError]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            wire = DirectWire(f"http://127.0.0.1:{port}", {}, max_body)
            found = []
            for _ in answers:
                found.append(await one(wire))
                await hung_up.wait()
                hung_up.clear()
                await asyncio.sleep(0.02)  # for the news to arrive
            await wire.close()
            return found

    return asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nT: 1\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ],
    ids=["length", "chunks", "until the end", "after continue"],
)
def test_every_way_to_frame_a_body_is_read(raw):
    (read,) = raw_exchange(raw)
    assert (read.status, read.body) == (200, b"hello")


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (b"", "dropped"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "dropped"),
        (b"SSH-2.0-x\r\n\r\n", "unreadable"),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", "unreadable"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "unreadable"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "unreadable"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999\r\n\r\n", "unreadable"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "unreadable"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n", "unreadable"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", "unreadable"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, "unreadable"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", "oversized"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n", "oversized"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 100_000, "oversized"),
    ],
)
def test_what_is_no_http_answer_is_an_error_of_the_wire(raw, cause):
    (read,) = raw_exchange(raw)
    assert isinstance(read, WireError)
    assert read.cause == cause


def test_a_connection_that_was_closed_in_the_meantime_is_not_used_again():
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"

    assert [read.body for read in raw_exchange(whole, whole, whole)] == [b"hello"] * 3


def test_j12_only_so_many_calls_run_at_a_time():
    with bad_endpoint(delay_s=0.1) as endpoint:
        asked = client(endpoint.url, concurrency=3)
        replies = asked.complete_many([HELLO] * 12)
        asked.close()
        assert all(reply.text == "hello" for reply in replies)
        assert endpoint.most_in_flight == 3


# From synchronous code


def test_a_call_may_be_made_from_threads_and_inside_a_running_loop():
    async def inside(asked: ChatClient) -> str:
        return asked.complete(HELLO).text

    with bad_endpoint() as endpoint:
        asked = client(endpoint.url)
        texts: list[str] = [asyncio.run(inside(asked))]
        threads = [
            threading.Thread(target=lambda: texts.append(asked.complete(HELLO).text)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        asked.close()
    assert texts == ["hello"] * 5


def test_waiting_on_the_background_loop_itself_is_refused():
    async def nested() -> None:
        background.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="await the coroutine"):
        background.run(nested())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_can_call_too():
    with bad_endpoint() as endpoint:
        asked = client(endpoint.url)
        asked.complete(HELLO)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if asked.complete(HELLO).text == "hello" else 1)
        assert os.waitpid(pid, 0)[1] == 0
        asked.close()


def test_a_client_can_be_pickled():
    with bad_endpoint() as endpoint:
        asked = client(endpoint.url, concurrency=5)
        asked.complete(HELLO)
        copy = pickle.loads(pickle.dumps(asked))
        assert copy.complete(HELLO).text == "hello"
        assert (copy.concurrency, copy.identity) == (5, asked.identity)
        asked.close()
        copy.close()


def test_the_other_transport_asks_for_its_package(monkeypatch):
    monkeypatch.setattr(chat_openai.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvError, match=r'pip install "istar-envs\[llm\]"'):
        client(transport="openai")


def test_the_other_transport_sends_the_same_request():
    with bad_endpoint(script=["ok", "ok"]) as endpoint:
        for transport in ("direct", "openai"):
            asked = client(endpoint.url, transport=transport, extra={"own_field": 1})
            asked.complete(HELLO, response_schema=None, max_tokens=5)
            asked.close()
        assert endpoint.requests[0] == endpoint.requests[1]


# Speed


@pytest.fixture
def slow_endpoint() -> Iterator[str]:
    """The address of an endpoint in a process of its own that takes 200 ms for an answer."""
    script = Path(__file__).parents[1] / "bad_endpoint.py"
    process = subprocess.Popen([sys.executable, str(script), "0.2"], stdout=subprocess.PIPE, text=True)
    with process:
        yield process.stdout.readline().strip()
        process.kill()


@pytest.mark.slow
def test_256_concurrent_calls_wait_at_the_same_time(slow_endpoint):
    async def episode(asked: ChatClient) -> None:
        for _ in range(5):
            await asked.acomplete([{"role": "user", "content": "hello " * 500}])

    async def work() -> float:
        asked = client(slow_endpoint, concurrency=256)
        started = time.perf_counter()
        await asyncio.gather(*(episode(asked) for _ in range(256)))
        seconds = time.perf_counter() - started
        await asked.aclose()
        return seconds

    # One after the other they take 256 s; how near to 1 s they come is for the benchmark.
    assert asyncio.run(work()) <= 25.6
