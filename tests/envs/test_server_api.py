"""The session API, asked without a network in between."""

import base64
import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import istar_envs
from istar_envs.conformance.play import canonical
from istar_envs.errors import UnknownEnv
from istar_envs.server import sessions
from istar_envs.server.app import create_app
from istar_envs.server.guard import RateLimit
from istar_envs.server.limits import Limits
from istar_envs.server.logs import JsonLines
from istar_envs.server.service import Service
from istar_envs.server.worlds import CHOICES, Worlds, servable_ids
from istar_envs.wire.values import loads

SOKOBAN, VISUAL, SOTOPIA, SHOP = (
    "istar/Sokoban-v0",
    "istar/VisualSokoban-v0",
    "istar/Sotopia-v0",
    "istar/WebShop-v1",
)
PROBLEM = "application/problem+json"


def make_client(*names, token="", options=None, **limits):
    service = Service(Worlds(names or [SOKOBAN], options), Limits(**limits), token)
    service.start()
    client = create_app(service).test_client()
    client.service = service
    return client


@pytest.fixture
def client():
    client = make_client(SOKOBAN, VISUAL, SOTOPIA)
    yield client
    client.service.stop()


def opened(client, env=SOKOBAN, **body):
    answer = client.post("/v1/sessions", json={"env": env, **body})
    assert answer.status_code == 201, answer.text
    return f"/v1/sessions/{answer.json['session']}"


def started(client, env=SOKOBAN, seed=0, **body):
    session = opened(client, env, **body)
    assert client.post(f"{session}/reset", json={"sequence": 1, "seed": seed}).status_code == 200
    return session


def step(client, session, sequence, action=0):
    return client.post(f"{session}/step", json={"sequence": sequence, "action": action})


def refused(answer, status, error):
    """Check a problem document and return what it says."""
    assert (answer.status_code, answer.mimetype) == (status, PROBLEM), answer.text
    document = answer.json
    assert (document["status"], document["error"]) == (status, error)
    assert document["type"] == f"urn:istar:problem:{error}"
    assert document["instance"] == f"urn:istar:request:{answer.headers['X-Request-Id']}"
    assert "Traceback" not in answer.text
    return document["detail"]


def test_the_served_environments_are_listed_and_described(client):
    assert client.get("/v1/envs").json == {"envs": [SOKOBAN, SOTOPIA, VISUAL]}
    described = client.get(f"/v1/envs/{VISUAL}").json
    assert described["observation_space"]["shape"] == [168, 168, 3]
    assert described["action_space"] == {"type": "Discrete", "n": 4, "start": 0}
    assert (described["env"], described["num_tasks"]) == (VISUAL, None)
    assert client.get(f"/v1/envs/{SOTOPIA}").json["offers"] == ["truncate", "expert_action", "task_ids"]
    assert SOKOBAN in refused(client.get("/v1/envs/istar/Sokoban-v9"), 404, "UnknownEnv")


def test_an_episode_over_the_api_is_the_local_one(client):
    env = istar_envs.make(SOKOBAN)
    session = opened(client)
    want = env.reset(seed=7)
    got = loads(client.post(f"{session}/reset", json={"sequence": 1, "seed": 7}).data)
    assert canonical((got["observation"], got["info"])) == canonical(want)
    for sequence, action in enumerate((0, 3, 1, 2), start=2):
        want = env.step(action)
        got = loads(step(client, session, sequence, action).data)
        keys = ("observation", "reward", "terminated", "truncated", "info")
        assert repr([got[key] for key in keys]) == repr(list(want))
        assert got["sequence"] == sequence


def test_a_repeated_call_gets_the_same_answer_and_steps_once(client):
    session = started(client)
    first = step(client, session, 2)
    assert [step(client, session, 2).data for _ in range(3)] == [first.data] * 3
    assert step(client, session, 3).json["info"]["steps"] == 2
    assert "istar_replays_total 3" in client.get("/metrics").text


def test_a_call_out_of_order_is_refused_and_changes_nothing(client):
    session = started(client)
    assert "send call 2 next" in refused(step(client, session, 3), 409, "OutOfOrder")
    assert step(client, session, 2).status_code == 200
    assert "send call 3 next" in refused(step(client, session, 1), 409, "OutOfOrder")
    assert "send call 3 next" in refused(step(client, session, 2, action=1), 409, "NumberTaken")
    assert step(client, session, 3).json["info"]["steps"] == 2


def test_a_refused_action_keeps_its_number_free(client):
    session = started(client)
    assert "Use 0 up" in refused(step(client, session, 2, action=7), 422, "EnvError")
    assert "$unknown" in refused(step(client, session, 2, action={"$unknown": 1}), 422, "ValueUnreadable")
    assert step(client, session, 2).json["info"]["steps"] == 1


def test_steps_before_the_first_reset_and_after_the_end_need_a_reset(client):
    session = opened(client, options={"max_steps": 1})
    refused(step(client, session, 1), 409, "ResetNeeded")
    client.post(f"{session}/reset", json={"sequence": 1, "seed": 0})
    assert step(client, session, 2).json["truncated"] is True
    refused(step(client, session, 3), 409, "ResetNeeded")
    assert client.post(f"{session}/reset", json={"sequence": 3}).status_code == 200


def test_invalid_steps_and_limits_of_the_agent_can_be_told(client):
    session = started(client, SOTOPIA)
    answer = client.post(f"{session}/invalid_step", json={"sequence": 2, "reason": "mumbled"})
    assert answer.json["info"]["invalid_reason"] == "mumbled"
    answer = client.post(f"{session}/truncate", json={"sequence": 3})
    assert answer.json["info"]["end_reason"] == "prompt_overflow"
    board = started(client)
    refused(client.post(f"{board}/truncate", json={"sequence": 2}), 422, "NotOffered")


def test_a_clone_goes_on_alike_and_apart(client):
    session = started(client)
    step(client, session, 2, 3)
    twin = client.post(f"{session}/clone", json={}).json
    assert twin["info"]["steps"] == 1
    path = f"/v1/sessions/{twin['session']}"
    ours, theirs = step(client, session, 3, 1).json, step(client, path, 1, 1).json
    assert {**ours, "sequence": 0} == {**theirs, "sequence": 0}
    step(client, session, 4)
    assert step(client, path, 2).json["info"]["steps"] == 3
    fresh = client.post(f"{opened(client)}/clone", json={}).json
    assert fresh["info"] is None


def test_a_key_opens_one_session_however_often_it_is_sent(client):
    key = "k" * 16
    twice = [client.post("/v1/sessions", json={"env": SOKOBAN, "key": key}).json for _ in range(2)]
    assert twice[0] == twice[1]
    path = f"/v1/sessions/{twice[0]['session']}"
    clones = [client.post(f"{path}/clone", json={"key": "c" * 16}).json["session"] for _ in range(2)]
    assert clones[0] == clones[1] != twice[0]["session"]
    client.delete(path)
    again = client.post("/v1/sessions", json={"env": SOKOBAN, "key": key}).json
    assert again["session"] != twice[0]["session"]


def test_session_ids_cannot_be_guessed(client):
    ids = {opened(client).rpartition("/")[2] for _ in range(20)}
    assert len(ids) == 20
    assert all(len(name) == 32 for name in ids)


def test_a_closed_session_is_gone(client):
    session = started(client)
    assert client.delete(session).status_code == 204
    assert "Open a new one" in refused(step(client, session, 2), 404, "SessionLost")
    refused(client.delete(session), 404, "SessionLost")


def test_what_changes_nothing_can_be_asked(client):
    session = started(client, SOTOPIA, seed=1)
    ids = client.get(f"{session}/task_ids?start=2&limit=3").json
    assert (ids["total"], len(ids["ids"])) == (80_000, 3)
    assert ids["ids"] == istar_envs.make(SOTOPIA).unwrapped.task_ids()[2:5]
    assert isinstance(client.get(f"{session}/expert_action").json["value"], str)
    assert client.get(f"{session}/render").json["value"] is None
    for query in ("start=-1", "start=1000000001", "limit=1001", "limit=many"):
        refused(client.get(f"{session}/task_ids?{query}"), 422, "RequestInvalid")
    assert client.get(f"{started(client)}/task_ids").json == {"total": None, "ids": []}


def test_pictures_come_as_png_or_as_raw_bytes(client):
    bodies = [
        client.post(f"{opened(client, VISUAL, pictures=kind)}/reset", json={"sequence": 1, "seed": 0}).data
        for kind in ("png", "raw")
    ]
    png = base64.b64decode(json.loads(bodies[0])["observation"]["$png"])
    assert png.startswith(b"\x89PNG")
    pictures = [loads(body)["observation"] for body in bodies]
    assert np.array_equal(*pictures)
    assert np.array_equal(pictures[0], istar_envs.make(VISUAL).reset(seed=0)[0])


def test_a_batch_answers_each_call_for_itself(client):
    one, two = started(client).rpartition("/")[2], opened(client).rpartition("/")[2]
    calls = [
        {"call": "step", "session": one, "sequence": 2, "action": 0},
        {"call": "reset", "session": two, "sequence": 1, "seed": 3},
        {"call": "step", "session": "nobody", "sequence": 1, "action": 0},
        {"call": "step", "session": two, "sequence": 7, "action": 0},
        {"call": "invalid_step", "session": one, "sequence": 3, "reason": "unclear"},
    ]
    first, reset, lost, early, invalid = client.post("/v1/batch", json={"calls": calls}).json["answers"]
    assert (first["sequence"], first["info"]["steps"]) == (2, 1)
    assert (reset["sequence"], "reward" in reset) == (1, False)
    assert lost["problem"]["error"] == "SessionLost"
    assert (early["problem"]["status"], early["problem"]["error"]) == (409, "OutOfOrder")
    assert invalid["info"]["invalid_reason"] == "unclear"


def test_a_batch_that_waits_holds_up_no_other_and_those_that_compute_take_turns(client):
    began, release, running = threading.Event(), threading.Event(), []

    def batch(path, action=0):
        call = {"call": "step", "session": path.rpartition("/")[2], "sequence": 2, "action": action}
        return create_app(client.service).test_client().post("/v1/batch", json={"calls": [call]})

    def stuck(action):
        began.set()
        assert release.wait(300)
        raise RuntimeError

    def counted(take):
        def step(action):
            running.append(1)
            time.sleep(0.05)
            assert len(running) == 1
            running.clear()
            return take(action)

        return step

    paths = [started(client, VISUAL), *(started(client, SOKOBAN) for _ in range(3))]
    waiting, *quick = client.service.sessions
    waiting.env.step = stuck
    for session in quick:
        session.env.step = counted(session.env.step)
    with ThreadPoolExecutor(4) as pool:
        slow, *others = [pool.submit(batch, path) for path in paths]
        began.wait()
        answers = [other.result().json["answers"][0] for other in others]
        assert not slow.done()
        release.set()
    assert [answer["info"]["steps"] for answer in answers] == [1, 1, 1]


@pytest.mark.parametrize(
    ("body", "status", "error", "hint"),
    [
        ("{", 400, "JsonBroken", "Invalid JSON"),
        ("", 400, "JsonBroken", "Invalid JSON"),
        ("[" * 100_000, 400, "JsonBroken", "recursion"),
        ("[]", 422, "RequestInvalid", "openapi.json"),
        ("{}", 422, "RequestInvalid", "sequence: Field required"),
        ('{"sequence": "1", "action": 0}', 422, "RequestInvalid", "valid integer"),
        ('{"sequence": 0, "action": 0}', 422, "RequestInvalid", "greater than"),
        ('{"sequence": 1}', 422, "RequestInvalid", "action: Field required"),
        ('{"sequence": 1, "action": 0, "extra": 1}', 422, "RequestInvalid", "extra"),
        ('{"sequence": 1e400, "action": 0}', 422, "RequestInvalid", "sequence"),
    ],
)
def test_what_is_no_request_is_refused(client, body, status, error, hint):
    answer = client.post(f"{opened(client)}/step", data=body, content_type="application/json")
    assert hint in refused(answer, status, error)


def test_other_types_paths_methods_and_sizes_are_refused(client):
    session = opened(client)
    body = {"sequence": 1, "action": 0}
    refused(client.post(f"{session}/step", data=json.dumps(body)), 415, "NotJson")
    refused(client.post(f"{session}/step", data=body), 415, "NotJson")
    refused(client.get("/v2/envs"), 404, "NotFound")
    answer = client.get("/v1/batch")
    refused(answer, 405, "MethodNotAllowed")
    assert "POST" in answer.headers["Allow"]
    small = make_client(max_body=100)
    refused(small.post("/v1/sessions", json={"env": "x" * 200}), 413, "RequestEntityTooLarge")
    many = {"calls": [{"call": "step", "session": "s", "sequence": 1, "action": 0}] * 1025}
    assert "1024" in refused(client.post("/v1/batch", json=many), 422, "RequestInvalid")


@pytest.mark.parametrize(
    ("env", "options", "hint"),
    [
        (SOKOBAN, {"levels": "levels.txt"}, "levels='levels.txt' is not served"),
        (SOKOBAN, {"tile_size": 10_000}, "Known: 4 to 64"),
        (SOKOBAN, {"coordinates": 1}, "Known: False, True"),
        (SOKOBAN, {"max_stesp": 3}, 'Did you mean "max_steps"?'),
        (SOTOPIA, {"partner": {"model": "m", "base_url": "http://somewhere"}}, "is not served"),
        (SOTOPIA, {"scenarios": "/"}, "is not served"),
        (SHOP, {"catalogue": "generated"}, "cannot be chosen"),
    ],
)
def test_clients_choose_only_what_is_harmless(env, options, hint):
    client = make_client(env)
    answer = client.post("/v1/sessions", json={"env": env, "options": options})
    assert hint in refused(answer, 422, "EnvError")
    assert not len(client.service.sessions)


def test_every_choice_is_an_option_with_a_value_that_works():
    assert set(CHOICES) == set(servable_ids())
    for env_id in (SOKOBAN, VISUAL, SOTOPIA, SHOP):
        for option, values in CHOICES[env_id].items():
            if option != "subset":  # of the published files, which clients cannot choose
                for value in values[:2]:
                    Worlds([env_id]).make(env_id, {option: value}).close()


def test_what_the_operator_sets_stays_set():
    client = make_client(SOKOBAN, options={SOKOBAN: {"split": "test", "max_steps": 3}})
    session = started(client)
    assert [step(client, session, n).json["truncated"] for n in (2, 3, 4)] == [False, False, True]
    body = {"env": SOKOBAN, "options": {"split": "train"}}
    assert "split" in refused(client.post("/v1/sessions", json=body), 422, "EnvError")
    assert opened(client, options={"split": "test"})
    with pytest.raises(UnknownEnv, match="Did you mean"):
        Worlds([SOKOBAN], {"istar/Sokoban": {}})
    with pytest.raises(UnknownEnv, match="can be served"):
        Worlds(["istar/Remote-v0"])


def test_sessions_are_bounded_and_idle_ones_make_room(monkeypatch):
    client = make_client(max_sessions=2, idle_s=60)
    old = opened(client)
    opened(client)
    answer = client.post("/v1/sessions", json={"env": SOKOBAN})
    refused(answer, 503, "SessionsFull")
    assert answer.headers["Retry-After"] == "1"
    now = time.monotonic()
    monkeypatch.setattr(sessions.time, "monotonic", lambda: now + 61)
    opened(client)
    refused(client.post(f"{old}/reset", json={"sequence": 1}), 404, "SessionLost")
    assert 'istar_sessions_total{event="expired"} 2' in client.get("/metrics").text
    assert not client.service.sessions._by_key


def test_sessions_that_are_costly_have_a_bound_of_their_own(monkeypatch):
    monkeypatch.setattr(sessions, "BROWSER", SOTOPIA)
    client = make_client(SOKOBAN, SOTOPIA, max_browsers=1)
    costly = opened(client, SOTOPIA)
    refused(client.post("/v1/sessions", json={"env": SOTOPIA}), 503, "SessionsFull")
    refused(client.post(f"{costly}/clone", json={}), 503, "SessionsFull")
    opened(client)
    client.delete(costly)
    opened(client, SOTOPIA)


def test_a_played_session_does_not_expire(monkeypatch):
    client = make_client(idle_s=60)
    session = started(client)
    now = time.monotonic()
    for minutes in range(1, 4):
        later = now + 50 * minutes
        monkeypatch.setattr(sessions.time, "monotonic", lambda later=later: later)
        assert client.service.sessions.sweep() == 0
        assert step(client, session, 1 + minutes).status_code == 200


def test_sweeping_happens_by_itself():
    client = make_client(idle_s=0.05)
    opened(client)
    deadline = time.monotonic() + 60
    while len(client.service.sessions) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not len(client.service.sessions)
    client.service.stop()


def test_many_threads_step_one_session_once_each(client):
    session = started(client, options={"max_steps": 500})
    answers = []

    def repeat() -> None:
        own = client.application.test_client()
        answers.extend(step(own, session, sequence).status_code for sequence in range(2, 42))

    threads = [threading.Thread(target=repeat) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) <= {200, 409}
    assert answers.count(200) >= 40
    assert step(client, session, 42).json["info"]["steps"] == 41


def test_a_session_that_stays_busy_says_so(client, monkeypatch):
    monkeypatch.setattr(sessions, "_BUSY_S", 0.01)
    session = started(client)
    (held,) = client.service.sessions
    with held.lock:
        refused(step(client, session, 2), 503, "SessionBusy")
    assert step(client, session, 2).status_code == 200


def test_an_environment_that_breaks_loses_its_session_and_tells_only_the_log(client, caplog):
    session = started(client)
    (held,) = client.service.sessions
    held.env.unwrapped._game.step = lambda action: 1 / 0
    assert "was closed" in refused(step(client, session, 2), 500, "EnvironmentFailed")
    assert "ZeroDivisionError" in caplog.text
    refused(step(client, session, 2), 404, "SessionLost")


def test_a_fault_of_the_server_tells_only_the_log(client, caplog):
    client.service.open_sessions = lambda: 1 / 0
    assert "log says more" in refused(client.get("/metrics"), 500, "ServerFailed")
    assert "ZeroDivisionError" in caplog.text


def test_a_token_is_asked_for_everywhere_but_at_the_probes():
    client = make_client(token="a-long-secret-token")
    for path in ("/v1/envs", "/metrics", "/", "/openapi.json", "/nowhere"):
        answer = client.get(path)
        refused(answer, 401, "TokenNeeded")
        assert "Bearer" in answer.headers["WWW-Authenticate"]
    for given in ("Bearer wrong", "Bearer", "a-long-secret-token", "Basic ###", "Digest a-long-secret-token"):
        refused(client.get("/v1/envs", headers={"Authorization": given}), 401, "TokenNeeded")
    basic = base64.b64encode(b"me:a-long-secret-token").decode()
    for given in ("Bearer a-long-secret-token", f"Basic {basic}"):
        assert client.get("/v1/envs", headers={"Authorization": given}).status_code == 200
    assert [client.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]


def test_web_pages_may_not_call(client):
    for header in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = client.post("/v1/sessions", json={"env": SOKOBAN}, headers=header)
        refused(answer, 403, "ForeignPage")
    assert client.get("/", headers={"Sec-Fetch-Site": "none"}).status_code == 200


def test_requests_are_limited_by_address(monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr("istar_envs.server.guard.time.monotonic", lambda: now)
    client = make_client(rate=2, burst_s=1)
    codes = [client.get("/v1/envs").status_code for _ in range(3)]
    assert codes == [200, 200, 429]
    other = client.get("/v1/envs", environ_overrides={"REMOTE_ADDR": "10.0.0.9"})
    assert other.status_code == 200
    assert "one batch" in refused(client.get("/v1/envs"), 429, "TooManyRequests")
    limit = RateLimit(10.0, 1.0)
    assert [limit.allows("a") for _ in range(11)].count(True) == 10
    monkeypatch.setattr("istar_envs.server.guard.time.monotonic", lambda: now + 0.35)
    assert [limit.allows("a") for _ in range(5)].count(True) == 3


def test_no_request_is_taken_before_the_start_and_after_the_end():
    service = Service(Worlds([SOKOBAN]), Limits())
    client = create_app(service).test_client()
    assert (client.get("/healthz").status_code, client.get("/readyz").status_code) == (200, 503)
    refused(client.get("/v1/envs"), 503, "NotReady")
    service.start()
    assert client.get("/readyz").json == {"status": "ok"}
    opened(client)
    service.stop()
    assert client.get("/readyz").status_code == 503
    refused(client.get("/v1/envs"), 503, "NotReady")
    assert not len(service.sessions)


def test_request_ids_are_taken_over_or_made(client):
    assert client.get("/v1/envs", headers={"X-Request-Id": "mine-1"}).headers["X-Request-Id"] == "mine-1"
    made = client.get("/v1/envs", headers={"X-Request-Id": "no\tgood"}).headers["X-Request-Id"]
    assert len(made) == 16


def test_logs_are_json_lines_without_session_ids(client, caplog):
    caplog.set_level(logging.DEBUG, "istar_envs.server")
    session = started(client)
    step(client, session, 9)
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    events = [line["event"] for line in lines]
    assert "session opened" in events
    (refusal,) = [line for line in lines if line["event"] == "refused"]
    assert (refusal["error"], refusal["status"]) == ("OutOfOrder", 409)
    answered = [line for line in lines if line["event"] == "answered"]
    assert refusal["request_id"] in [line["request_id"] for line in answered]
    assert all(line["time"].endswith("Z") and line["ms"] >= 0 for line in answered)
    assert session.rpartition("/")[2] not in json.dumps(lines)
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError as error:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "broke", (), (type(error), error, None))
    assert "ZeroDivisionError" in json.loads(JsonLines().format(record))["traceback"]
