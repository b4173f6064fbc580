"""The server as a process: its end, its death, its command line, and clients that misbehave."""

import argparse
import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from remote_server import PATIENCE_S, serving

import istar_envs
from free_ports import free_port
from istar_envs import cli
from istar_envs.errors import EnvError, ServerUnreachable, SessionLost
from istar_envs.server import command
from istar_envs.server.limits import Limits
from istar_envs.server.metrics import Metrics
from istar_envs.server.service import Service
from istar_envs.server.serving import Server, running_server
from istar_envs.server.worlds import Worlds

SOKOBAN = "istar/Sokoban-v0"
VISUAL = "istar/VisualSokoban-v0"


def remote(url, env=SOKOBAN, **options):
    return istar_envs.make("istar/Remote-v0", url=url, env=env, disable_env_checker=True, **options)


def try_step(env):
    with suppress(EnvError):
        env.step(0)


def exchange(url: str, request: bytes, *, timeout: float = 60.0) -> tuple[int, dict]:
    """Send raw bytes; returns status and problem document."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=timeout) as connection:
        connection.sendall(request)
        response = http.client.HTTPResponse(connection)
        response.begin()
        content = response.read()
    assert b"Traceback" not in content
    return response.status, json.loads(content)


@pytest.fixture
def quick():
    """A server that gives requests one second to arrive, and few connections."""
    limits = Limits(request_s=1, max_body=1000)
    with running_server(Service(Worlds([SOKOBAN]), limits)) as server:
        yield server


def test_a_stopped_server_has_acknowledged_every_step_it_made(tmp_path):
    counts, failures = [0] * 6, []
    with serving(tmp_path / "log", SOKOBAN) as server:

        def play(thread: int) -> None:
            env = remote(server.url, options={"max_steps": 1000}, patience_s=0.0)
            try:
                env.reset(seed=thread)
                for _ in range(900):
                    env.step(thread % 4)
                    counts[thread] += 1
            except ServerUnreachable:
                pass
            except Exception as error:
                failures.append(error)
            finally:
                env.close()

        threads = [threading.Thread(target=play, args=(i,)) for i in range(len(counts))]
        for thread in threads:
            thread.start()
        while min(counts) < 10:
            assert not failures
            assert server.process.poll() is None
            time.sleep(0.005)
        assert server.terminate() == 0
        for thread in threads:
            thread.join()
        (stopped,) = [event for event in server.events() if event["event"] == "stopped"]
    assert not failures
    assert stopped["steps"] == sum(counts)
    assert sum(counts) < 6 * 900


def test_after_a_kill_and_a_restart_clients_are_told_and_can_go_on(tmp_path):
    port = free_port()
    with serving(tmp_path / "first", SOKOBAN, "--port", port) as server:
        env = remote(server.url)
        env.reset(seed=0)
        server.kill()
    with serving(tmp_path / "second", SOKOBAN, "--port", port):
        with pytest.raises(SessionLost, match="the server was restarted"):
            env.step(0)
        assert env.reset(seed=0)[1]["steps"] == 0
        env.step(0)
    env.close()


def test_a_call_waits_for_a_server_that_is_being_restarted(tmp_path):
    port = free_port()
    with serving(tmp_path / "first", SOKOBAN, "--port", port) as server:
        env = remote(server.url, patience_s=PATIENCE_S)
        server.terminate()
    told = []

    def reset() -> None:
        try:
            env.reset(seed=0)
        except SessionLost as error:
            told.append(str(error))

    thread = threading.Thread(target=reset)
    thread.start()
    with serving(tmp_path / "second", SOKOBAN, "--port", port):
        thread.join()
        env.close()
    assert "restarted" in told[0]


def test_a_running_step_is_finished_and_answered_before_the_end():
    service = Service(Worlds([VISUAL]), Limits(grace_s=PATIENCE_S))
    with running_server(service) as server:
        env = remote(server.url, VISUAL)
        env.reset(seed=0)
        (session,) = service.sessions
        step, began, release = session.env.step, threading.Event(), threading.Event()

        def slow(action: int) -> object:
            began.set()
            release.wait(PATIENCE_S)
            return step(action)

        session.env.step = slow
        results = []
        thread = threading.Thread(target=lambda: results.append(env.step(0)))
        thread.start()
        began.wait()
        server.stop()
        with pytest.raises(ServerUnreachable, match="stopping"):
            remote(server.url, VISUAL, patience_s=0.0)
        release.set()
    thread.join()
    assert results[0][-1]["steps"] == 1
    with pytest.raises(ServerUnreachable):
        remote(server.url, VISUAL, patience_s=0.0)
    env.close()


def test_a_step_that_takes_longer_than_the_grace_does_not_hold_the_end_up():
    service = Service(Worlds([VISUAL]), Limits(grace_s=0.2))
    with running_server(service) as server:
        env = remote(server.url, VISUAL, patience_s=0.0)
        env.reset(seed=0)
        (session,) = service.sessions
        step, began, release, ended = session.env.step, *(threading.Event() for _ in range(3))

        def stuck(action: int) -> object:
            began.set()
            release.wait(60)
            ended.set()
            return step(action)

        session.env.step = stuck
        thread = threading.Thread(target=try_step, args=(env,))
        thread.start()
        began.wait()
    assert not ended.is_set()
    release.set()
    ended.wait()
    thread.join()
    env.close()


def test_steps_of_sokoban_are_answered_while_every_thread_is_busy():
    service = Service(Worlds([SOKOBAN, VISUAL]), Limits())
    release, began = threading.Event(), threading.Event()

    def stuck(action: int) -> None:
        began.set()
        release.wait(PATIENCE_S)

    with running_server(service, threads=1) as server:
        slow, quick = remote(server.url, VISUAL), remote(server.url)
        slow.reset(seed=0)
        (session,) = (session for session in service.sessions if session.name == VISUAL)
        quick.reset(seed=0)
        session.env.step = stuck
        thread = threading.Thread(target=try_step, args=(slow,))
        thread.start()
        began.wait()
        assert quick.step(0)[-1]["steps"] == 1
        assert quick.unwrapped.invalid_step("no action")[-1]["steps"] == 2
        assert thread.is_alive()
        release.set()
        thread.join()
        quick.close()
        slow.close()


def test_a_step_that_must_wait_for_its_session_holds_up_no_other():
    service = Service(Worlds([SOKOBAN]), Limits())
    with running_server(service, threads=2) as server:
        held = remote(server.url)
        held.reset(seed=0)
        (session,) = service.sessions
        free = remote(server.url)
        free.reset(seed=0)
        with session.lock:
            thread = threading.Thread(target=try_step, args=(held,))
            thread.start()
            time.sleep(0.2)
            assert free.step(0)[-1]["steps"] == 1
            assert session.sequence == 1
        thread.join()
        assert session.sequence == 2
        assert service.metrics.total("problems") == 0
        held.close()
        free.close()


def test_a_long_request_is_left_to_the_threads():
    service = Service(Worlds([SOKOBAN]), Limits())
    with running_server(service) as server:
        env = remote(server.url, options={"max_steps": 1000})
        env.reset(seed=0)
        (session,) = service.sessions
        step, threads = session.env.unwrapped.invalid_step, []

        def noted(reason: str) -> object:
            threads.append(threading.current_thread().name)
            return step(reason)

        session.env.unwrapped.invalid_step = noted
        # a request that arrives before a thread has left the connection's last one is that thread's
        while "istar-server" not in threads and len(threads) < 500:
            env.unwrapped.invalid_step("short")
        assert threads[-1] == "istar-server"
        env.unwrapped.invalid_step("long" * 1000)
        assert threads[-1].startswith("waitress")
        env.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /v1/envs HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400),
        (b"POST /v1/batch HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
        (b"POST /v1/batch HTTP/1.1\r\nTransfer-Encoding: odd\r\n\r\n", 501),
        (b"POST /v1/batch HTTP/1.1\r\nContent-Length: 5000000000\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 20_000 + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_http_is_answered_by_a_problem_document(quick, request_, status):
    got, document = exchange(quick.url, request_)
    assert got == document["status"] == status
    assert document["error"] == "RequestBroken"


def test_a_chunked_body_that_grows_too_large_is_refused(quick):
    head = b"POST /v1/batch HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert exchange(quick.url, head + b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n")[0] == 413


def test_slow_senders_are_cut_off_and_others_are_served(quick):
    host, _, port = quick.url.removeprefix("http://").partition(":")
    slow = [socket.create_connection((host, int(port)), timeout=5) for _ in range(20)]
    began = time.monotonic()
    for connection in slow:
        connection.sendall(b"POST /v1/batch HTTP/1.1\r\nContent-Le")
    env = remote(quick.url)
    env.reset(seed=0)
    env.close()
    pending = set(slow)
    while pending and time.monotonic() - began < Limits().request_s:  # the usual patience
        for connection in list(pending):
            with suppress(OSError):
                connection.sendall(b"n")
            connection.settimeout(0.01)
            with suppress(TimeoutError):
                try:
                    is_open = connection.recv(1) != b""
                except ConnectionError:
                    is_open = False
                if not is_open:
                    pending.discard(connection)
    for connection in slow:
        connection.close()
    assert not pending


def test_a_taken_port_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = Service(Worlds([SOKOBAN]), Limits())
        with pytest.raises(EnvError, match="Choose another port"):
            Server(service, port=taken.getsockname()[1])


def test_the_command_serves_with_token_options_and_logs(tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "options").write_text(json.dumps({SOKOBAN: {"max_steps": 3}}))
    words = (SOKOBAN, "--token-file", tmp_path / "token", "--options", tmp_path / "options", "--log-requests")
    with serving(tmp_path / "log", *words) as server:
        with pytest.raises(EnvError, match="the token is missing or wrong"):
            remote(server.url)
        env = remote(server.url, token="0123456789abcdef")
        env.reset(seed=0)
        assert [env.step(0)[3] for _ in range(3)] == [False, False, True]
        env.close()
        assert server.terminate() == 0
        events = [event["event"] for event in server.events()]
    assert {"session opened", "session closed", "refused", "answered", "stopped"} <= set(events)
    assert "0123456789abcdef" not in (tmp_path / "log").read_text()


def test_ctrl_c_ends_it_quietly(tmp_path):
    import signal

    with serving(tmp_path / "log", SOKOBAN) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=PATIENCE_S) == 0
        assert [event["event"] for event in server.events()] == ["stopped"]


def test_all_leaves_out_what_does_not_work_here(monkeypatch, caplog):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    usable = command._usable({})
    assert "istar/WebShopBrowser-v0" not in usable
    assert SOKOBAN in usable
    (record,) = caplog.records
    assert "chromium" in record.facts["detail"].lower()


def mistake(capsys, *words):
    assert cli.run(["serve", *map(str, words)]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["istar/Sokoban-v9"], 'Did you mean "istar/Sokoban-v0"'),
        (["istar/Remote-v0"], "can be served"),
        (["--all", "istar/Sokoban-v0"], "NAME is missing or one too many"),
        (["webshop", "istar/Sokoban-v0"], "serve it alone"),
        (["istar/Sokoban-v0", "--rate", "fast"], "--rate: fast is no number"),
        (["istar/Sokoban-v0", "--options", "nowhere"], "cannot read --options nowhere"),
        (["istar/Sokoban-v0", "--token-file", "nowhere"], "cannot read --token-file nowhere"),
    ],
)
def test_a_wrong_command_line_is_answered_by_one_line(capsys, words, hint):
    line = mistake(capsys, *words)
    assert line.startswith("istar-envs serve: ")
    assert hint in line


def test_every_option_and_metric_stands_in_the_operations_page():
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser()
    command.describe(parser)
    words = {word for action in parser._actions for word in action.option_strings} - {"-h", "--help"}
    words |= set(re.findall(r"# TYPE (\w+)", Metrics().exposition({})))
    words |= set(Limits.__dataclass_fields__) - {"burst_s", "connections"}
    missing = [word for word in words if word not in page and f"--{word}".replace("_", "-") not in page]
    assert not missing, missing
    for option, value in re.findall(r"^\| `--([a-z-]+)` \| (\d+) \|", page, re.MULTILINE):
        assert getattr(Limits(), option.replace("-", "_"), 8) == int(value)


def test_bad_files_are_told(capsys, tmp_path):
    file = tmp_path / "file"
    file.write_text("short")
    assert "openssl rand" in mistake(capsys, SOKOBAN, "--token-file", file)
    assert "It holds JSON" in mistake(capsys, SOKOBAN, "--options", file)
    file.write_text("[1]")
    assert "no options by id" in mistake(capsys, SOKOBAN, "--options", file)


def test_an_address_beyond_this_machine_without_a_token_is_warned_about(monkeypatch, caplog):

    def fail(service: Service) -> None:
        raise EnvError("far enough")

    monkeypatch.setattr(Service, "start", fail)
    monkeypatch.setattr("istar_envs.server.command._log_as_json", lambda **_: None)
    assert cli.run(["serve", SOKOBAN, "--host", "0.0.0.0", "--port", str(free_port())]) == 2
    assert "can be reached from other machines" in caplog.text


def test_the_server_needs_its_extra():
    code = "import sys; sys.modules['flask'] = None; import istar_envs.server.app"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install istar-envs[server]" in done.stderr
