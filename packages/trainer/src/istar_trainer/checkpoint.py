"""Checkpoints: complete or absent, never half.

A checkpoint is written beside its place and renamed into it, with a checksum of every file. All
randomness derives from the run's seed and the iteration, so weights, optimizer states, the credit's
memory and the iteration are everything.
"""

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch

from istar_trainer.errors import CheckpointMismatch, TrainingError

_PREFIX = "iteration-"
_STATE = "state.pt"
_SEAL = "seal.json"
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError)
"""What broken JSON, a missing file or a foreign ``state.pt`` raise."""


def save_checkpoint(folder: Path, iteration: int, state: dict[str, Any], *, keep: int) -> Path:
    """Write the state of a run after ``iteration`` iterations, then drop the oldest checkpoints.

    Args:
        folder: Where checkpoints live.
        iteration: Iterations done.
        state: Nested plain values and tensors.
        keep: How many checkpoints to keep.

    Returns:
        The checkpoint's folder.

    Raises:
        TrainingError: If it cannot be written; earlier checkpoints are intact.
    """
    target = folder / f"{_PREFIX}{iteration:08d}"
    partial = folder / f".{target.name}.part"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        torch.save(state, partial / _STATE)
        seal = {"iteration": iteration, "sha256": {_STATE: _digest(partial / _STATE)}}
        (partial / _SEAL).write_text(json.dumps(seal), encoding="utf-8")
        for path in (partial / _STATE, partial / _SEAL, partial):
            _sync(path)
        shutil.rmtree(target, ignore_errors=True)
        partial.replace(target)
        _sync(folder)
    except OSError as error:
        raise TrainingError(
            f"cannot write checkpoint {target}: {error.strerror}. Free space or change run_dir, then use "
            "--resume; earlier checkpoints are intact."
        ) from error
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def list_checkpoints(folder: Path) -> list[Path]:
    """Return complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / _SEAL).is_file())


def load_checkpoint(path: Path) -> tuple[int, dict[str, Any]]:
    """Read a checkpoint back.

    Returns:
        Iterations done, and the state.

    Raises:
        CheckpointMismatch: If a file is missing or does not match its checksum.
    """
    try:
        seal = json.loads((path / _SEAL).read_text(encoding="utf-8"))
        iteration, digest = int(seal["iteration"]), seal["sha256"][_STATE]
        if _digest(path / _STATE) != digest:
            raise CheckpointMismatch(
                f"checkpoint {path} is damaged: {_STATE} does not match its checksum. Remove this folder; "
                "--resume then takes the checkpoint before it."
            )
        return iteration, torch.load(path / _STATE, weights_only=True)
    except _UNREADABLE as error:
        raise CheckpointMismatch(
            f"checkpoint {path} cannot be read: {error}. Remove this folder; --resume then takes the one "
            "before it."
        ) from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
