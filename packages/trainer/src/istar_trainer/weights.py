"""Models from folders, and their weights as dictionaries."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from istar_envs.errors import ConfigError
from istar_trainer.faults import is_out_of_memory
from istar_trainer.pictures import attach_reader


def load_model(path: str | Path, *, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Any]:
    """Load a causal LM and its tokenizer from a folder in Hugging Face layout.

    Args:
        path: The folder.
        dtype: Of the weights.

    Returns:
        The model in evaluation mode, and the tokenizer.

    Raises:
        ConfigError: If the folder holds no model, or the tokenizer has no chat template.
    """
    from safetensors import SafetensorError
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoTokenizer,
        PreTrainedTokenizerFast,
    )

    hide_progress_bars()
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"no model in {folder} (config.json is missing). Give model.path a folder in Hugging Face "
            "layout, or make one with `istar init-tiny --env ID --out DIR`."
        )
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        sees_pictures = hasattr(config, "vision_config")
        family: Any = AutoModelForImageTextToText if sees_pictures else AutoModelForCausalLM
        model: nn.Module = family.from_pretrained(folder, dtype=dtype, local_files_only=True)
        # AutoTokenizer gives every Qwen2 model the word splitting of Qwen2, whatever its tokenizer.json says
        kind: Any = PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else AutoTokenizer
        tokenizer = kind.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise
        raise ConfigError(f"cannot load the model in {folder}: {error}") from error
    if not tokenizer.chat_template or tokenizer.eos_token_id is None:
        raise ConfigError(f"the tokenizer in {folder} needs a chat template and an end-of-sequence token.")
    if sees_pictures:
        attach_reader(tokenizer, folder, config.image_token_id)
    return model.train(False), tokenizer


def hide_progress_bars() -> None:
    """Keep the library's progress bars out of the display of ours."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def num_parameters(model: nn.Module) -> int:
    """Count the trainable parameters, wherever they are divided among processes too."""
    return sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters() if p.requires_grad)


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy weights into a model in place (optimizers keep pointing at the same tensors)."""
    with torch.no_grad():
        for name, parameter in model.state_dict().items():
            parameter.copy_(weights[name])


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a detached copy of a model's weights."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
