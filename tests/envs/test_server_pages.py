"""What operators and programs read of a server: metrics, the status page, the OpenAPI document."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from remote_server import serving

from istar_envs.server.app import create_app
from istar_envs.server.limits import Limits
from istar_envs.server.metrics import BUCKETS, Metrics
from istar_envs.server.service import Service
from istar_envs.server.worlds import Worlds

SOKOBAN = "istar/Sokoban-v0"
SAMPLE = re.compile(r'[a-z_]+(\{[a-z]+="[^"\n]*"(,[a-z]+="[^"\n]*")*\})? [0-9.e+-]+')
DOCUMENTED = ("get", "post", "delete")


@pytest.fixture(scope="module")
def client():
    service = Service(Worlds([SOKOBAN, "istar/Sotopia-v0"]), Limits(rate=0))
    service.start()
    yield create_app(service).test_client()
    service.stop()


def test_steps_fall_into_buckets_that_add_up():
    metrics = Metrics()
    for seconds in (0.0001, 0.0002, 0.003, 99.0):
        metrics.step("a", seconds)
    lines = metrics.exposition({"a": 2}).splitlines()
    assert 'istar_open_sessions{env="a"} 2' in lines
    assert 'istar_steps_total{env="a"} 4' in lines
    buckets = [int(line.split()[-1]) for line in lines if line.startswith("istar_step_seconds_bucket")]
    assert buckets == [1, 2, 2, 2, 2, *[3] * (len(BUCKETS) - 5), 4]
    assert 'istar_step_seconds_count{env="a"} 4' in lines
    assert 'istar_step_seconds_sum{env="a"} 99.0033' in lines


def test_metrics_follow_the_text_format(client):
    client.get("/nowhere")
    text = client.get("/metrics").text
    assert text.endswith("\n")
    for line in text.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or SAMPLE.fullmatch(line), line
    assert 'istar_problems_total{error="NotFound"}' in text
    metrics = Metrics()
    metrics.request('a"\\\n', 200)
    assert r'route="a\"\\\n"' in metrics.exposition({})


def test_rates_and_quantiles_are_those_of_the_latest_steps(monkeypatch):
    metrics, now = Metrics(), [100.0]
    monkeypatch.setattr("istar_envs.server.metrics.time.monotonic", lambda: now[0])
    assert metrics.step_quantile(0.5) is None
    for second in range(5):
        now[0] = 100.0 + second
        for _ in range(10):
            metrics.step("a", 0.001 * (second + 1))
    assert metrics.step_rate(2) == 10.0
    assert metrics.step_rate(10) == 4.0
    assert (metrics.step_quantile(0.5), metrics.step_quantile(1.0)) == (0.003, 0.005)
    now[0] = 300.0
    assert metrics.step_rate(60) == 0.0


def test_the_status_page_shows_sessions_rates_and_problems_and_escapes_them(client):
    session = client.post("/v1/sessions", json={"env": SOKOBAN}).json["session"]
    client.get("/<script>alert(1)</script>")
    answer = client.get("/")
    page = answer.text
    assert answer.mimetype == "text/html"
    assert f'<td>{SOKOBAN}</td><td class="number">1</td>' in page
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert session not in page
    assert "sha256-" in answer.headers["Content-Security-Policy"]
    client.delete(f"/v1/sessions/{session}")


def test_the_openapi_document_lists_every_route_with_its_models(client):
    document = client.get("/openapi.json").json
    rules = {
        (re.sub(r"<(?:path:)?(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in client.application.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
        if rule.rule not in ("/", "/metrics", "/openapi.json")
    }
    assert rules == {
        (path, method) for path, operations in document["paths"].items() for method in operations
    }
    names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert names <= set(document["components"]["schemas"])
    assert document["components"]["schemas"]["Step"]["additionalProperties"] is False
    service = Service(Worlds([SOKOBAN]), Limits(), "a-long-secret-token")
    service.start()
    bearer = {"Authorization": "Bearer a-long-secret-token"}
    guarded = create_app(service).test_client().get("/openapi.json", headers=bearer).json
    assert guarded["security"] == [{"token": []}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.sampled_from(
    ["sequence", "action", "env", "options", "seed", "calls", "reason", "key", "pictures"]
)
BODIES = (
    JSON.map(json.dumps) | st.dictionaries(WORDS, JSON, max_size=4).map(json.dumps) | st.text(max_size=30)
)


@pytest.mark.property
@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_request_gets_a_documented_answer(client, data):
    document = client.get("/openapi.json").json
    path = data.draw(st.sampled_from(sorted(document["paths"])))
    method = data.draw(st.sampled_from(sorted(document["paths"][path])))
    session = client.post("/v1/sessions", json={"env": SOKOBAN}).json["session"]
    names = st.sampled_from([session, "nobody", "\u00e9"])
    address = path.format(session=data.draw(names), env=data.draw(st.sampled_from([SOKOBAN, "x"])))
    kind = data.draw(st.sampled_from(["application/json"] * 4 + ["text/plain"]))
    answer = client.open(address, method=method.upper(), data=data.draw(BODIES), content_type=kind)
    assert str(answer.status_code) in document["paths"][path][method]["responses"], answer.text
    assert answer.status_code < 500, answer.text
    assert answer.status_code < 400 or answer.mimetype == "application/problem+json"
    client.delete(f"/v1/sessions/{session}")


_SCHEMATHESIS = (
    f"{sys.executable} -m schemathesis.cli run --seed 1 --max-examples 50 --no-color --continue-on-failure "
    "--exclude-checks positive_data_acceptance"  # environments refuse more than a schema can say
)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed")
def test_schemathesis_finds_no_fault(tmp_path):
    with serving(tmp_path / "log", SOKOBAN, "istar/Sotopia-v0", "--rate", "1000000") as server:
        done = subprocess.run(
            [*_SCHEMATHESIS.split(), f"{server.url}/openapi.json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
        assert not [event for event in server.events() if event["level"] == "error"]
