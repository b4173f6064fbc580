"""The section ``sampler``: who draws the replies, from which weights."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from istar_trainer.config_base import BARE_WORD, Section


class LocalSamplerConfig(Section):
    """The learner's own model generates in this process."""

    type: Literal["local"] = "local"
    kept_mib: int = Field(default=1024, ge=0)
    """Most memory, in MiB, for keys and values of full dialogues (``env.window: null``), whose next prompts
    are then read from where they go on; the latest stay. 0 reads every prompt from its beginning."""


class VllmSamplerConfig(Section):
    """vLLM generates: a server beside the trainer, one that runs already, or an engine in this process."""

    type: Literal["vllm"] = "vllm"
    mode: Literal["server", "engine"] = "server"
    """``server``: a process of its own, which may have its own Python environment and is started again after
    a crash. ``engine``: inside this process, for vLLM installed beside the trainer."""
    python: Path | None = None
    """Interpreter of the environment that has vLLM, for the server; null for the trainer's own."""
    url: str | None = None
    """Address of a running server to use instead, such as http://127.0.0.1:8000; it must have been started as
    docs/scaling.md says and see the folder that snapshots are written to."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    """Precision of the sampler's weights; ``auto`` takes the model folder's."""
    enforce_eager: bool = True
    """Whether to leave out compilation and CUDA graphs, which take a minute or more at each start."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs that share the model."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU's memory that vLLM takes; about 0.4 where the learner lives on the same GPU."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Any further engine arguments of vLLM by their Python names, such as ``max_num_seqs: 256``."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the server, such as ``CUDA_VISIBLE_DEVICES``."""
    max_lora_rank: int = Field(default=0, ge=0)
    """Largest rank of LoRA adapters to be ready for; 0 for that of ``model.lora``, if there is one."""
    sleep: bool = False
    """Whether vLLM leaves the GPU's memory to the learner while nothing is sampled (CUDA and ROCm only)."""
    transfer: Literal["files", "broadcast"] = "files"
    """How new weights reach vLLM. ``files``: as a folder, for a disk or RAM disk that both sides see.
    ``broadcast``: workers of a server get them from this process, over NCCL from a model on a GPU and gloo
    from one on a CPU; for servers on other machines, and models whose folders take long to pass on."""
    sync_dir: Path | None = None
    """Where snapshots are handed over, best on a RAM disk such as /dev/shm; null for the run folder."""
    probe_band: float | None = Field(default=None, gt=0)
    """After each change of weights vLLM scores a known text; the run stops if its logprobs differ from the
    learner's by more than so many nats on average. Null means 0.001 with ``dtype: float32``, else 0.1."""
    concurrency: int = Field(default=256, ge=1)
    """Requests that a server works on at a time."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds that a server may take to come up."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds that a request may take; a server that needs longer is taken for dead."""
    max_restarts: int = Field(default=3, ge=0)
    """Restarts while the same replies are waited for; one more crash ends the run."""

    @model_validator(mode="after")
    def _fits_its_mode(self) -> "VllmSamplerConfig":
        if self.url is not None and not self.url.startswith("http://"):
            raise ValueError(f"url: {self.url} must begin with http://")
        own = self.mode == "server" and self.url is None
        if self.mode == "engine" and self.url is not None:
            raise ValueError(f"url: {self.url} names a server, but mode: engine starts none; leave one out")
        if not own and (self.python is not None or self.env):
            raise ValueError("python and env are for a server that is started; leave them out here")
        return self

    @model_validator(mode="after")
    def _is_there_to_receive(self) -> "VllmSamplerConfig":
        if self.transfer == "broadcast" and (
            self.mode == "engine" or self.sleep or self.sync_dir is not None
        ):
            raise ValueError(
                "transfer: broadcast sends weights to a server that is awake, and writes none: leave out "
                "mode: engine, sleep and sync_dir, or use transfer: files"
            )
        return self


SamplerConfig = Annotated[LocalSamplerConfig | VllmSamplerConfig, Field(discriminator="type"), BARE_WORD]
"""Which sampler; a bare word means that type with its defaults."""
