"""Folders that are complete or absent, with a checksum of every file, so that damage is noticed."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

SEAL: Final = "seal.json"


def seal(folder: Path, **facts: Any) -> None:
    """Bring a folder's files to the disk and note their checksums.

    Args:
        folder: Complete but for its seal.
        facts: Plain values to keep in the seal.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    digests = {path.relative_to(folder).as_posix(): _digest(path) for path in files}
    (folder / SEAL).write_text(json.dumps({**facts, "sha256": digests}), encoding="utf-8")
    for path in (*files, folder / SEAL, folder):
        sync(path)


def read_seal(folder: Path) -> dict[str, Any]:
    """Return what ``seal`` noted: the facts and the checksums."""
    found: dict[str, Any] = json.loads((folder / SEAL).read_text(encoding="utf-8"))
    return found


def damage(folder: Path) -> str | None:
    """Compare a folder's files with its seal.

    Returns:
        Which file is missing or is not what was sealed; None if all is well.
    """
    try:
        for name, digest in read_seal(folder)["sha256"].items():
            if _digest(folder / name) != digest:
                return f"{name} does not match its checksum"
    except OSError as error:
        return f"{Path(error.filename or SEAL).name} cannot be read ({error.strerror})"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return f"{SEAL} is not one ({error!r})"
    return None


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
