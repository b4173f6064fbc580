"""The cache of verdicts: what it keeps, who may share it, and what it says when it cannot."""

import multiprocessing
import os
import pickle
import sqlite3
import threading
from pathlib import Path

import pytest

from istar_envs.errors import ConfigError
from istar_judges.cache import CachedReply, VerdictCache, cache_key
from istar_judges.errors import CacheMiss, JudgeError

REPLY = CachedReply("text", "model", "fp")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some" / "verdicts.sqlite"


def test_what_was_kept_is_found_after_opening_again(path):
    with VerdictCache(path) as cache:
        cache.put("k", REPLY)
    with VerdictCache(path) as cache:
        assert (cache.get("k"), cache.get("other"), len(cache)) == (REPLY, None, 1)


def test_the_first_answer_under_a_key_stays(path):
    with VerdictCache(path) as cache:
        cache.put("k", REPLY)
        cache.put("k", CachedReply("later", "model"))
        assert cache.get("k") == REPLY


def test_a_key_does_not_depend_on_the_order_of_fields_and_does_on_every_value():
    assert cache_key({"a": 1, "b": [2]}) == cache_key({"b": [2], "a": 1})
    assert len({cache_key(asked) for asked in ({"a": 1}, {"a": "1"}, {"a": [1]}, {"b": 1})}) == 4


def test_a_read_only_cache_raises_a_miss_of_its_own_and_writes_nothing(path):
    VerdictCache(path).close()
    with VerdictCache(path, read_only=True) as cache:
        with pytest.raises(CacheMiss, match="Judge once with a writable cache"):
            cache.get("k")
        with pytest.raises(JudgeError, match="is read-only"):
            cache.put("k", REPLY)


def test_a_read_only_cache_sees_what_another_process_adds(path):
    with VerdictCache(path) as writer, VerdictCache(path, read_only=True) as reader:
        writer.put("k", REPLY)
        assert reader.get("k") == REPLY


def test_a_read_only_cache_opens_where_no_side_file_can_be_made(path, monkeypatch):
    with VerdictCache(path) as cache:
        cache.put("k", REPLY)
    connect = sqlite3.connect

    def on_read_only_disk(address: str, **options: object) -> sqlite3.Connection:
        if "mode=ro" in address:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(address, **options)

    monkeypatch.setattr(sqlite3, "connect", on_read_only_disk)
    with VerdictCache(path, read_only=True) as cache:
        assert cache.get("k") == REPLY


def _fill(path: Path, number: int) -> None:
    with VerdictCache(path) as cache:
        for key in range(100):
            if cache.get(str(key)) is None:
                cache.put(str(key), CachedReply(f"by {number}", "m"))


def test_processes_that_start_together_share_one_file(path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_fill, args=(path, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    with VerdictCache(path, read_only=True) as cache:
        assert len(cache) == 100


def test_a_new_file_may_be_opened_by_many_at_once(tmp_path):
    together = threading.Barrier(6)
    opened: list[VerdictCache] = []

    def work(path: Path) -> None:
        together.wait()
        opened.append(VerdictCache(path))

    for number in range(20):
        threads = [threading.Thread(target=work, args=(tmp_path / f"{number}.sqlite",)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(opened) == 6 * 20
    for cache in opened:
        cache.close()


def test_threads_share_one_cache(path):
    with VerdictCache(path) as cache:
        threads = [
            threading.Thread(target=lambda n=n: [cache.put(f"{n}/{k}", REPLY) for k in range(50)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(cache) == 200


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_opens_the_file_anew(path):
    with VerdictCache(path) as cache:
        cache.put("parent", REPLY)
        connection = cache._db
        pid = os.fork()
        if pid == 0:
            found = cache.get("parent") == REPLY
            cache.put("child", REPLY)
            os._exit(0 if found and cache._db is not connection else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert cache.get("child") == REPLY


def test_a_cache_can_be_pickled(path):
    with VerdictCache(path) as cache:
        cache.put("k", REPLY)
        with pickle.loads(pickle.dumps(cache)) as copy:
            assert copy.get("k") == REPLY
    with VerdictCache(path, read_only=True) as cache, pickle.loads(pickle.dumps(cache)) as copy:
        assert copy.read_only


def test_an_absent_file_cannot_be_read_only(path):
    with pytest.raises(ConfigError, match="Give the path of a cache file that exists"):
        VerdictCache(path, read_only=True)
    assert not path.exists()


def test_something_else_than_a_cache_is_refused_and_left_alone(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("hello " * 1000)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    before = [file.read_bytes() for file in (text, other)]
    for file in (text, other):
        with pytest.raises(ConfigError, match=file.name):
            VerdictCache(file)
    assert [file.read_bytes() for file in (text, other)] == before


def test_a_closed_cache_says_so(path):
    cache = VerdictCache(path)
    cache.close()
    cache.close()
    with pytest.raises(JudgeError, match="closed"):
        cache.get("k")
