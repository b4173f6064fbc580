"""Tiny models with eyes, of both classes."""

from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration

from builders import EOS, VOCAB
from istar_trainer.tiny_vision import add_picture_tokens, make_vision_model

KINDS = ("qwen2_vl", "qwen2_5_vl")


def make_vlm(kind: str) -> nn.Module:
    """A random model that reads pictures and few words, as ``with_larger_weights``."""
    words = {str(number): number for number in range(VOCAB - 4)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words)), eos_token=str(EOS))
    add_picture_tokens(tokenizer)
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "vision_layers": 2}
    model = make_vision_model(tokenizer, rope_theta=30.0, seed=0, **sizes)
    model = older_class(model.config) if kind == "qwen2_vl" else model
    return with_larger_weights(model)


def with_larger_weights(model: nn.Module) -> nn.Module:
    """The same model with weights so large that every token matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.dim() == 2 else 1)
    return model


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
