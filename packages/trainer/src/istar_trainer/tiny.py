"""A tiny transformer and a tokenizer for one environment, made locally.

Saved in the ordinary Hugging Face layout; its tokenizer is what tokenizer.json says
(``PreTrainedTokenizerFast``), which ``AutoTokenizer`` of transformers 5 does not believe of a Qwen2 model.
Every sign is a token of its own, so a board has one token per cell, with bytes for the rest, so any text
can be written. Words and numbers take the space before them along, so that each token tells which comes
next when a text is copied. Codes such as ``B07ABC1234`` that the environment shows are one token each.
Separators such as `` [SEP] `` and a colon are one token with their spaces, so that what follows them is
written as in a reply.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from istar_envs.actions import format_reply
from istar_envs.agent import Conversation, Message
from istar_trainer.evaluate import expert_action
from istar_trainer.tiny_vision import (
    add_picture_tokens,
    make_vision_model,
    save_image_processor,
    shows_pictures,
)
from istar_trainer.weights import hide_progress_bars

_END = "<|im_end|>"
_PAD = "<|endoftext|>"
_CONTROL = (_PAD, "<|im_start|>", _END)
_TAGS = ("<think>", "</think>", "<action>", "</action>")
_PIECES = "|".join(
    (
        r" \[[A-Z]+\] |: ",  # separators
        r" ?\p{L}+| ?\p{N}+|[^\p{L}\p{N}]",  # words, numbers, signs
    )
)
_CODE = re.compile(r"\b(?=[A-Z]*[0-9])[A-Z0-9]{5,}\b")
_SMALLEST = 264
_ROPE_THETA = 30.0
# Rotary wavelengths up to about 120 tokens: boards are short, and with the usual 10,000 most of a tiny
# model's few frequencies would never turn, so that it learns what lies beside what much later.
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def collect_text(env: gym.Env[Any, Any], *, template: str, window: int | None, episodes: int) -> list[str]:
    """Play an environment, by turns at random and by its expert, and return every prompt and reply.

    Args:
        env: Environment that can be played in text.
        template: Prompt template.
        window: Past steps in each prompt.
        episodes: How many episodes to play; the seeds are 0, 1, 2 …
    """
    texts = ["system user assistant"] * episodes
    conversation = Conversation(env, template=template, window=window)
    language = env.unwrapped.language  # type: ignore[attr-defined]
    for seed in range(episodes):
        conversation.reset(seed=seed)
        env.action_space.seed(seed)
        while not conversation.done:
            texts += _contents(conversation.messages())
            reply = format_reply(
                (expert_action(env) if seed % 2 else language.name(env.action_space.sample()),)
            )
            texts.append(reply)
            conversation.respond(reply)
    return texts


def train_tokenizer(texts: Iterable[str], *, vocab_size: int = 512) -> Any:
    """Train a byte-level BPE tokenizer in which every sign stands alone.

    Args:
        texts: What it should be good at.
        vocab_size: Largest vocabulary without the tags of a reply; never below what bytes, control tokens and
            codes take.

    Returns:
        A Hugging Face fast tokenizer with a ChatML template.
    """
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    texts = list(texts)
    codes = sorted({code for text in texts for code in _CODE.findall(text)})
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()  # what AutoTokenizer gives the tokenizer of every Qwen2 model
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocab_size - len(codes), _SMALLEST),
        special_tokens=list(_CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(tag) for tag in (*_TAGS, *codes)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=_END,
        pad_token=_PAD,
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_model(
    vocab_size: int,
    *,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    rope_theta: float = _ROPE_THETA,
    eos_token_id: int,
    seed: int,
) -> nn.Module:
    """Make a small Qwen2 with random weights.

    Args:
        vocab_size: Tokens.
        hidden_size: Width; a multiple of ``num_heads``.
        num_layers: Layers.
        num_heads: Attention heads.
        rope_theta: Base of the rotary wavelengths.
        eos_token_id: Token that ends a reply.
        seed: Seed of the weights; torch's global generator is left as it was.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 8 // 3 // 8 * 8,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.05,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = Qwen2ForCausalLM(config)
    return model.train(False)


def init_tiny(
    env: gym.Env[Any, Any],
    out: Path,
    *,
    template: str,
    window: int | None,
    vocab_size: int = 512,
    episodes: int = 50,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    vision_layers: int = 1,
    rope_theta: float = _ROPE_THETA,
    seed: int,
) -> Path:
    """Make a tiny model and tokenizer for an environment and save both.

    If the prompts hold pictures, it is a vision-language model, and its image processor is saved too.

    Args:
        env: Environment whose texts the tokenizer should be good at.
        out: Where both go.
        template: Prompt template.
        window: Past steps in each prompt.
        vocab_size: Largest vocabulary.
        episodes: How many episodes the tokenizer sees.
        hidden_size: Width; a multiple of ``num_heads``.
        num_layers: Layers.
        num_heads: Attention heads.
        vision_layers: Layers of the vision tower, if there is one.
        rope_theta: Base of the rotary wavelengths.
        seed: Seed of the weights.

    Returns:
        ``out``, a folder that ``istar_trainer.weights.load_model`` loads.
    """
    texts = collect_text(env, template=template, window=window, episodes=episodes)
    tokenizer = train_tokenizer(texts, vocab_size=vocab_size)
    sizes: dict[str, Any] = {
        "hidden_size": hidden_size,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "rope_theta": rope_theta,
        "seed": seed,
    }
    if shows_pictures(env, template=template, window=window):
        add_picture_tokens(tokenizer)
        save_image_processor(out)
        model = make_vision_model(tokenizer, vision_layers=vision_layers, **sizes)
    else:
        model = make_model(len(tokenizer), eos_token_id=tokenizer.eos_token_id, **sizes)
    hide_progress_bars()
    model.save_pretrained(out)  # type: ignore[operator]
    tokenizer.save_pretrained(out)
    return out


def _contents(messages: list[Message]) -> Iterator[str]:
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            yield content
        else:
            yield from (part["text"] for part in content if part["type"] == "text")
