"""Makes single parts of a run from its configuration: environments, players, learners, samplers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import torch
from torch import nn

import istar_envs
from istar_trainer import config as cfg
from istar_trainer.config_algorithms import CriticConfig
from istar_trainer.config_sampler import LocalSamplerConfig, VllmSamplerConfig
from istar_trainer.critic import with_value_head
from istar_trainer.devices import find_device
from istar_trainer.distributed.ranks import num_ranks
from istar_trainer.distributed.sharded import ShardedLearner, ShardedModel
from istar_trainer.distributed.sharing import SharedPlayer
from istar_trainer.distributed.zero import DeepSpeedLearner
from istar_trainer.footprint import multiply_in_bfloat16, recompute_layers
from istar_trainer.head import head_of
from istar_trainer.learner import Optimization, TorchLearner, TorchModel
from istar_trainer.lora import AdaptedModel, Backbone
from istar_trainer.rollout import Player
from istar_trainer.sampler import LocalSampler, PolicySampler
from istar_trainer.vision import freeze_vision
from istar_trainer.vllm.build import make_vllm_sampler
from istar_trainer.weights import load_model


def make_env(config: cfg.EnvConfig, split: str) -> gym.Env[Any, Any]:
    """Make the configured environment on a split (``train`` stands for ``env.train_split``)."""
    name = config.train_split if split == "train" else split
    return istar_envs.make(config.id, split=name, **config.kwargs)


def load_prepared(
    model_path: Path, config: cfg.RunConfig, change: Callable[[nn.Module], nn.Module] = lambda model: model
) -> tuple[nn.Module, Any]:
    """Load a model as the section ``model`` wants it, with its tokenizer.

    Args:
        model_path: Folder in Hugging Face layout.
        config: Adapters, arithmetic, recomputation, whether the vision tower learns.
        change: Applied to the plain model first.
    """
    settings = config.model
    is_halved = settings.dtype == "bfloat16"
    stored = torch.bfloat16 if is_halved and settings.lora is not None else torch.float32
    model, tokenizer = load_model(model_path, dtype=stored)
    model = model.to(find_device(settings.device))
    if settings.freeze_vision:
        freeze_vision(model)
    if is_halved and settings.lora is None:
        multiply_in_bfloat16(model)
    model = change(model)
    if settings.lora is None:
        if settings.gradient_checkpointing:
            recompute_layers(model)
        return model, tokenizer
    backbone = Backbone(model, settings.lora, seed=config.seed)
    if settings.gradient_checkpointing:
        recompute_layers(model, backbone.as_now)
    return backbone.adapted(), tokenizer


def make_learner(
    model_path: Path, config: cfg.RunConfig, optimization: Optimization
) -> tuple[TorchLearner, Any]:
    """Load a model and give it an optimizer; returns the tokenizer too."""
    model, tokenizer = load_prepared(model_path, config)
    learner = learner_of(model, config.learner, optimization, temperature=config.rollout.temperature)
    return learner, tokenizer


def share_backbone(policy: TorchLearner, config: cfg.RunConfig, optimization: Optimization) -> TorchLearner:
    """Make a learner of a new adapter on the policy's frozen weights."""
    model = cast(AdaptedModel, policy.model).backbone.adapted()
    return learner_of(model, config.learner, optimization, temperature=config.rollout.temperature)


def learner_of(
    model: nn.Module, config: cfg.LearnerConfig, optimization: Optimization, *, temperature: float
) -> TorchLearner:
    """Give a model an optimizer, as the backend and the number of processes ask for."""
    sizes = _sizes(config)
    if config.backend == "deepspeed":
        return DeepSpeedLearner(model, optimization, config.deepspeed, temperature=temperature, **sizes)
    kind = TorchLearner if num_ranks() == 1 else ShardedLearner
    return kind(model, optimization, temperature=temperature, **sizes)


def load_reference(model_path: Path, config: cfg.RunConfig) -> TorchModel:
    """Load the frozen start policy."""
    model, _ = load_prepared(model_path, config)
    return _frozen(model, config)


def start_policy(policy: TorchLearner, model_path: Path, config: cfg.RunConfig) -> TorchModel:
    """Return the frozen start policy; the base below the policy's adapter, if that is what learns."""
    if config.model.lora is None:
        return load_reference(model_path, config)
    return _frozen(cast(AdaptedModel, policy.model).backbone.bare(), config)


def load_critic_learner(model_path: Path, config: cfg.RunConfig, critic: CriticConfig) -> TorchLearner:
    """Load the start policy as a critic, with an optimizer."""
    model, _ = load_prepared(model_path, config, with_value_head)
    head_of(model).requires_grad_(True)  # adapters froze it with the rest
    optimization = Optimization(critic.lr, critic.weight_decay, critic.grad_clip)
    return learner_of(model, config.learner, optimization, temperature=1.0)


def _frozen(model: nn.Module, config: cfg.RunConfig) -> TorchModel:
    kind = TorchModel if num_ranks() == 1 else ShardedModel
    return kind(model, temperature=config.rollout.temperature, **_sizes(config.learner))


def _sizes(config: cfg.LearnerConfig) -> dict[str, Any]:
    names = ("micro_batch_tokens", "logits_mib", "packing", "merge_prefixes")
    return {name: getattr(config, name) for name in names}


def policy_optimization(config: cfg.RunConfig) -> Optimization:
    """Optimizer settings of the policy during reinforcement learning."""
    return Optimization(config.learner.lr, config.learner.weight_decay, config.learner.grad_clip)


def make_players(config: cfg.RunConfig, tokenizer: Any) -> dict[str, Player]:
    """Make one player per split; the processes share its tasks."""
    return {
        split: SharedPlayer(
            partial(make_env, config.env, split),
            tokenizer,
            template=config.env.template,
            window=config.env.window,
            max_prompt_tokens=config.rollout.max_prompt_tokens,
            env_threads=config.rollout.env_threads,
            min_ready_frac=config.rollout.min_ready_frac,
        )
        for split in ("train", "dev", "test")
    }


def make_sampler(config: cfg.RunConfig, learner: TorchLearner, tokenizer: Any) -> LocalSampler:
    """Make the in-process sampler of a learner's own model."""
    local = config.sampler if isinstance(config.sampler, LocalSamplerConfig) else LocalSamplerConfig()
    return LocalSampler(
        learner.sampling_model(),
        eos_token_id=tokenizer.eos_token_id,
        max_new_tokens=config.rollout.max_response_tokens,
        kept_mib=local.kept_mib if config.env.window is None else 0,
    )


def make_policy_sampler(
    config: cfg.RunConfig, learner: TorchLearner, tokenizer: Any, model_path: Path
) -> PolicySampler:
    """Make the configured sampler of a learner whose model was loaded from a folder."""
    if not isinstance(config.sampler, VllmSamplerConfig):
        return make_sampler(config, learner, tokenizer)
    return make_vllm_sampler(
        config.sampler,
        learner.model,
        model_path,
        config.run_dir,
        weights=learner.weights,
        eos_token_id=tokenizer.eos_token_id,
        max_prompt_tokens=config.rollout.max_prompt_tokens,
        max_new_tokens=config.rollout.max_response_tokens,
    )
