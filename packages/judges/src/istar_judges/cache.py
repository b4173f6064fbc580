"""Verdicts kept by what was asked: a second pass over the same episodes is free and needs no network.

Only answers that were read as a verdict are kept, never a failure. Several processes may share a file.
"""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self

from istar_envs.errors import ConfigError
from istar_judges.errors import CacheMiss, JudgeError

_VERSION: Final = 1
_WAIT_S: Final = 30.0
_TABLE: Final = """
CREATE TABLE verdicts (
    key TEXT PRIMARY KEY, reply TEXT NOT NULL, model TEXT NOT NULL, fingerprint TEXT, created REAL NOT NULL
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class CachedReply:
    """An answer that was read as a verdict.

    Attributes:
        text: The model's words.
        model: The model that answered.
        fingerprint: The endpoint's mark of its own version, or None.
    """

    text: str
    model: str
    fingerprint: str | None = None


def cache_key(asked: Mapping[str, Any]) -> str:
    """Return the content address of a question: a hash of everything that can change the answer.

    Args:
        asked: JSON-ready values; their order does not matter.
    """
    text = json.dumps(asked, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


class VerdictCache:
    """A SQLite file of verdicts; safe to share by threads and processes.

    Args:
        path: The file; made if absent, unless ``read_only``.
        read_only: Nothing is written, and what is not there is an error instead of a call.

    Raises:
        ConfigError: If the file cannot be opened or is not such a cache.
    """

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.read_only = read_only
        self._connect_here()

    def __enter__(self) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(VerdictCache, read_only=self.read_only), (self.path,)

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, key: str) -> CachedReply | None:
        """Return what was kept under a key, or None.

        Raises:
            CacheMiss: If nothing was kept and the cache is read-only.
            JudgeError: If the file cannot be read.
        """
        rows = self._execute("SELECT reply, model, fingerprint FROM verdicts WHERE key = ?", (key,))
        if rows:
            return CachedReply(*rows[0])
        if self.read_only:
            raise CacheMiss(
                f"no verdict {key[:16]}… in {self.path}, which is read-only. The episode, the model, "
                "the prompt, the rubric or the sampling differs from what was judged. Judge once with a "
                "writable cache."
            )
        return None

    def put(self, key: str, reply: CachedReply) -> None:
        """Keep an answer; the first one under a key stays.

        Raises:
            JudgeError: If the cache is read-only or the file cannot be written.
        """
        if self.read_only:
            raise JudgeError(f"verdict cache {self.path} is read-only.")
        self._execute(
            "INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?, ?)",
            (key, reply.text, reply.model, reply.fingerprint, time.time()),
        )

    def __len__(self) -> int:
        return int(self._execute("SELECT COUNT(*) FROM verdicts")[0][0])

    def close(self) -> None:
        """Close the file; twice is fine."""
        with self._lock:
            self._db.close()

    def _connect_here(self) -> None:
        """Open the file for this process; a connection must not be carried over a fork."""
        self._lock = threading.Lock()
        self._pid = os.getpid()
        try:
            self._db = self._open()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"verdict cache {self.path} cannot be opened: {error}. Give the path of a cache file"
                + (
                    " that exists."
                    if self.read_only
                    else ", or of a new one in a folder that can be written."
                )
            ) from error

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if self._pid != os.getpid():
            self._connect_here()
        try:
            with self._lock:
                return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise JudgeError(
                f"verdict cache {self.path}: {error}. Check the disk and that the file is whole, "
                "or judge with another file."
            ) from error

    def _open(self) -> sqlite3.Connection:
        if not self.read_only:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return _open_file(str(self.path), is_writable=True)
        address = self.path.absolute().as_uri()
        try:
            return _open_file(f"{address}?mode=ro")
        except sqlite3.OperationalError:  # SQLite's own side files can neither be found nor made
            return _open_file(f"{address}?immutable=1")


def _open_file(address: str, *, is_writable: bool = False) -> sqlite3.Connection:
    """Open a cache file, and make it if it is new.

    Raises:
        sqlite3.Error: If that fails, or the file is something else.
    """
    is_uri = address.startswith("file:")
    db = sqlite3.connect(address, uri=is_uri, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
    try:
        if is_writable:
            _make_table(db)
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != _VERSION:
            raise sqlite3.DatabaseError(f"it is no verdict cache of version {_VERSION}")
        if is_writable:
            _write_ahead(db)
            db.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        db.close()
        raise
    return db


def _make_table(db: sqlite3.Connection) -> None:
    """Fill an empty file; another process may be doing the same."""
    db.execute("BEGIN IMMEDIATE")
    if not db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall():
        db.execute(_TABLE)
        db.execute(f"PRAGMA user_version = {_VERSION}")
    db.execute("COMMIT")


def _write_ahead(db: sqlite3.Connection) -> None:
    """Let readers and a writer work at the same time; SQLite does not wait for others here by itself."""
    until = time.monotonic() + _WAIT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
