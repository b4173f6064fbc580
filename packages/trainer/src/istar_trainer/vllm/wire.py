"""What is said to vLLM and how its answers are read; the same for server and engine.

Nothing is left to the model's or vLLM's defaults: a folder's ``generation_config.json`` could cut the
distribution or reshape it, and replies would no longer come from the policy.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from istar_trainer.config_sampler import VllmSamplerConfig
from istar_trainer.errors import RolloutError, SamplerFailed
from istar_trainer.sampler import Completion, Request

RECEIVER = "istar_receiver.WeightReceiver"
"""The worker's extension, as vLLM finds it beside ``serve.py``."""


class SamplerDown(RolloutError):
    """vLLM is not there or gave no answer; what it was asked can be asked again."""


def sampling_parameters(
    request: Request, *, temperature: float, eos_token_id: int, max_new_tokens: int
) -> dict[str, Any]:
    """Say how to draw one reply: from the policy's whole distribution, with the request's own seed.

    The end token ends a reply and is part of it; whatever the model folder calls its end does not count.
    """
    return {
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": request.seed % 2**63,
        "max_tokens": max_new_tokens,
        "ignore_eos": True,
        "stop_token_ids": [eos_token_id],
        "logprobs": 0,
    }


def engine_arguments(
    config: VllmSamplerConfig, model: Path, tokenizer: Path, max_tokens: int, *, sees_pictures: bool
) -> dict[str, Any]:
    """Arguments of vLLM's engine, and of the server around it, by their Python names.

    Args:
        config: What the run says.
        model: Folder of the weights.
        tokenizer: Folder of the tokenizer; snapshots have none.
        max_tokens: Longest prompt and reply together.
        sees_pictures: Whether the model reads pictures.
    """
    arguments: dict[str, Any] = {
        "model": str(model),
        "tokenizer": str(tokenizer),
        "dtype": config.dtype,
        "max_model_len": max_tokens,
        "enforce_eager": config.enforce_eager,
        "tensor_parallel_size": config.tensor_parallel_size,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
    }
    if config.transfer == "broadcast":  # weights come later, with an output layer of their own
        untied = {"tie_word_embeddings": False}
        arguments |= {
            "load_format": "dummy",
            "worker_extension_cls": RECEIVER,
            "hf_overrides": {**untied, "text_config": untied} if sees_pictures else untied,
        }
    if config.sleep:
        arguments["enable_sleep_mode"] = True
    if config.max_lora_rank:
        arguments |= {"enable_lora": True, "max_lora_rank": config.max_lora_rank}
    if sees_pictures:  # which it gets scaled, and where adapters reach the vision tower too
        arguments |= {"limit_mm_per_prompt": {"video": 0}, "mm_device_do_normalize": False}
        if config.max_lora_rank:
            arguments["enable_tower_connector_lora"] = True
        if config.mode == "server":
            arguments["enable_scale_out"] = True
    return arguments | config.options


def as_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Write engine arguments as command-line flags."""
    flags = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict):
            flags += [f"--{flag}", json.dumps(value)]
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def read_completion(answer: Any) -> Completion:
    """Read a reply from an answer of ``/v1/completions`` or ``/inference/v1/generate``.

    Raises:
        SamplerDown: If the reply was broken off.
        SamplerFailed: If the answer lacks token ids or logprobs.
    """
    try:
        choice = answer["choices"][0]
        reason, ids = choice["finish_reason"], choice["token_ids"]
        logprobs = _logprobs(choice["logprobs"]) if ids else []
    except (LookupError, TypeError) as error:
        raise SamplerFailed(
            f"vLLM's answer has no token ids with logprobs ({error!r}): {str(answer)[:300]}. Use a version "
            "that knows return_token_ids, such as 0.32."
        ) from error
    return make_completion(ids, logprobs, reason)


def _logprobs(told: Mapping[str, Any]) -> list[float]:
    """Read the logprobs of the drawn tokens from either kind of answer."""
    if "content" in told:
        return [entry["logprob"] for entry in told["content"]]
    return list(told["token_logprobs"])


def make_completion(ids: Sequence[int], logprobs: Sequence[float], reason: str | None) -> Completion:
    """Check a reply and make it a completion.

    Raises:
        SamplerDown: If the reply was broken off.
        SamplerFailed: If ids and logprobs do not fit each other.
    """
    if reason not in ("stop", "length"):
        raise SamplerDown(f"a reply ended with finish_reason {reason!r}")
    if not ids or len(ids) != len(logprobs) or not all(map(math.isfinite, logprobs)):
        raise SamplerFailed(f"vLLM drew {len(ids)} tokens with the logprobs {list(logprobs)[:8]}")
    return Completion(tuple(map(int, ids)), tuple(map(float, logprobs)))


def read_prompt_logprobs(entries: Sequence[Mapping[Any, Any] | None], ids: Sequence[int]) -> list[float]:
    """Read the logprob of every token but the first, at temperature 1, from ``prompt_logprobs``.

    Args:
        entries: One mapping per token from id to ``{"logprob": …}``; nothing for the first.
        ids: The tokens.
    """
    try:
        found = [entry[str(i)]["logprob"] for entry, i in zip(entries[1:], ids[1:], strict=True) if entry]
    except (LookupError, TypeError, ValueError) as error:
        raise SamplerFailed(f"vLLM's prompt_logprobs cannot be read: {error!r}") from error
    return [float(value) for value in found]
