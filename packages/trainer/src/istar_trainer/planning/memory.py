"""Bytes that each part of a run takes on one GPU.

Every formula is in ``docs/scaling.md`` under "Planning a run". Not here: what CUDA, communication
buffers and the allocator take, which is an option of the command.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from istar_trainer.planning.layout import Cast, Layout, Workload
from istar_trainer.planning.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that a model holds all the time.

    Attributes:
        weights: Its weights.
        gradients: Gradients of those that learn.
        optimizer: AdamW's two moments, and the weights that DeepSpeed keeps beside them.
    """

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """What one GPU of the learners must hold, in bytes.

    Attributes:
        models: What each model holds.
        moments: What is needed at one time or the other, of which only the largest counts.
        sampler: What vLLM takes of the same GPU.
    """

    models: Mapping[str, Held]
    moments: Mapping[str, float] = field(default_factory=dict)
    sampler: float = 0.0

    @property
    def peak(self) -> float:
        """The most that is needed at a time."""
        return sum(h.total for h in self.models.values()) + max(self.moments.values()) + self.sampler


def learner_bytes(trainable: int, frozen: int, layout: Layout, gpus: int) -> Held:
    """Return what a learning model holds on each GPU.

    Args:
        trainable: Parameters that learn.
        frozen: Parameters that do not.
        layout: Who trains, and the precision of frozen weights.
        gpus: Over how many GPUs ZeRO spreads it.
    """
    weights = 4.0 * trainable + layout.width * frozen
    if layout.stage == 0:
        return Held(weights, 4.0 * trainable, 8.0 * trainable)
    return Held(
        0.0 if layout.offload == "all" else weights / (gpus if layout.stage == 3 else 1),
        4.0 * trainable / (gpus if layout.stage >= 2 else 1),
        0.0 if layout.offload != "none" else 12.0 * trainable / gpus,
    )


def held_by_models(
    policy: ModelShape, prm: ModelShape, cast: Cast, layout: Layout, gpus: int
) -> dict[str, Held]:
    """Return what every model of a run holds on each GPU, by name.

    Args:
        policy: Shape of the policy, its reference and its critic.
        prm: Shape of the process reward model.
        cast: Which models there are.
        layout: How they lie in memory.
        gpus: GPUs that train.
    """

    def learning(shape: ModelShape, *, has_base: bool = True) -> Held:
        if layout.lora is None:
            return learner_bytes(shape.num_parameters, 0, layout, gpus)
        adapter = shape.adapter_parameters(layout.lora.rank, layout.lora.targets)
        return learner_bytes(adapter, shape.num_parameters if has_base else 0, layout, gpus)

    found = {"policy": learning(policy)}
    if cast.prm:
        found["PRM"] = learning(prm, has_base=not layout.shared_prm)
    if cast.follower:
        found["running mean"] = Held(learning(policy, has_base=not layout.shared_prm).weights)
    if cast.critic:
        found["critic"] = learning(policy)
    if cast.reference and layout.lora is None:  # else it is the base below the policy's adapter
        found["reference"] = Held(4.0 * policy.num_parameters)
    if layout.stage == 3 and layout.sampler == "local":
        found["sampler's copy"] = Held(4.0 * policy.num_parameters)
    return found


def activation_bytes(shape: ModelShape, tokens: int, layout: Layout) -> float:
    """Return what a forward pass keeps for its backward pass, without logits.

    Counted for RMSNorm (its input in fp32, twice a layer), fused attention and a gated feed-forward
    part, as transformers computes Qwen2 and Llama; adapters keep their inputs in fp32 too.

    Args:
        shape: The model.
        tokens: Padded tokens of the pass.
        layout: Precision, adapters, and whether layers are computed again.
    """
    width = layout.width
    layer = (
        8.0 * shape.hidden
        + 4.0 * (2 + shape.num_heads)
        + width * (4 * shape.hidden + 2 * shape.query + 2 * shape.key + 4 * shape.intermediate)
    )
    if layout.lora is None and width < 4:  # norms stay in fp32, and every matrix gets its own short input
        layer += 10.0 * shape.hidden
    if layout.lora is not None:
        adapted = shape.adapted(layout.lora.targets)
        kept = sum((inputs if width < 4 else 0) + layout.lora.rank for inputs, _ in adapted)
        layer += 4.0 * kept / shape.num_layers
    last = 4.0 * (shape.hidden + 1) + width * 2.0 * shape.hidden
    if layout.checkpointing:
        return tokens * (shape.num_layers * width * shape.hidden + layer + last)
    return tokens * (shape.num_layers * layer + last)


def logit_bytes(shape: ModelShape, tokens: int, layout: Layout) -> float:
    """Return what the logits of sampled tokens take at the peak of a backward pass.

    The logits, their fp32 form divided by the temperature, and the gradients of both.

    Args:
        shape: The model.
        tokens: Sampled tokens of the pass.
        layout: Precision, and how large logits may be at a time.
    """
    alive = tokens
    if layout.logits_mib is not None:
        alive = min(tokens, max(1, layout.logits_mib * 2**20 // (4 * shape.vocab)))
    return float(alive * shape.vocab * (2 * layout.width + 8))


def cache_bytes(shape: ModelShape, tokens: int, width: int) -> float:
    """Return the keys and values of so many tokens in every layer."""
    return 2.0 * shape.num_layers * shape.key * width * tokens


def learning_bytes(
    shape: ModelShape, workload: Workload, layout: Layout, *, micro_batch_tokens: int, forwards: int = 1
) -> float:
    """Return what one micro-batch takes while a model learns from it.

    Args:
        shape: The model.
        workload: Lengths of rows.
        layout: Precision and what is computed again.
        micro_batch_tokens: Padded tokens of a micro-batch; a longer row is one by itself.
        forwards: Models whose logits exist at the same time.
    """
    most = workload.trajectories * len(workload.lengths)
    rows = max(1, min(micro_batch_tokens // workload.longest, most))
    logits = logit_bytes(shape, rows * workload.sampled, layout)
    whole = shape.layer if layout.checkpointing else shape.body
    shorter = 2.0 * (whole + shape.head) if layout.width == 2 and layout.lora is None else 0.0
    held = 4 if layout.lora is None else layout.width
    gathered = held * (2.0 * shape.layer + shape.head) if layout.stage == 3 else 0.0
    return activation_bytes(shape, rows * workload.longest, layout) + forwards * logits + shorter + gathered


def sampling_bytes(shape: ModelShape, workload: Workload, layout: Layout, *, max_rows: int = 512) -> float:
    """Return the key-value caches and the logits of the sampler inside a learner's process.

    Args:
        shape: The model.
        workload: Trajectories and lengths.
        layout: Precision.
        max_rows: Rows that are generated together.
    """
    rows = min(max_rows, workload.trajectories)
    prompts = rows * max(workload.prompts)
    reading = layout.width * prompts * (3.0 * shape.intermediate + 2.0 * shape.hidden)
    writing = rows * shape.vocab * (layout.width + 16.0)
    kept = cache_bytes(shape, workload.trajectories * workload.longest, layout.width)
    kept = min(kept, layout.kept_mib * 2.0**20)
    return cache_bytes(shape, rows * workload.longest, layout.width) + kept + max(reading, writing)


@dataclass(frozen=True, slots=True)
class SamplerRoom:
    """What vLLM's share of one GPU holds, in bytes.

    Attributes:
        share: What it takes.
        weights: Of that, weights.
        per_sequence: Cache of one sequence of full length.
        wanted: Sequences that are played at the same time on its GPUs.
    """

    share: float
    weights: float
    per_sequence: float
    wanted: int

    @property
    def sequences(self) -> int:
        """Sequences of full length that fit at the same time."""
        return max(0, int((self.share - self.weights) // self.per_sequence))


def sampler_room(
    shape: ModelShape, workload: Workload, layout: Layout, *, gpus: int, gpu_bytes: float
) -> SamplerRoom:
    """Return what vLLM can hold.

    Args:
        shape: The policy.
        workload: Trajectories and lengths.
        layout: vLLM's share, precision and tensor parallelism.
        gpus: GPUs that vLLM uses.
        gpu_bytes: Memory of a GPU.
    """
    parts = layout.tensor_parallel
    copies = max(1, gpus // parts)
    return SamplerRoom(
        share=layout.sampler_frac * gpu_bytes,
        weights=layout.sampler_width * shape.num_parameters / parts,
        per_sequence=cache_bytes(shape, workload.longest, layout.sampler_width) / parts,
        wanted=-(-workload.trajectories // copies),
    )
