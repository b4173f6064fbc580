"""Weights as vLLM reads them: as a folder or by name, in its precision, with an output layer of its own.

vLLM's CPU build keeps a packed copy of the output layer. Where that layer is tied to the embeddings, a reload
changes the embeddings only, and replies come from half-new weights: tied models are handed over untied.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from istar_envs.errors import ConfigError
from istar_trainer.lora import AdaptedModel

_OUTPUT = "lm_head.weight"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_EXTRA = "model-output.safetensors"
_PROCESSOR = "preprocessor_config.json"


def is_tied(model: Any) -> bool:
    """Whether a model that is handed over whole has one matrix for embeddings and output."""
    return not isinstance(model, AdaptedModel) and bool(getattr(model.config, "tie_word_embeddings", False))


def write_snapshot(model: Any, weights: dict[str, Tensor], folder: Path, *, beside: Path, dtype: str) -> None:
    """Save weights of a model as its own library lays them out.

    Args:
        model: Hugging Face model, or one with an adapter, which alone is written; decides the layout, not the
            values.
        weights: Values by the names of its ``state_dict``.
        folder: Where to write.
        beside: Folder that the model was loaded from; its image processor, if any, is copied.
        dtype: Precision to write; ``auto`` keeps theirs.
    """
    if dtype != "auto":
        weights = _cast(weights, getattr(torch, dtype))
    if isinstance(model, AdaptedModel):
        model.save_adapter(folder, weights)
        return
    model.save_pretrained(folder, state_dict=dict(weights))  # which it takes names out of
    if (beside / _PROCESSOR).is_file():
        shutil.copy(beside / _PROCESSOR, folder)
    if is_tied(model) and _OUTPUT in weights:
        _untie(folder, weights[_OUTPUT].detach().contiguous())


def snapshot_tensors(model: Any, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what ``write_snapshot`` writes of a whole model, by the names that it writes; nothing is copied.

    Args:
        model: Hugging Face model; decides the names, not the values.
        weights: Values by the names of its ``state_dict``.

    Raises:
        ConfigError: If the library cannot tell the names.
    """
    try:
        from transformers.core_model_loading import revert_weight_conversion
        from transformers.modeling_utils import remove_tied_weights_from_state_dict
    except ImportError as error:
        raise ConfigError(
            "sampler.transfer: broadcast needs transformers 5, which tells by which names a model is saved. "
            "Install it or use sampler.transfer: files."
        ) from error
    saved: dict[str, Tensor] = revert_weight_conversion(
        model, remove_tied_weights_from_state_dict(dict(weights), model)
    )
    return {**saved, _OUTPUT: weights[_OUTPUT]} if is_tied(model) and _OUTPUT in weights else saved


def _cast(weights: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Change the precision; names that share a tensor go on sharing one."""
    made: dict[tuple[int, torch.Size], Tensor] = {}
    result = {}
    for name, value in weights.items():
        key = (value.data_ptr(), value.shape)
        if key not in made:
            made[key] = value.detach().to(dtype) if value.is_floating_point() else value
        result[name] = made[key]
    return result


def _untie(folder: Path, output: Tensor) -> None:
    """Add the output layer to a saved model whose output layer is its embeddings."""
    index_file, config_file = folder / _INDEX, folder / "config.json"
    if index_file.is_file():
        index = json.loads(index_file.read_text(encoding="utf-8"))
        index["weight_map"][_OUTPUT] = _EXTRA
        index_file.write_text(json.dumps(index), encoding="utf-8")
        save_file({_OUTPUT: output}, folder / _EXTRA, metadata={"format": "pt"})
    else:
        tensors = load_file(folder / _SINGLE)
        save_file({**tensors, _OUTPUT: output}, folder / _SINGLE, metadata={"format": "pt"})
    config = json.loads(config_file.read_text(encoding="utf-8"))
    for section in (config, config.get("text_config", {})):
        section["tie_word_embeddings"] = False
    config_file.write_text(json.dumps(config), encoding="utf-8")
