"""Where models live. Batches stay in main memory; each pass takes what it needs to its model."""

import os
from typing import Any, Literal

import torch
from torch import Tensor, nn

from istar_envs.errors import ConfigError


def find_device(kind: Literal["cpu", "cuda"]) -> torch.device:
    """Return the device of this process: the CPU, or the GPU of its number on this machine.

    Raises:
        ConfigError: If torch finds no such GPU.
    """
    if kind == "cpu":
        return torch.device("cpu")
    number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= count:
        raise ConfigError(
            f"model.device: cuda needs a GPU for process {number} of this machine, but torch finds {count}. "
            "Start fewer processes, install a build of torch for your GPUs, or use model.device: cpu."
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def device_of(model: nn.Module) -> torch.device:
    """Return where a model lives."""
    return next(model.parameters()).device


def moved(inputs: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Take the tensors among the arguments of a forward pass to a device."""
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in inputs.items()}
