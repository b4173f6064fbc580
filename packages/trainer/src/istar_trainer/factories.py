"""Makes single parts of a run from its configuration: environments, players, learners, samplers."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym

import istar_envs
from istar_trainer import config as cfg
from istar_trainer.config_algorithms import CriticConfig
from istar_trainer.config_sampler import VllmSamplerConfig
from istar_trainer.critic import load_critic
from istar_trainer.learner import Optimization, TorchLearner, TorchModel
from istar_trainer.model import load_model
from istar_trainer.rollout import Player
from istar_trainer.sampler import LocalSampler, PolicySampler
from istar_trainer.vllm.build import make_vllm_sampler


def make_env(config: cfg.EnvConfig, split: str) -> gym.Env[Any, Any]:
    """Make the configured environment on a split (``train`` stands for ``env.train_split``)."""
    name = config.train_split if split == "train" else split
    return istar_envs.make(config.id, split=name, **config.kwargs)


def make_learner(
    model_path: Path, config: cfg.RunConfig, optimization: Optimization
) -> tuple[TorchLearner, Any]:
    """Load a model and give it an optimizer; returns the tokenizer too."""
    model, tokenizer = load_model(model_path)
    learner = TorchLearner(
        model,
        optimization,
        temperature=config.rollout.temperature,
        micro_batch_tokens=config.learner.micro_batch_tokens,
    )
    return learner, tokenizer


def load_reference(model_path: Path, config: cfg.RunConfig) -> TorchModel:
    """Load the frozen start policy."""
    return TorchModel(
        load_model(model_path)[0],
        temperature=config.rollout.temperature,
        micro_batch_tokens=config.learner.micro_batch_tokens,
    )


def load_critic_learner(model_path: Path, config: cfg.RunConfig, critic: CriticConfig) -> TorchLearner:
    """Load the start policy as a critic, with an optimizer."""
    return TorchLearner(
        load_critic(model_path),
        Optimization(critic.lr, critic.weight_decay, critic.grad_clip),
        temperature=1.0,
        micro_batch_tokens=config.learner.micro_batch_tokens,
    )


def policy_optimization(config: cfg.RunConfig) -> Optimization:
    """Optimizer settings of the policy during reinforcement learning."""
    return Optimization(config.learner.lr, config.learner.weight_decay, config.learner.grad_clip)


def make_players(config: cfg.RunConfig, tokenizer: Any) -> dict[str, Player]:
    """Make one player per split."""
    return {
        split: Player(
            partial(make_env, config.env, split),
            tokenizer,
            template=config.env.template,
            window=config.env.window,
            max_prompt_tokens=config.rollout.max_prompt_tokens,
        )
        for split in ("train", "dev", "test")
    }


def make_sampler(config: cfg.RunConfig, learner: TorchLearner, tokenizer: Any) -> LocalSampler:
    """Make the in-process sampler of a learner's own model."""
    return LocalSampler(
        learner.model,
        eos_token_id=tokenizer.eos_token_id,
        max_new_tokens=config.rollout.max_response_tokens,
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
        eos_token_id=tokenizer.eos_token_id,
        max_prompt_tokens=config.rollout.max_prompt_tokens,
        max_new_tokens=config.rollout.max_response_tokens,
    )
