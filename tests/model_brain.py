"""A real model behind the scripted vLLM server."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from istar_trainer.sampler import LocalSampler, Request
from istar_trainer.vllm.build import text_logprobs


class ModelBrain:
    """Loads a folder and answers as vLLM would.

    Args:
        temperature: Reports logprobs at this temperature instead of that asked for, as a server does that was
            started without ``--logprobs-mode processed_logprobs``.
    """

    def __init__(self, temperature: float | None = None) -> None:
        self.temperature = temperature
        self.model: torch.nn.Module | None = None

    def load(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train(False)

    def complete(self, body: dict[str, Any]) -> tuple[list[int], list[float], str]:
        (eos,) = body["stop_token_ids"]
        sampler = LocalSampler(self.model, eos_token_id=eos, max_new_tokens=body["max_tokens"])
        request = Request(body["prompt"], body["seed"])
        (reply,) = sampler.generate([request], temperature=self.temperature or body["temperature"])
        ids = list(reply.response_ids)
        return ids, list(reply.logprobs), "stop" if ids[-1] == eos else "length"

    def score(self, ids: list[int]) -> list[float]:
        return text_logprobs(self.model, ids)
