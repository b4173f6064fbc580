"""What makes a model need less memory: bfloat16 products, and layers computed again in backward."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from istar_trainer.head import head_of


def multiply_in_bfloat16(model: nn.Module) -> None:
    """Let a model with fp32 weights compute its matrix products in bfloat16, in place."""
    for module in (model, head_of(model)):
        device = next(model.parameters()).device.type
        module.forward = torch.autocast(device, torch.bfloat16)(module.forward)


def recompute_layers(
    model: nn.Module, around: Callable[[], AbstractContextManager[None]] = nullcontext
) -> None:
    """Keep only the inputs of a model's layers for backward, which computes the layers again, in place.

    Args:
        model: Hugging Face model; reading without gradient, with a cache or without, is as before.
        around: Called when a layer runs; gives what must surround its second run.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = _recomputed(layer.forward, around)


def _recomputed(
    run: Callable[..., Any], around: Callable[[], AbstractContextManager[None]]
) -> Callable[..., Any]:
    def forward(*args: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return run(*args, **options)
        return checkpoint(
            run,
            *args,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), around()),
            **options,
        )

    return forward
