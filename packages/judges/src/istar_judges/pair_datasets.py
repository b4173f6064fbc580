"""Preference pairs as Parquet and as Hugging Face data sets (extras ``parquet`` and ``datasets``).

An example has exactly the columns ``prompt``, ``chosen`` and ``rejected``, each a list of messages: what
DPO and reward trainers read without a word about it. JSON lines are in ``pair_files.py``.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from istar_envs.errors import ConfigError, MissingAsset
from istar_judges.pair_files import PreferenceExample
from istar_judges.pairs import PreferencePair

_CARD: Final = """\
---
configs:
- config_name: default
  data_files:
  - split: {split}
    path: data/{split}-*.parquet
---

Preference pairs written by `istar-judge pairs`: `prompt`, `chosen` and `rejected` are lists of messages with
`role` and `content`.
"""


def write_parquet(
    path: Path, records: Sequence[PreferenceExample] | Sequence[PreferencePair], *, overwrite: bool = False
) -> None:
    """Write examples, or pairs, as a Parquet file whose columns are their fields.

    Raises:
        ConfigError: If the file exists and may not be replaced, or cannot be written.
        MissingAsset: If pyarrow is not installed.
    """
    if path.exists() and not overwrite:
        raise ConfigError(
            f"output exists already: {path}. Choose another path, or allow it with --overwrite."
        )
    arrow, parquet = _pyarrow()
    schema = _pair_schema(arrow) if records and isinstance(records[0], PreferencePair) else _schema(arrow)
    table = arrow.Table.from_pylist([_row(record) for record in records], schema=schema)
    _write_whole(path, lambda partial: parquet.write_table(table, partial, compression="zstd"))


def write_dataset(
    folder: Path, examples: Sequence[PreferenceExample], *, split: str = "train", overwrite: bool = False
) -> None:
    """Write examples as a folder that ``datasets.load_dataset(folder)`` reads, and that can be uploaded.

    Args:
        folder: Made if absent.
        examples: What is written.
        split: Name of the split.
        overwrite: Whether an existing split may be replaced.

    Raises:
        ConfigError: If the split exists and may not be replaced, or cannot be written.
        MissingAsset: If pyarrow is not installed.
    """
    data = folder / "data" / f"{split}-00000-of-00001.parquet"
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot write {folder} ({error.strerror}). Choose a folder that is writable."
        ) from error
    write_parquet(data, examples, overwrite=overwrite)
    _write_whole(folder / "README.md", lambda partial: partial.write_text(_CARD.format(split=split)))


def to_dataset(examples: Iterable[PreferenceExample]) -> Any:
    """Return examples as a ``datasets.Dataset`` in memory.

    Raises:
        MissingAsset: If datasets is not installed.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingAsset(
            'a data set in memory needs datasets. Install "istar-judges[datasets]".'
        ) from error
    return Dataset.from_list([_row(example) for example in examples])


def _row(record: PreferenceExample | PreferencePair) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(record).items()
    }


def _schema(arrow: Any) -> Any:
    messages = arrow.list_(arrow.struct([("role", arrow.string()), ("content", arrow.string())]))
    return arrow.schema([(name, messages) for name in ("prompt", "chosen", "rejected")])


def _pair_schema(arrow: Any) -> Any:
    texts = [(name, arrow.string()) for name in ("group_id", "preferred", "rejected")]
    return arrow.schema([*texts, ("weight", arrow.float64()), ("target", arrow.float64())])


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingAsset('Parquet files need pyarrow. Install "istar-judges[parquet]".') from error
    return pyarrow, pyarrow.parquet


def _write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let a file appear only once it is complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(partial)
        partial.replace(path)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"cannot write {path} ({reason}). Choose a path in a folder that exists and is writable."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
