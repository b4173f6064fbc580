"""Published data files: which there are, how they come here, how they are checked.

``data_sources.toml`` lists them; another world adds its files there. A file is put in place only when
its checksum is right, and an interrupted download goes on where it stopped. What the files mean is the
business of their environment.
"""

import hashlib
import os
import shutil
import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from istar_envs.download import NoAnswer, download
from istar_envs.errors import ConfigError, EnvError, MissingAsset, suggest

Progress = Callable[[str, int, int | None], None]
"""Called with the name of a file, the bytes that are here, and all its bytes if the server tells."""

_BLOCK = 1 << 18


class DataFile(BaseModel):
    """One published file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Path below the folder of its set."""
    sha256: str | None = None
    """Checksum, hexadecimal."""
    git_blob: str | None = None
    """First digits of git's id of the content, where that is all that is known."""
    urls: tuple[str, ...] = ()
    """Addresses, tried in order; none if no program can download it."""
    page: str | None = None
    """Where a person downloads it by hand."""


class DataSet(BaseModel):
    """Files that belong together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size: str
    """Which of the sets of that name: ``small``, ``full``."""
    about: str
    licence: str
    files: tuple[DataFile, ...]

    def __str__(self) -> str:
        """Return the words that name it on the command line."""
        return f"{self.name} --size {self.size}"


@cache
def data_sets() -> tuple[DataSet, ...]:
    """Return every set that can be fetched, in the order of the list."""
    text = resources.files(__package__).joinpath("data_sources.toml").read_text(encoding="utf-8")
    return tuple(DataSet.model_validate(entry) for entry in tomllib.loads(text)["sets"])


def find_data_set(name: str, size: str | None = None) -> DataSet:
    """Look a set up.

    Args:
        name: Such as ``webshop``.
        size: One of its sizes; the first listed if None.

    Raises:
        ConfigError: If there is no such set.
    """
    sizes = {entry.size: entry for entry in data_sets() if entry.name == name}
    if not sizes:
        raise ConfigError(f"no data named {name!r}.{suggest(name, {entry.name for entry in data_sets()})}")
    if size is None:
        return next(iter(sizes.values()))
    if size not in sizes:
        raise ConfigError(f"no size {size!r} of {name}.{suggest(size, sizes)}")
    return sizes[size]


def fault_of(path: Path, file: DataFile) -> str | None:
    """Compare a file with its published checksum.

    Returns:
        What is wrong, with both sums; None if they agree or no sum was published.
    """
    if file.sha256 is not None:
        kind, expected, hasher = "sha256", file.sha256, hashlib.sha256()
    elif file.git_blob is not None:
        header = b"blob %d\0" % path.stat().st_size
        kind, expected, hasher = "git blob id", file.git_blob, hashlib.sha1(header, usedforsecurity=False)
    else:
        return None
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            hasher.update(block)
    found = hasher.hexdigest()[: len(expected)]
    return None if found == expected else f"its {kind} is {found}, expected {expected}"


def fetch(
    data_set: DataSet, folder: Path, *, source: str | None = None, progress: Progress = lambda *_: None
) -> tuple[str, ...]:
    """Bring the files of a set into a folder; right ones that are there already are kept.

    Args:
        data_set: What to bring.
        folder: Where to; made if missing.
        source: Address (http, https) below which the files are, or a folder that holds some of them.
        progress: Told about every block that arrives.

    Returns:
        Names of the files that were brought.

    Raises:
        ConfigError: If the source is neither an address nor a folder.
        MissingAsset: If a file cannot be had; the message says what to do.
        EnvError: If a file has the wrong content, or the folder cannot be written.
    """
    _check_source(source)
    try:
        missing = [file for file in data_set.files if not _is_here(folder / file.name, file)]
        _refuse_manual_ones(data_set, missing, folder, source)
        for file in missing:
            target = folder / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(target.name + ".part")
            _bring(file, part, source, progress)
            os.replace(part, target)
    except OSError as error:
        raise EnvError(
            f"cannot use {error.filename or folder}: {error.strerror or error} (fetch {data_set}). "
            f"Free space there or choose another folder with --to."
        ) from error
    return tuple(file.name for file in missing)


def _check_source(source: str | None) -> None:
    if source is not None and not _is_address(source) and not Path(source).is_dir():
        raise ConfigError(f"--from {source} is neither a folder nor an http(s) address. Check its spelling.")


def _is_address(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _is_here(path: Path, file: DataFile) -> bool:
    if not path.exists():
        return False
    fault = fault_of(path, file)
    if fault is not None:
        raise EnvError(
            f"{path} is not the published file: {fault}. Move it away and fetch again, or choose another "
            f"folder with --to."
        )
    return True


def _origins(file: DataFile, source: str | None) -> list[Path | str]:
    """Say where a file may come from, local file or addresses, in the order to try."""
    if source is not None and _is_address(source):
        return [f"{source.rstrip('/')}/{file.name}"]
    if source is not None and (Path(source) / file.name).is_file():
        return [Path(source) / file.name]
    return list(file.urls)


def _refuse_manual_ones(
    data_set: DataSet, missing: Sequence[DataFile], folder: Path, source: str | None
) -> None:
    """Explain which files a person has to download, before anything is downloaded."""
    manual = [file for file in missing if not _origins(file, source)]
    if manual:
        pages = ", ".join(f"{file.name} from {file.page}" for file in manual)
        raise MissingAsset(
            f"no program can download all of {data_set}. Download in a browser: {pages}. Put the files, "
            f"with these names, into {folder} and run the command again, or name the folder that holds "
            f"them with --from FOLDER."
        )


def _bring(file: DataFile, part: Path, source: str | None, progress: Progress) -> None:
    """Make ``part`` the right content of a file, or raise with all that was tried."""
    reasons = []
    for origin in _origins(file, source):
        reason = _take(file, origin, part, progress)
        if reason is None:
            return
        reasons.append(f"{origin} {reason}")
    raise MissingAsset(
        f"cannot fetch {file.name}: {'; '.join(reasons)}. Check the network and the proxy (https_proxy), "
        f"name a folder or an address that has the file with --from, or put it into {part.parent} by hand."
    )


def _take(file: DataFile, origin: Path | str, part: Path, progress: Progress) -> str | None:
    """Try one origin; say why it failed, if it did."""
    if isinstance(origin, Path):
        shutil.copyfile(origin, part)
    else:
        try:
            download(origin, part, lambda done, total: progress(file.name, done, total))
        except NoAnswer as error:
            return f"does not give it ({error})"
    fault = fault_of(part, file)
    if fault is None:
        return None
    part.unlink()
    return f"has other content ({fault}; {part.name} is removed)"
