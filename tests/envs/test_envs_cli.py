"""The command line of the environments: every command, and every mistake answered by one line and code 2."""

import hashlib
import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from file_server import file_server

from child_process import running
from free_ports import free_port
from istar_envs import cli, command_line, download, fetch
from istar_envs.cli import _COMMANDS
from istar_envs.fetch import DataFile, DataSet
from istar_envs.registration import env_ids

PRODUCT = {
    "asin": "B000000001",
    "name": "Soft Ankle Socks",
    "full_description": "",
    "small_description": ["Machine washable"],
    "pricing": "$7.50",
    "images": [],
    "category": "fashion",
    "query": "ankle socks",
    "product_category": "Clothing › Socks",
    "customization_options": {"Color": [{"value": "Blue", "image": None}]},
}
MINED = {
    "B000000001": {
        "attributes": ["machine washable"],
        "instruction": "Find me machine washable socks",
        "instruction_attributes": ["machine washable"],
    }
}
CONTENTS = {
    "items_shuffle_1000.json": json.dumps([PRODUCT]).encode(),
    "items_ins_v2_1000.json": json.dumps(MINED).encode(),
}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    """An empty cache folder of this test's own."""
    monkeypatch.setenv("ISTAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(monkeypatch):
    """A local server with a catalogue of one product, listed as ``webshop --size small``."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download.time, "sleep", lambda _: None)
    with file_server() as plan:
        plan.files.update({f"/{name}": content for name, content in CONTENTS.items()})
        files = tuple(
            DataFile(name=name, sha256=hashlib.sha256(content).hexdigest(), urls=(f"{plan.address}/{name}",))
            for name, content in CONTENTS.items()
        )
        small = DataSet(name="webshop", size="small", about="a small shop", licence="free", files=files)
        full = fetch.find_data_set("webshop", "full")
        monkeypatch.setattr(fetch, "data_sets", lambda: (small, full))
        yield plan


@pytest.fixture
def served(monkeypatch) -> list:
    """What would have been served: (application, options)."""
    calls = []
    monkeypatch.setattr(
        "istar_envs.webshop.site.app.serve", lambda app, **options: calls.append((app, options))
    )
    return calls


def run(*argv: object) -> int:
    """Exit code of a command line; the option parser leaves by SystemExit after --help."""
    try:
        return cli.run([str(word) for word in argv])
    except SystemExit as error:
        return int(error.code or 0)


def mistake(capsys, *argv: object) -> str:
    """The one line on standard error with which a wrong command line ends."""
    assert run(*argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    line, end = shown.err[:-1], shown.err[-1:]
    assert end == "\n"
    assert "\n" not in line, line
    return line


def folder_of(tmp_path: Path) -> Path:
    """A folder with the official files of one product."""
    folder = tmp_path / "official"
    folder.mkdir()
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    return folder


def test_without_a_command_the_usage_is_shown(capsys):
    assert run() == 2
    assert "usage: istar-envs COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_command(capsys, flag):
    assert run(flag) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in _COMMANDS)


@pytest.mark.parametrize("command", sorted(_COMMANDS))
def test_every_command_has_help_for_every_option(capsys, command):
    assert run(command, "--help") == 0
    shown = capsys.readouterr()
    assert f"usage: istar-envs {command}" in shown.out
    assert shown.err == ""


def test_an_unknown_command_is_answered_with_the_nearest(capsys):
    line = mistake(capsys, "fecth", "webshop")
    assert line == "istar-envs: unknown command 'fecth'. Did you mean \"fetch\"?"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["fetch"], "NAME"),
        (["fetch", "webshop", "--sizes", "small"], "--sizes"),
        (["fetch", "webshpo"], 'Did you mean "webshop"?'),
        (["fetch", "webshop", "--size", "smal"], 'Did you mean "small"?'),
        (["fetch", "webshop", "--from", "nowhere"], "neither a folder nor an http"),
        (["index"], "CATALOGUE"),
        (["index", "generatd"], 'Did you mean "generated"?'),
        (["index", "generated", "--engine", "lucen"], "pyserini"),
        (["serve"], "NAME"),
        (["serve", "webshop", "--port", "http"], "--port: http is no number from 1 to 65535"),
        (["serve", "webshop", "--port", "65536"], "--port: 65536 is no number from 1 to 65535"),
        (["serve", "webshop", "--threads", "0"], "--threads: 0 is no number"),
        (["serve", "webshop", "--secret-file", "nowhere"], "cannot read --secret-file nowhere"),
        (["list", "everything"], "everything"),
    ],
)
def test_a_wrong_command_line_is_answered_by_one_line(capsys, served, words, hint):
    line = mistake(capsys, *words)
    assert line.startswith(f"istar-envs {words[0]}: ")
    assert hint in line


def test_fetched_files_are_checked_read_and_placed_in_the_cache(capsys, cache, server):
    assert run("fetch", "webshop") == 0
    folder = cache / "fetched" / "webshop-small"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENTS
    shown = capsys.readouterr()
    assert "2 of 2 files fetched" in shown.out
    assert f'1 products can be read; play them with catalogue="{folder}"' in shown.out
    assert "licence: free" in shown.out
    assert shown.err == ""


def test_fetching_again_fetches_nothing(capsys, cache, server):
    assert run("fetch", "webshop") == 0
    server.requests.clear()
    assert run("fetch", "webshop", "--size", "small") == 0
    assert "0 of 2 files fetched" in capsys.readouterr().out
    assert server.requests == []


def test_the_folder_can_be_chosen(tmp_path, server):
    assert run("fetch", "webshop", "--to", tmp_path / "here") == 0
    assert {path.name for path in (tmp_path / "here").iterdir()} == set(CONTENTS)


def test_progress_is_shown_on_a_terminal_in_one_line(capsys, monkeypatch, server):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert run("fetch", "webshop") == 0
    shown = capsys.readouterr().err
    assert "\ritems_shuffle_1000.json: 0.0 of 0.0 MB" in shown
    assert shown.count("\n") == 1
    assert shown.endswith("\n")


def test_a_server_that_does_not_answer_is_explained_in_one_line(capsys, server):
    server.files.clear()
    line = mistake(capsys, "fetch", "webshop")
    assert f"{server.address}/items_shuffle_1000.json does not give it (the server answers 404" in line
    assert "--from" in line


def test_the_full_catalogue_is_to_be_downloaded_by_hand(capsys, cache):
    line = mistake(capsys, "fetch", "webshop", "--size", "full")
    assert "items_shuffle.json from https://drive.google.com/" in line
    assert "items_ins_v2.json from https://drive.google.com/" in line
    assert f"into {cache / 'fetched' / 'webshop-full'} " in line


def test_a_file_fetched_by_hand_that_is_no_catalogue_is_refused(capsys, tmp_path, monkeypatch):
    page = DataFile(name="items_shuffle.json", page="https://drive.example/1")
    mined = DataFile(name="items_ins_v2.json", page="https://drive.example/2")
    full = DataSet(name="webshop", size="full", about="all", licence="free", files=(page, mined))
    monkeypatch.setattr(fetch, "data_sets", lambda: (full,))
    (tmp_path / "usb").mkdir()
    (tmp_path / "usb" / "items_shuffle.json").write_text("<html>too many downloads</html>")
    (tmp_path / "usb" / "items_ins_v2.json").write_text("{}")
    words = ("fetch", "webshop", "--from", tmp_path / "usb", "--to", tmp_path / "here")
    assert run(*words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"istar-envs fetch: {tmp_path / 'here' / 'items_shuffle.json'}")
    assert "Traceback" not in shown.err


def test_a_store_is_built_from_official_files(capsys, tmp_path, cache):
    assert run("index", folder_of(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"items_shuffle_1000: 1 products in {cache / 'webshop'}")
    assert 'search="bm25"' in shown


def test_a_store_can_be_copied_to_a_folder_and_indexed_there_again(capsys, tmp_path):
    assert run("index", folder_of(tmp_path), "--out", tmp_path / "store") == 0
    assert f"1 products in {tmp_path / 'store'};" in capsys.readouterr().out
    assert run("index", tmp_path / "store") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"official", "store", "cache"}


def test_lucene_indexes_the_store_in_place(monkeypatch, capsys, tmp_path):
    calls = []
    monkeypatch.setattr("istar_envs.webshop.lucene.build_lucene_index", lambda *given: calls.append(given))
    words = ("index", folder_of(tmp_path), "--engine", "pyserini", "--out", tmp_path / "store")
    assert run(*words) == 0
    [(catalog, folder)] = calls
    assert (len(catalog), folder) == (1, tmp_path / "store" / "lucene")
    assert 'search="pyserini" can be used' in capsys.readouterr().out


def test_a_store_that_cannot_take_an_index_is_named(monkeypatch, capsys, tmp_path):
    def refused(*_given):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("istar_envs.webshop.lucene.build_lucene_index", refused)
    line = mistake(capsys, "index", folder_of(tmp_path), "--engine", "pyserini")
    assert "Permission denied. Name a folder of your own with --out" in line


def test_a_store_is_never_copied_over_other_files(capsys, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    line = mistake(capsys, "index", folder_of(tmp_path), "--out", tmp_path / "mine")
    assert "is not empty. Choose another --out" in line
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_every_environment_is_listed_with_a_sentence(capsys):
    assert run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(env_ids())
    assert all(len(line.split()) > 4 for line in lines)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.7", False),
        ("shop.example", False),
    ],
)
def test_addresses_of_this_machine_alone_are_known(host, is_loopback):
    assert command_line.is_loopback(host) is is_loopback


def test_a_short_secret_is_refused(capsys, tmp_path, served):
    (tmp_path / "key").write_bytes(b"short\n")
    line = mistake(capsys, "serve", "webshop", "--secret-file", tmp_path / "key")
    assert "holds 5 bytes" in line


def test_the_shop_is_served_to_this_machine_only(capsys, tmp_path, served):
    assert run("serve", "webshop", "--catalogue", folder_of(tmp_path)) == 0
    [(app, options)] = served
    assert options == {"host": "127.0.0.1", "port": 3000, "threads": 8}
    assert app.test_client().get("/healthz").json == {"status": "ok", "products": 1, "goals": 1}
    shown = capsys.readouterr()
    assert shown.out == "items_shuffle_1000 shop at http://127.0.0.1:3000/; Ctrl-C ends it\n"
    assert shown.err == ""


def test_serving_others_is_warned_of(capsys, tmp_path, served):
    words = ("--catalogue", folder_of(tmp_path), "--host", "0.0.0.0", "--port", 8080, "--threads", 2)
    assert run("serve", "webshop", *words) == 0
    assert served[0][1] == {"host": "0.0.0.0", "port": 8080, "threads": 2}
    assert "0.0.0.0 can be reached from other machines" in capsys.readouterr().err


def test_the_secret_and_the_logs_are_where_they_were_asked_for(tmp_path, served):
    (tmp_path / "key").write_bytes(b"0123456789abcdef\n")
    words = ("--secret-file", tmp_path / "key", "--log", tmp_path / "logs")
    assert run("serve", "webshop", "--catalogue", folder_of(tmp_path), *words) == 0
    app = served[0][0]
    assert app.config["SECRET_KEY"] == b"0123456789abcdef"
    client = app.test_client()
    client.get("/")
    client.get("/search?q=socks")
    [log] = (tmp_path / "logs").iterdir()
    assert json.loads(log.read_text())["action"] == "search[socks]"


def test_two_servers_never_draw_the_same_secret(tmp_path, served):
    folder = folder_of(tmp_path)
    assert run("serve", "webshop", "--catalogue", folder) == 0
    assert run("serve", "webshop", "--catalogue", folder) == 0
    keys = {app.config["SECRET_KEY"] for app, _ in served}
    assert len(keys) == 2
    assert {len(key) for key in keys} == {32}


def test_ctrl_c_ends_a_running_site_quietly(tmp_path):
    port = free_port()
    start = "from istar_envs.cli import main; main()"
    words = ("serve", "webshop", "--catalogue", folder_of(tmp_path), "--port", port)
    with running(start, *words) as site:
        assert f"http://127.0.0.1:{port}/" in site.stdout.readline()
        while site.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        site.send_signal(signal.SIGINT)
        _, shown = site.communicate(timeout=300)
    assert site.returncode in (0, 130)
    assert "Traceback" not in shown


def test_an_empty_split_is_explained(capsys, tmp_path, served):
    line = mistake(capsys, "serve", "webshop", "--catalogue", folder_of(tmp_path), "--split", "train")
    assert 'split "train" of scheme "webshop-original" is empty' in line


def test_an_interrupt_ends_quietly(capsys, monkeypatch):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "find_data_set", interrupted)
    assert run("fetch", "webshop") == 130
    assert capsys.readouterr().err == "\n"


def test_the_program_ends_with_the_code_of_its_command():
    done = subprocess.run(
        [sys.executable, "-c", "from istar_envs.cli import main; main()", "fecth"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
