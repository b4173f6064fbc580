"""vLLM as small as tests want it."""

from pathlib import Path
from typing import Any

from istar_trainer.config_sampler import VllmSamplerConfig
from istar_trainer.vllm.build import make_vllm_sampler
from istar_trainer.vllm.sampler import VllmSampler

SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
"""Environment variables of a server or engine."""


def small_sampler(model: Any, tokenizer: Any, path: Path, run_dir: Path, **sampler: Any) -> VllmSampler:
    """A sampler of short texts in fp32 that follows a model, whose folder is ``path``."""
    return make_vllm_sampler(
        VllmSamplerConfig(dtype="float32", **sampler),
        model,
        path,
        run_dir,
        weights=model.state_dict,
        eos_token_id=tokenizer.eos_token_id,
        max_prompt_tokens=64,
        max_new_tokens=8,
    )
