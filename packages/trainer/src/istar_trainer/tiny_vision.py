"""A tiny vision-language model of the Qwen2.5-VL classes with random weights, for environments in pictures.

Patches, merging and pixel statistics are those of the published models, so one token is a square of 28
pixels: a cell of a Sokoban board.
"""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from istar_envs.agent import Conversation

_START, _END, _PICTURE, _VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
_PATCH, _MERGE, _FRAMES = 14, 2, 2
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    f"{{% if part.type == 'image' %}}{_START}{_PICTURE}{_END}"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "patch_size": _PATCH,
    "merge_size": _MERGE,
    "temporal_patch_size": _FRAMES,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "size": {"shortest_edge": (_PATCH * _MERGE) ** 2, "longest_edge": 1280 * (_PATCH * _MERGE) ** 2},
}


def shows_pictures(env: gym.Env[Any, Any], *, template: str, window: int | None) -> bool:
    """Say whether the prompts of an environment hold pictures; its episode is lost."""
    conversation = Conversation(env, template=template, window=window)
    conversation.reset(seed=0)
    return any(not isinstance(message["content"], str) for message in conversation.messages())


def add_picture_tokens(tokenizer: Any) -> None:
    """Teach a tokenizer the tokens around pictures, and a chat template that writes them."""
    tokenizer.add_special_tokens({"additional_special_tokens": [_START, _END, _PICTURE, _VIDEO]})
    tokenizer.chat_template = _CHAT_TEMPLATE


def save_image_processor(out: Path) -> None:
    """Write the settings of the published models' image processor, for pictures of at least one token."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_PREPROCESSOR, indent=2) + "\n"
    (out / "preprocessor_config.json").write_text(text, encoding="utf-8")


def make_vision_model(
    tokenizer: Any,
    *,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    vision_layers: int,
    rope_theta: float,
    seed: int,
) -> nn.Module:
    """Make a small Qwen2.5-VL with random weights.

    Args:
        tokenizer: With the tokens of ``add_picture_tokens``.
        hidden_size: Width of the language model; a multiple of ``num_heads``.
        num_layers: Layers of the language model.
        num_heads: Its attention heads; each has a multiple of 8 dimensions.
        vision_layers: Layers of the vision tower, which is half as wide.
        rope_theta: Base of the rotary wavelengths.
        seed: Seed of the weights; torch's global generator is left as it was.
    """
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    start, end, picture, video = tokenizer.convert_tokens_to_ids([_START, _END, _PICTURE, _VIDEO])
    pairs = hidden_size // num_heads // 2
    on_side = pairs * 3 // 8
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": hidden_size,
            "intermediate_size": hidden_size * 8 // 3 // 8 * 8,
            "num_hidden_layers": num_layers,
            "num_attention_heads": num_heads,
            "num_key_value_heads": num_heads,
            "max_position_embeddings": 4096,
            "initializer_range": 0.05,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": rope_theta,
                "mrope_section": [pairs - 2 * on_side, on_side, on_side],
            },
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": 0,
        },
        vision_config=_vision_config(hidden_size, vision_layers),
        image_token_id=picture,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = Qwen2_5_VLForConditionalGeneration(config)
    return model.train(False)


def _vision_config(hidden_size: int, num_layers: int) -> dict[str, Any]:
    num_heads = max(1, hidden_size // 32)
    return {
        "depth": num_layers,
        "hidden_size": 16 * num_heads,
        "intermediate_size": 32 * num_heads,
        "num_heads": num_heads,
        "out_hidden_size": hidden_size,
        "fullatt_block_indexes": list(range(num_layers)),
        "patch_size": _PATCH,
        "spatial_merge_size": _MERGE,
        "temporal_patch_size": _FRAMES,
        "initializer_range": 0.05,
    }
