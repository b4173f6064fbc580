"""Puts memory and work of a configuration together and says what does not fit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from istar_envs.errors import ConfigError
from istar_trainer import config as cfg
from istar_trainer.planning.layout import (
    Cast,
    Layout,
    Lora,
    Workload,
    read_cast,
    read_layout,
    read_workload,
)
from istar_trainer.planning.memory import (
    GpuMemory,
    SamplerRoom,
    held_by_models,
    learning_bytes,
    sampler_room,
    sampling_bytes,
)
from istar_trainer.planning.shapes import ModelShape, shape_of, shape_of_run
from istar_trainer.planning.work import Pass, iteration_work

GIB = 1024**3
_THRIFTY: Mapping[str, Any] = {"checkpointing": True, "logits_mib": 512, "width": 2, "sampler": "vllm"}
_ADAPTERS: Mapping[str, Any] = {**_THRIFTY, "lora": Lora(16)}
_ALTERNATIVES: Mapping[str, Mapping[str, Any]] = {
    "bfloat16, checkpointing, micro-batches of one row, 512 MiB of logits, vLLM elsewhere": _THRIFTY,
    "all that, and LoRA of rank 16": _ADAPTERS,
    "all that, LoRA, and policy and PRM on one base": {**_ADAPTERS, "shared_prm": True},
    "all that, and ZeRO-3 instead of LoRA": {**_THRIFTY, "stage": 3},
    "all that, ZeRO-3, and the optimizer's state on the host": {
        **_THRIFTY,
        "stage": 3,
        "offload": "optimizer",
    },
}


@dataclass
class PlanArgs:
    """Say what a run needs before it starts."""

    gpus: int = 1
    """GPUs, those of the sampler included."""
    gpu_memory_gb: float = 80.0
    """Memory of each, in GiB."""
    reserve_gb: float = 4.0
    """What CUDA, communication buffers and the allocator take of each, in GiB."""
    sampler_gpus: int | None = None
    """GPUs that only vLLM uses in server mode, by default one copy of its weights; 0 if it shares all."""
    steps: int | None = None
    """Expected replies per trajectory; the environment's limit by default."""
    prompt_tokens: int | None = None
    """Expected length of prompts; the configuration's limit by default."""
    response_tokens: int | None = None
    """Expected length of replies; the configuration's limit by default."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run needs.

    Attributes:
        policy: Shape of the policy.
        prm: Shape of the process reward model.
        cast: Which models there are.
        layout: How they lie in memory.
        workload: What an iteration plays, with expected lengths.
        limits: The same with the longest ones, which memory must hold.
        learner_gpus: GPUs that train.
        gpu_bytes: What may be used of each GPU.
        memory: What each of them must hold.
        room: What vLLM can hold; None with the sampler in the learner's process.
        work: What an iteration computes.
        alternatives: Peaks with other settings, in bytes; empty if everything fits.
    """

    policy: ModelShape
    prm: ModelShape
    cast: Cast
    layout: Layout
    workload: Workload
    limits: Workload
    learner_gpus: int
    gpu_bytes: float
    memory: GpuMemory
    room: SamplerRoom | None
    work: list[Pass]
    alternatives: Mapping[str, float]

    @property
    def problems(self) -> list[str]:
        """What does not fit, one line each."""
        return list(self._problems())

    def _problems(self) -> Iterator[str]:
        if self.memory.peak > self.gpu_bytes:
            yield (
                f"each learner GPU needs {self.memory.peak / GIB:.1f} GiB and has {self.gpu_bytes / GIB:.1f}"
            )
        if self.room is not None and self.room.sequences == 0:
            share, weights, one = (
                size / GIB for size in (self.room.share, self.room.weights, self.room.per_sequence)
            )
            yield (
                f"vLLM's share of {share:.1f} GiB does not hold {weights:.1f} GiB of weights and one "
                f"sequence of {one:.2f} GiB; raise sampler.gpu_memory_utilization or tensor_parallel_size"
            )


def make_plan(config: cfg.RunConfig, args: PlanArgs) -> Plan:
    """Work out what a run needs.

    Args:
        config: The configuration.
        args: The machine and expected lengths.

    Raises:
        ConfigError: If a model's shape is not known, or no GPU is left to train.
    """
    policy = shape_of_run(config.model)
    prm = shape_of(Path(config.prm.init)) if config.prm.init else policy
    cast, layout = read_cast(config), read_layout(config)
    if args.sampler_gpus == 0:
        layout = replace(layout, colocated=layout.sampler == "vllm")
    workload = read_workload(
        config, steps=args.steps, prompt_tokens=args.prompt_tokens, response_tokens=args.response_tokens
    )
    limits = read_workload(config, steps=len(workload.prompts))
    sampler_gpus = _sampler_gpus(layout, args)
    learner_gpus = args.gpus if layout.colocated else args.gpus - sampler_gpus
    if learner_gpus < 1:
        raise ConfigError(
            f"{args.gpus} GPUs, of which vLLM takes {sampler_gpus}, leave none to train. Give more --gpus, "
            "or --sampler-gpus 0 if it shares them."
        )
    gpu_bytes = (args.gpu_memory_gb - args.reserve_gb) * GIB

    def memory(some: Layout, micro_batch_tokens: int) -> GpuMemory:
        held = held_by_models(policy, prm, cast, some, learner_gpus)
        moments = _moments(policy, prm, cast, some, limits=limits, micro_batch_tokens=micro_batch_tokens)
        share = some.sampler_frac * args.gpu_memory_gb * GIB if some.colocated else 0.0
        if some.sleeps:
            return GpuMemory(held, {**moments, "vLLM samples": share})
        return GpuMemory(held, moments, share)

    needed = memory(layout, config.learner.micro_batch_tokens)
    room = None
    if layout.sampler == "vllm":
        room = sampler_room(policy, limits, layout, gpus=sampler_gpus, gpu_bytes=args.gpu_memory_gb * GIB)
    others = {text: replace(layout, **change) for text, change in _ALTERNATIVES.items()}
    peaks = {text: memory(some, limits.longest).peak for text, some in others.items()}
    too_big = needed.peak > gpu_bytes
    return Plan(
        policy=policy,
        prm=prm,
        cast=cast,
        layout=layout,
        workload=workload,
        limits=limits,
        learner_gpus=learner_gpus,
        gpu_bytes=gpu_bytes,
        memory=needed,
        room=room,
        work=iteration_work(config, policy, prm, cast, layout=layout, workload=workload),
        alternatives={text: peak for text, peak in peaks.items() if too_big and peak < needed.peak},
    )


def _sampler_gpus(layout: Layout, args: PlanArgs) -> int:
    if layout.sampler == "local":
        return 0
    if layout.colocated:
        return args.gpus
    return args.sampler_gpus or layout.tensor_parallel


def _moments(
    policy: ModelShape,
    prm: ModelShape,
    cast: Cast,
    layout: Layout,
    *,
    limits: Workload,
    micro_batch_tokens: int,
) -> dict[str, float]:
    """Return what each moment of an iteration needs besides what models hold."""
    tokens = micro_batch_tokens
    found = {"policy learns": learning_bytes(policy, limits, layout, micro_batch_tokens=tokens)}
    if cast.prm:
        forwards = 2 if cast.centers else 1
        found["PRM learns"] = learning_bytes(
            prm, limits, layout, micro_batch_tokens=tokens, forwards=forwards
        )
    if layout.sampler == "local":
        found["sampling"] = sampling_bytes(policy, limits, layout)
    return found
