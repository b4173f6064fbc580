"""Tiny models with eyes of the older class."""

from typing import Any

import torch
from torch import nn
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration


def older_class(config: Any) -> nn.Module:
    """A model of Qwen2-VL with random weights and the text layers of a Qwen2.5-VL configuration."""
    tokens = {key: value for key, value in config.to_dict().items() if key.endswith("token_id")}
    text = {k: v for k, v in config.text_config.to_dict().items() if k != "model_type"}
    width = config.text_config.hidden_size
    vision = {
        "depth": 2,
        "embed_dim": width // 2,
        "hidden_size": width,
        "num_heads": width // 32,
        "mlp_ratio": 2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Qwen2VLForConditionalGeneration(
            Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **tokens)
        ).eval()
