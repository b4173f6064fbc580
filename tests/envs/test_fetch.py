"""Fetching data files: resumed, verified, kept, and every failure explained."""

import hashlib
import re
import socket
from pathlib import Path

import pytest
from file_server import file_server

from free_ports import refusing_address
from istar_envs import download
from istar_envs.errors import ConfigError, EnvError, MissingAsset
from istar_envs.fetch import DataFile, DataSet, data_sets, fault_of, fetch, find_data_set

CONTENT = bytes(range(256)) * 4096
"""One mebibyte: several blocks."""
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch):
    """A local file server that holds ``/a.json``; waiting takes no time."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download.time, "sleep", lambda _: None)
    with file_server() as plan:
        plan.files["/a.json"] = CONTENT
        yield plan


def data_set(*files: DataFile) -> DataSet:
    return DataSet(name="shop", size="small", about="a shop", licence="free", files=files)


def one_file(server, **changes) -> DataSet:
    entry = {"name": "a.json", "sha256": SHA256, "urls": (f"{server.address}/a.json",)}
    return data_set(DataFile(**{**entry, **changes}))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_arrives_whole_and_alone(server, tmp_path):
    seen = []
    brought = fetch(one_file(server), tmp_path / "new", progress=lambda *told: seen.append(told))
    assert brought == ("a.json",)
    assert (tmp_path / "new" / "a.json").read_bytes() == CONTENT
    assert names(tmp_path / "new") == {"a.json"}
    assert seen[-1] == ("a.json", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})


def test_a_right_file_is_kept_without_asking_the_server(server, tmp_path):
    (tmp_path / "a.json").write_bytes(CONTENT)
    assert fetch(one_file(server), tmp_path) == ()
    assert server.requests == []


def test_a_broken_connection_goes_on_where_it_stopped(server, tmp_path):
    server.cuts = [300_000, 400_000]
    fetch(one_file(server), tmp_path)
    assert [wanted for _, wanted in server.requests] == [None, "bytes=300000-", "bytes=700000-"]
    assert (tmp_path / "a.json").read_bytes() == CONTENT


def test_a_later_command_goes_on_with_the_part_of_an_earlier_one(server, tmp_path):
    server.cuts = [100_000] * 4
    with pytest.raises(MissingAsset, match=r"the connection broke after 400000 of 1048576 bytes"):
        fetch(one_file(server), tmp_path)
    assert names(tmp_path) == {"a.json.part"}
    server.requests.clear()
    fetch(one_file(server), tmp_path)
    assert server.requests == [("/a.json", "bytes=400000-")]
    assert names(tmp_path) == {"a.json"}
    assert (tmp_path / "a.json").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_the_file_anew(server, tmp_path):
    server.knows_ranges = False
    server.cuts = [300_000]
    fetch(one_file(server), tmp_path)
    assert (tmp_path / "a.json").read_bytes() == CONTENT


def test_a_part_that_is_too_long_is_thrown_away(server, tmp_path):
    (tmp_path / "a.json.part").write_bytes(CONTENT + b"more")
    fetch(one_file(server), tmp_path)
    assert (tmp_path / "a.json").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("published", "found"),
    [
        ({"sha256": "0" * 64}, f"sha256 is {SHA256}, expected {'0' * 64}"),
        ({"sha256": None, "git_blob": "01234567"}, r"git blob id is \w{8}, expected 01234567"),
    ],
    ids=["sha256", "git blob"],
)
def test_wrong_content_is_refused_with_both_sums_and_leaves_nothing(server, tmp_path, published, found):
    with pytest.raises(MissingAsset, match=found):
        fetch(one_file(server, **published), tmp_path)
    assert names(tmp_path) == set()


def test_a_git_blob_id_is_the_one_git_gives(tmp_path):
    (tmp_path / "a").write_bytes(b"hello\n")
    assert (
        fault_of(tmp_path / "a", DataFile(name="a", git_blob="ce013625030ba8dba906f756967f9e9ca394464a"))
        is None
    )
    assert fault_of(tmp_path / "a", DataFile(name="a", git_blob="ce013625")) is None
    assert fault_of(tmp_path / "a", DataFile(name="a", git_blob="ce013626")) == (
        "its git blob id is ce013625, expected ce013626"
    )


def test_the_next_address_is_tried_when_one_fails(server, tmp_path):
    server.files["/other"] = b"something else"
    urls = [f"{server.address}/{name}" for name in ("gone", "other", "a.json")]
    fetch(one_file(server, urls=urls), tmp_path)
    assert [path for path, _ in server.requests] == ["/gone", "/other", "/a.json"]
    assert (tmp_path / "a.json").read_bytes() == CONTENT


def test_a_file_that_is_not_there_is_asked_for_once(server, tmp_path):
    with pytest.raises(MissingAsset) as error:
        fetch(one_file(server, urls=(f"{server.address}/gone.json",)), tmp_path)
    text = str(error.value)
    assert f"{server.address}/gone.json does not give it (the server answers 404 Not Found)" in text
    assert "https_proxy" in text
    assert "--from" in text
    assert str(tmp_path) in text
    assert "\n" not in text
    assert len(server.requests) == 1


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.statuses = [503, 429, 500]
    fetch(one_file(server), tmp_path)
    assert len(server.requests) == 4


def test_a_server_that_stays_busy_is_given_up(server, tmp_path):
    server.statuses = [503] * 9
    with pytest.raises(MissingAsset, match="the server answers 503"):
        fetch(one_file(server), tmp_path)
    assert len(server.requests) == 4


def test_a_refused_connection_is_explained(server, tmp_path):
    with refusing_address() as nobody:
        address = f"{nobody}/a.json"
        with pytest.raises(MissingAsset, match=re.escape(f"{address} does not give it")) as error:
            fetch(one_file(server, urls=(address,)), tmp_path)
    assert "refused" in str(error.value)


def test_without_a_network_nothing_is_tried_twice(server, tmp_path, monkeypatch):
    asked = []

    def no_names(*_args, **_options):
        asked.append(1)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", no_names)
    with pytest.raises(MissingAsset, match="name resolution"):
        fetch(one_file(server, urls=("http://files.example/a.json",)), tmp_path)
    assert len(asked) == 1


@pytest.mark.parametrize("address", ["http://", "http://[::1", "http://127.0.0.1:x/a", "http://a b/c"])
def test_an_address_that_is_none_is_explained(server, tmp_path, address):
    with pytest.raises(MissingAsset, match="does not give it"):
        fetch(one_file(server), tmp_path, source=address)


def test_another_address_can_serve_the_files(server, tmp_path):
    server.files["/mirror/a.json"] = CONTENT
    fetch(one_file(server, urls=()), tmp_path, source=f"{server.address}/mirror/")
    assert server.requests == [("/mirror/a.json", None)]
    assert (tmp_path / "a.json").read_bytes() == CONTENT


def test_a_folder_can_hold_the_files(server, tmp_path):
    (tmp_path / "usb").mkdir()
    (tmp_path / "usb" / "a.json").write_bytes(CONTENT)
    fetch(one_file(server), tmp_path / "here", source=str(tmp_path / "usb"))
    assert (tmp_path / "here" / "a.json").read_bytes() == CONTENT
    assert server.requests == []


def test_what_the_folder_lacks_is_downloaded(server, tmp_path):
    (tmp_path / "usb").mkdir()
    fetch(one_file(server), tmp_path / "here", source=str(tmp_path / "usb"))
    assert server.requests == [("/a.json", None)]


def test_a_wrong_file_in_the_folder_is_refused(server, tmp_path):
    (tmp_path / "usb").mkdir()
    (tmp_path / "usb" / "a.json").write_bytes(b"old")
    with pytest.raises(MissingAsset, match=f"expected {SHA256}"):
        fetch(one_file(server), tmp_path / "here", source=str(tmp_path / "usb"))
    assert names(tmp_path / "here") == set()
    assert (tmp_path / "usb" / "a.json").read_bytes() == b"old"


def test_a_source_that_is_neither_folder_nor_address_is_refused(server, tmp_path):
    with pytest.raises(ConfigError, match="neither a folder nor an http"):
        fetch(one_file(server), tmp_path, source=str(tmp_path / "nowhere"))


def test_a_file_of_the_user_is_never_overwritten(server, tmp_path):
    (tmp_path / "a.json").write_bytes(b"mine")
    with pytest.raises(EnvError, match=f"is not the published file: its sha256 is .* expected {SHA256}"):
        fetch(one_file(server), tmp_path)
    assert (tmp_path / "a.json").read_bytes() == b"mine"


def test_files_that_only_a_person_can_download_are_listed_before_any_download(server, tmp_path):
    big = DataFile(name="big.json", page="https://drive.example/big")
    both = data_set(*one_file(server).files, big)
    with pytest.raises(MissingAsset) as error:
        fetch(both, tmp_path / "here")
    assert "Download in a browser: big.json from https://drive.example/big." in str(error.value)
    assert f"into {tmp_path / 'here'} " in str(error.value)
    assert server.requests == []
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "big.json").write_text("[]")
    assert fetch(both, tmp_path / "here") == ("a.json",)


def test_a_folder_that_cannot_be_made_is_named(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvError, match=r"cannot use .*file.*--to"):
        fetch(one_file(server), tmp_path / "file" / "deep")


def test_sets_are_found_by_name_and_size():
    assert find_data_set("webshop").size == "small"
    assert find_data_set("webshop", "full").size == "full"
    with pytest.raises(ConfigError, match='Did you mean "webshop"'):
        find_data_set("webshp")
    with pytest.raises(ConfigError, match='Did you mean "small"'):
        find_data_set("webshop", "smal")


def test_every_listed_file_can_be_had_and_checked_or_says_where_it_is():
    for file in (file for entry in data_sets() for file in entry.files):
        assert all(url.startswith("https://") and url.endswith(f"/{file.name}") for url in file.urls)
        assert bool(file.urls) != bool(file.page), file.name
        assert not file.urls or re.fullmatch("[0-9a-f]{64}", file.sha256 or "") or file.git_blob, file.name
