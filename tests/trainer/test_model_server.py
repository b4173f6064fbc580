"""A model on disk as an endpoint: what it answers, what it refuses, and how many it serves at a time."""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from istar_envs.chat import ChatClient, ChatUnavailable
from istar_envs.errors import ConfigError
from istar_trainer.completions import BadRequest, Completer, read_request
from istar_trainer.context import encode, render
from istar_trainer.model_server import ModelServer, ServeArgs, open_server
from istar_trainer.sampler import LocalSampler, Request
from istar_trainer.weights import load_model

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"score": {"enum": [1, 2]}, "why": {"type": "string"}}}


@pytest.fixture(scope="module")
def server(tiny_folder):
    with open_server(ServeArgs(tiny_folder, name="tiny", port=0, max_words=6)) as server:
        yield server


@pytest.fixture
def client(server):
    client = ChatClient(server.url, "tiny", max_retries=0, concurrency=64)
    yield client
    client.close()


def ask(server, method, path, body=None, headers=None):
    """Return the status and the document of an answer."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    return answer.status, document


def chat(server, **fields):
    body = json.dumps({"model": "tiny", "messages": HELLO, "max_tokens": 4, **fields})
    return ask(server, "POST", "/v1/chat/completions", body)


# What it answers


def test_a_reply_is_what_the_sampler_draws_for_the_rendered_messages(server, client, tiny_folder):
    model, tokenizer = load_model(tiny_folder)
    prompt = encode(tokenizer, render(tokenizer, HELLO))
    sampler = LocalSampler(model, eos_token_id=tokenizer.eos_token_id, max_new_tokens=9)
    for temperature in (0.0, 1.0):
        (drawn,) = sampler.generate([Request(prompt, 5)], temperature=temperature)
        reply = client.complete(HELLO, max_tokens=9, seed=5, temperature=temperature)
        assert reply.text == tokenizer.decode(drawn.response_ids, skip_special_tokens=True)
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (
            len(prompt),
            len(drawn.response_ids),
        )
        is_ended = drawn.response_ids[-1] == tokenizer.eos_token_id
        assert reply.finish_reason == ("stop" if is_ended else "length")
        assert reply.model == "tiny"


def test_a_reply_depends_on_its_own_request_alone(client):
    alone = [client.complete(HELLO, max_tokens=8, seed=seed, temperature=1.0).text for seed in range(12)]
    with ThreadPoolExecutor(12) as pool:
        work = [
            pool.submit(client.complete, HELLO, max_tokens=8, seed=seed, temperature=1.0)
            for seed in range(12)
        ]
        together = [reply.result().text for reply in work]
    assert together == alone
    assert len(set(alone)) > 6


def test_without_a_seed_every_reply_is_drawn_anew(client):
    assert len({client.complete(HELLO, max_tokens=8, temperature=1.0).text for _ in range(4)}) > 1


def test_a_wanted_schema_is_forced(client):
    for seed in range(3):
        reply = client.complete(HELLO, response_schema=SCHEMA, seed=seed, temperature=1.0)
        assert json.loads(reply.text).keys() == {"score", "why"}
        assert reply.finish_reason == "stop"
    cut_off = client.complete(HELLO, response_schema=SCHEMA, max_tokens=5)
    assert cut_off.finish_reason == "length"


def test_a_wanted_schema_is_left_to_the_model_if_so_chosen(tiny_folder):
    with open_server(ServeArgs(tiny_folder, port=0, schemas="free")) as free:
        asked = ChatClient(free.url, tiny_folder.name)
        reply = asked.complete(HELLO, response_schema=SCHEMA, max_tokens=8, seed=1)
        plain = asked.complete(HELLO, max_tokens=8, seed=1)
        asked.close()
    assert reply.text == plain.text


def test_an_answer_has_the_fields_of_the_original(server):
    status, document = chat(server, seed=1)
    assert status == 200
    assert document["object"] == "chat.completion"
    assert document["id"].startswith("chatcmpl-")
    (choice,) = document["choices"]
    assert (choice["index"], choice["message"]["role"]) == (0, "assistant")
    usage = document["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_the_original_client_is_served_too(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as asked:
        assert [model.id for model in asked.models.list()] == ["tiny"]
        parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
        said = [
            asked.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": content}], max_completion_tokens=5, seed=3
            )
            for content in ("hello", parts)
        ]
        assert said[0].choices[0].message.content == said[1].choices[0].message.content
        with pytest.raises(openai.NotFoundError, match="no model 'huge'"):
            asked.chat.completions.create(model="huge", messages=HELLO)


# What it refuses


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role: "),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"temperature": -1}, "temperature: "),
        ({"top_p": 0.5}, "top_p: "),
        ({"n": 2}, "n: "),
        ({"stream": True}, "stream: "),
        ({"stop": "."}, "Known fields: model, messages, temperature"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}},
            "response_format: schema: this kind of value cannot be forced",
        ),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(server, fields, words):
    status, document = chat(server, **fields)
    assert status == 400
    assert words in document["error"]["message"]
    assert document["error"]["type"] == "invalid_request_error"


def test_a_prompt_that_is_too_long_is_refused_and_the_reply_gets_what_room_is_left(server):
    status, document = chat(server, messages=[{"role": "user", "content": "~ " * 3000}])
    assert status == 400
    assert document["error"]["code"] == "context_length_exceeded"
    status, document = chat(
        server, messages=[{"role": "user", "content": "~" * 4070}], max_tokens=500, temperature=0
    )
    assert status == 200
    assert document["usage"]["total_tokens"] <= 4096


def test_an_unknown_model_path_or_body_is_refused(server):
    assert chat(server, model="tinny")[1]["error"]["message"] == "no model 'tinny'. Did you mean \"tiny\"?"
    assert chat(server, model="tinny")[0] == 404
    assert ask(server, "GET", "/v2")[0] == 404
    assert ask(server, "POST", "/v1/completions", "{}")[0] == 404
    assert ask(server, "POST", "/v1/chat/completions", "{")[0] == 400
    assert ask(server, "POST", "/v1/chat/completions", "", {"Content-Length": "99999999"})[0] == 413
    assert ask(server, "POST", "/v1/chat/completions", "", {"Content-Length": "x"})[0] == 413


def test_a_failure_of_the_model_is_told_and_the_next_request_is_served(tiny_folder, monkeypatch, caplog):
    model, tokenizer = load_model(tiny_folder)
    with ModelServer(Completer(model, tokenizer), "tiny") as server:
        monkeypatch.setattr(model, "forward", None)
        asked = ChatClient(server.url, "tiny", max_retries=0)
        with pytest.raises(ChatUnavailable, match="HTTP 500: the model failed"):
            asked.complete(HELLO, max_tokens=3)
        monkeypatch.undo()
        assert asked.complete(HELLO, max_tokens=3).model == "tiny"
        asked.close()
    assert "a request failed" in caplog.text


def test_options_that_cannot_be_used_are_refused(tiny_folder, server):
    with pytest.raises(ConfigError, match="max_words = 0"):
        open_server(ServeArgs(tiny_folder, max_words=0))
    with pytest.raises(ConfigError, match=r"config.json is missing"):
        open_server(ServeArgs(tiny_folder.parent))
    with pytest.raises(ConfigError, match=r"cannot listen on .* Choose another port"):
        open_server(ServeArgs(tiny_folder, port=urlsplit(server.url).port))


def test_the_policy_of_a_run_folder_is_served(tiny_folder, tmp_path):
    (tmp_path / "policy").symlink_to(tiny_folder)
    with open_server(ServeArgs(tmp_path, port=0)) as server:
        assert ask(server, "GET", "/v1/models")[1]["data"][0]["id"] == tmp_path.name


def test_the_body_of_a_request_is_read_by_its_fields():
    request = read_request(json.dumps({"model": "m", "messages": HELLO}).encode())
    assert (request.prompt, request.schema_wanted, request.temperature) == (HELLO, None, 1.0)
    with pytest.raises(BadRequest, match="model: Field required"):
        read_request(b'{"messages": []}')
