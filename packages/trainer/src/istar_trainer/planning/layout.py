"""Which models a run holds and how they are spread: the one place where the plan reads the configuration."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium as gym

from istar_envs.errors import ConfigError
from istar_trainer import config as cfg
from istar_trainer.config_algorithms import PpoConfig
from istar_trainer.config_credits import IstarOfficialCredit, Method, PrimeCredit, methods_of
from istar_trainer.config_sampler import VllmSamplerConfig
from istar_trainer.factories import make_env

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}
"""Bytes of one number."""


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters instead of whole models.

    Attributes:
        rank: Rank of the adapters.
        targets: Last parts of the names of the matrices they are on; empty for all but the head.
    """

    rank: int
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """How models lie in memory. What learns is always held in fp32.

    Attributes:
        width: Bytes of a number in activations, and in the frozen weights below adapters.
        lora: Adapters; None trains whole models.
        checkpointing: Whether activations are computed again in the backward pass.
        logits_mib: Largest fp32 logits held at once, in MiB; None for all of a micro-batch.
        shared_prm: Whether policy and PRM are adapters on one base.
        stage: ZeRO stage of DeepSpeed; 0 for torch, which keeps everything in every process.
        offload: What waits in the memory of the host.
        sampler: Who generates.
        kept_mib: What the local sampler keeps of growing dialogues at most, in MiB.
        sampler_width: Bytes of a number in vLLM.
        sampler_frac: Share of a GPU's memory that vLLM takes.
        tensor_parallel: GPUs that share one copy of vLLM's weights.
        colocated: Whether vLLM and the learners use the same GPUs.
        sleeps: Whether vLLM leaves its memory to the learners while it has nothing to do.
    """

    width: int = 4
    lora: Lora | None = None
    checkpointing: bool = False
    logits_mib: int | None = None
    shared_prm: bool = False
    stage: int = 0
    offload: Literal["none", "optimizer", "all"] = "none"
    sampler: Literal["local", "vllm"] = "local"
    kept_mib: int = 0
    sampler_width: int = 2
    sampler_frac: float = 0.9
    tensor_parallel: int = 1
    colocated: bool = False
    sleeps: bool = False


@dataclass(frozen=True, slots=True)
class Cast:
    """Which models a run needs besides its policy.

    Attributes:
        prm: A process reward model that learns.
        follower: A running mean of the policies that the PRM's rewards are relative to.
        critic: A critic that learns.
        reference: The frozen start policy.
        centers: Whether scoring also compares the distributions of policy and PRM.
    """

    prm: bool = False
    follower: bool = False
    critic: bool = False
    reference: bool = False
    centers: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """What an iteration plays and learns from; every step of a trajectory is a row.

    Attributes:
        groups: Tasks.
        trajectories: Of all tasks.
        prompts: Tokens of the prompt of each step of a trajectory.
        response: Tokens of a reply.
        grows: Whether each prompt begins with the one before and its reply.
        merges: Whether the rows of a growing trajectory are computed as one.
    """

    groups: int
    trajectories: int
    prompts: tuple[int, ...]
    response: int
    grows: bool = False
    merges: bool = False

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of the rows of a trajectory that are computed."""
        return tuple(p + self.response for p in (self.prompts[-1:] if self.merges else self.prompts))

    @property
    def sampled(self) -> int:
        """Sampled tokens of the longest row that is computed."""
        return self.response * (len(self.prompts) if self.merges else 1)

    @property
    def rows(self) -> int:
        """Steps of all trajectories."""
        return self.trajectories * len(self.prompts)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(self.prompts) + self.response

    @classmethod
    def of(
        cls,
        groups: int,
        group_size: int,
        *,
        steps: int,
        prompt: int,
        response: int,
        grows: bool,
        merges: bool = False,
    ) -> "Workload":
        """Lay out equal trajectories; the prompts of a growing dialogue grow evenly up to ``prompt``."""
        prompts = [-(-prompt * (t + 1) // steps) if grows else prompt for t in range(steps)]
        return cls(groups, groups * group_size, tuple(prompts), response, grows, grows and merges)


def read_layout(config: cfg.RunConfig) -> Layout:
    """Return how the models of a run lie in memory."""
    model, learner, sampler = config.model, config.learner, config.sampler
    layout = Layout(
        width=BYTES[model.dtype],
        lora=None if model.lora is None else Lora(model.lora.rank, tuple(model.lora.target_modules)),
        checkpointing=model.gradient_checkpointing,
        logits_mib=learner.logits_mib,
        shared_prm=config.prm.backbone == "shared",
        stage=learner.deepspeed.stage if learner.backend == "deepspeed" else 0,
        offload=learner.deepspeed.offload if learner.backend == "deepspeed" else "none",
    )
    if not isinstance(sampler, VllmSamplerConfig):
        return replace(layout, kept_mib=sampler.kept_mib if config.env.window is None else 0)
    return replace(
        layout,
        sampler="vllm",
        sampler_width=BYTES[sampler.dtype],
        sampler_frac=sampler.gpu_memory_utilization,
        tensor_parallel=sampler.tensor_parallel_size,
        colocated=sampler.mode == "engine",
        sleeps=sampler.sleep,
    )


def read_cast(config: cfg.RunConfig) -> Cast:
    """Return which models a run needs besides its policy."""
    methods = methods_of(config.credit)
    has_prm = any(method.uses_prm for method in methods)
    reference = config.prm.reference or ("frozen" if _has(methods, PrimeCredit) else "rolling")
    return Cast(
        prm=has_prm,
        follower=has_prm and reference == "ema",
        critic=isinstance(config.algorithm, PpoConfig),
        reference=config.algorithm.loss.kl is not None
        or (has_prm and reference == "frozen")
        or _has(methods, IstarOfficialCredit),
        centers=has_prm
        and (
            config.prm.score == "centered_sum"
            or any(getattr(m, "center", "none") == "policy_kl" for m in methods)
        ),
    )


def read_workload(
    config: cfg.RunConfig,
    *,
    steps: int | None = None,
    prompt_tokens: int | None = None,
    response_tokens: int | None = None,
) -> Workload:
    """Return what an iteration plays; what is not given is the configuration's limit.

    Args:
        config: The configuration.
        steps: Expected replies in a trajectory.
        prompt_tokens: Expected length of a prompt; of the last one if the dialogue grows.
        response_tokens: Expected length of a reply.

    Raises:
        ConfigError: If the environment does not say how many steps it allows and ``steps`` is not given.
    """
    rollout = config.rollout
    return Workload.of(
        rollout.num_tasks,
        rollout.group_size,
        steps=steps or _step_limit(config.env),
        prompt=prompt_tokens or rollout.max_prompt_tokens,
        response=response_tokens or rollout.max_response_tokens,
        grows=config.env.window is None,
        merges=config.learner.merge_prefixes,
    )


def _step_limit(env: cfg.EnvConfig) -> int:
    """Return the replies that an episode allows; the environment is only made if its options do not say."""
    if "max_steps" in env.kwargs:
        return int(env.kwargs["max_steps"])
    if "max_turns" in env.kwargs:
        return -(-int(env.kwargs["max_turns"]) // 2)
    made: gym.Env[Any, Any] = make_env(env, "train")
    core: Any = made.unwrapped
    made.close()
    if hasattr(core, "max_steps"):
        return int(core.max_steps)
    if hasattr(core, "max_turns"):
        return -(-int(core.max_turns) // 2)
    raise ConfigError(f"{env.id} does not say how many steps an episode has. Give --steps.")


def _has(methods: tuple[Method, ...], kind: type[Method]) -> bool:
    return any(isinstance(method, kind) for method in methods)
