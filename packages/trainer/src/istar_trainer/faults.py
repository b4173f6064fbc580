"""What a machine can do to a run, said in one text wherever it comes up: a full disk, too little memory.

Libraries tell of either in ways of their own; here they become errors that say what, where and how to go on.
"""

import errno
import functools
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from istar_envs.command_line import Command
from istar_trainer.errors import DiskFailed, OutOfMemory

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
_FORBIDDEN: Final = (PermissionError, NotADirectoryError, FileExistsError, IsADirectoryError)
_NATIVE: Final = re.compile(r"\(os error (\d+)\)")
"""How libraries in Rust (safetensors, tokenizers) end their messages."""
_NO_MEMORY: Final = ("out of memory", "can't allocate memory", "ALLOC_FAILED", "bad_alloc")
"""What RuntimeErrors of torch and of CUDA's libraries hold."""
_SIZE: Final = re.compile(r"(?:tried|unable) to allocate ([\d.]+) (\w+)", re.IGNORECASE)
_SMALLER: Final = (
    "learner.micro_batch_tokens or learner.logits_mib, or set model.gradient_checkpointing: true"
)
_FEWER: Final = "the number of processes on this machine"
_PARTS: Final = {
    "generate": ("drawing replies", "sampler.kept_mib (vllm: sampler.gpu_memory_utilization)"),
    "token_values": ("scoring tokens", _SMALLER),
    "backward": ("learning from a batch", _SMALLER),
    "step": ("updating weights", _FEWER),
    "load_model": ("loading a model", _FEWER),
}
"""By functions of this package: what was going on, and what to lower."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Explain why something cannot be written.

    Args:
        path: What is written, a file or a folder.

    Raises:
        DiskFailed: If the disk is full, broken or closed to us.
    """
    try:
        yield
    except Exception as error:
        refusal = _refusal(error)
        if refusal is None:
            raise
        raise _disk_failed(path, refusal) from error


def explained(command: Command) -> Command:
    """Make a command end in one clear text when memory or the disk gives out.

    Args:
        command: Carries out its arguments.
    """

    @functools.wraps(command)
    def carry_out(argv: list[str]) -> int | None:
        try:
            return command(argv)
        except (OSError, MemoryError, RuntimeError) as error:
            refusal = _refusal(error)
            if isinstance(error, OSError) and refusal is not None and refusal.errno in _FULL:
                raise _disk_failed(error.filename2 or error.filename or "a file", refusal) from error
            if is_out_of_memory(error):
                raise OutOfMemory(_shortage(error)) from error
            raise

    return carry_out


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory could not be had: Python's, torch's on a CPU, or a GPU's."""
    said = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _NO_MEMORY)
    return said or isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM


def _refusal(error: BaseException) -> OSError | None:
    """Return what the disk answered, in an error of any library that writes; None if it is something else."""
    if isinstance(error, OSError):
        return error if error.errno in _FULL or isinstance(error, _FORBIDDEN) else None
    found = _NATIVE.search(str(error))
    if found:
        return _refusal(OSError(int(found[1]), os.strerror(int(found[1]))))
    # torch.save fails once more while it closes its archive, and raises that
    is_second = isinstance(error, RuntimeError) and isinstance(error.__context__, OSError)
    return _refusal(error.__context__) if is_second and error.__context__ is not None else None


def _disk_failed(path: Path | str, refusal: OSError) -> DiskFailed:
    return DiskFailed(
        f"cannot write {path}: {refusal.strerror}. Free space, or move the run folder and change run_dir, "
        "then go on with --resume; what was written before is intact, checkpoints too."
    )


def _shortage(error: BaseException) -> str:
    calls = [
        frame.f_code.co_name
        for frame, _line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").startswith("istar_trainer.")
    ]
    doing, knob = next((_PARTS[c] for c in reversed(calls) if c in _PARTS), ("working", _SMALLER))
    found = _SIZE.search(str(error))
    size = f" ({found[1]} {found[2]} more were asked for)" if found else ""
    return (
        f"out of memory while {doing}{size}. Lower {knob}, then go on with --resume: the last checkpoint is "
        "intact. `istar plan CONFIG` says what a run needs; in a new run model.lora or learner.backend: "
        "deepspeed takes less."
    )
