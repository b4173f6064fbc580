"""Session logs: one JSON line per action, enough to play a visit again."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from istar_envs.errors import EnvError


class SessionLog:
    """Appends the actions of every visit to a file of its own; threads may write at the same time.

    Args:
        folder: Where the files go, made if missing; None writes nothing.

    Raises:
        EnvError: If the folder cannot be made.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EnvError(
                    f"cannot make the log folder {folder}: {error.strerror} (site, option log_folder). "
                    "Name a folder that you may write to."
                ) from error

    def write(self, visit: str, record: Mapping[str, Any]) -> None:
        """Append one line to the file of a visit.

        Args:
            visit: Name of the file; every character that could lead elsewhere is quoted.
            record: JSON-ready facts of the action.
        """
        if self._folder is None:
            return
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
        path = self._folder / f"{quote(visit, safe='')}.jsonl"
        with self._lock, path.open("ab", buffering=0) as file:
            file.write(line.encode("utf-8", "backslashreplace"))
