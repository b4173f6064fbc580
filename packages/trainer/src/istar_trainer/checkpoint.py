"""Checkpoints: complete or absent, never half.

A checkpoint is written beside its place and renamed into it, with a checksum of every file. All
randomness derives from the run's seed and the iteration, so weights, optimizer states, the credit's
memory and the iteration are everything.
"""

import logging
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch

from istar_trainer.errors import CheckpointMismatch
from istar_trainer.faults import is_out_of_memory, writing
from istar_trainer.sealed import SEAL, damage, read_seal, seal, sync

logger = logging.getLogger(__name__)

_PREFIX = "iteration-"
_STATE = "state.pt"
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError)
"""What a seal without an iteration, or a foreign ``state.pt``, raises."""


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
        DiskFailed: If it cannot be written; earlier checkpoints are intact.
    """
    target = folder / f"{_PREFIX}{iteration:08d}"
    partial = folder / f".{target.name}.part"
    try:
        with writing(target):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            with (partial / _STATE).open("wb") as file:
                torch.save(state, file)
            seal(partial, iteration=iteration)
            shutil.rmtree(target, ignore_errors=True)
            partial.replace(target)
            sync(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def list_checkpoints(folder: Path) -> list[Path]:
    """Return complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / SEAL).is_file())


def newest_intact(folder: Path) -> Path | None:
    """Return the newest checkpoint that is what was written; damaged ones are named and put aside.

    Returns:
        Its folder; None if nothing was ever saved.

    Raises:
        CheckpointMismatch: If all of them are damaged; they stay where they are.
    """
    damaged: dict[Path, str] = {}
    for path in sorted(folder.glob(f"{_PREFIX}*"), reverse=True):
        what = damage(path)
        if what is None:
            for bad, fault in damaged.items():
                _put_aside(bad, f"{bad} is damaged: {fault}", path)
            return path
        damaged[path] = what
    if damaged:
        path, what = next(iter(damaged.items()))
        raise CheckpointMismatch(
            f"checkpoint {path} is damaged: {what}; and no earlier one is intact. Restore one from a copy, "
            f"or remove {folder}: --resume then begins again at iteration 0."
        )
    return None


def _put_aside(bad: Path, fault: str, good: Path) -> None:
    aside = bad.with_name(f"damaged-{bad.name}")
    shutil.rmtree(aside, ignore_errors=True)
    bad.rename(aside)
    logger.warning("checkpoint %s. It is kept as %s; the run goes back to %s", fault, aside.name, good.name)


def load_checkpoint(path: Path, *, is_checked: bool = False) -> tuple[int, dict[str, Any]]:
    """Read a checkpoint back.

    Args:
        path: Its folder.
        is_checked: Whether ``newest_intact`` has just compared its checksums.

    Returns:
        Iterations done, and the state.

    Raises:
        CheckpointMismatch: If a file is missing, does not match its checksum or holds something else.
    """
    what = None if is_checked else damage(path)
    try:
        if what is None:
            return int(read_seal(path)["iteration"]), torch.load(path / _STATE, weights_only=True)
    except _UNREADABLE as error:
        if is_out_of_memory(error):
            raise
        what = f"it holds something else ({error})"
    raise CheckpointMismatch(
        f"checkpoint {path} is damaged: {what}. Remove this folder; --resume then takes the one before it."
    )
