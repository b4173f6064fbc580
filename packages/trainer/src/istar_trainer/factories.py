"""Makes single parts of a run from its configuration: environments, players, learners, samplers."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
from torch import nn

import istar_envs
from istar_trainer import config as cfg
from istar_trainer.config_algorithms import CriticConfig
from istar_trainer.critic import load_critic
from istar_trainer.distributed.ranks import num_ranks
from istar_trainer.distributed.sharded import ShardedLearner, ShardedModel
from istar_trainer.distributed.sharing import SharedPlayer
from istar_trainer.distributed.zero import DeepSpeedLearner
from istar_trainer.learner import Optimization, TorchLearner, TorchModel
from istar_trainer.model import load_model
from istar_trainer.rollout import Player
from istar_trainer.sampler import LocalSampler


def make_env(config: cfg.EnvConfig, split: str) -> gym.Env[Any, Any]:
    """Make the configured environment on a split (``train`` stands for ``env.train_split``)."""
    name = config.train_split if split == "train" else split
    return istar_envs.make(config.id, split=name, **config.kwargs)


def make_learner(
    model_path: Path, config: cfg.RunConfig, optimization: Optimization
) -> tuple[TorchLearner, Any]:
    """Load a model and give it an optimizer; returns the tokenizer too."""
    model, tokenizer = load_model(model_path)
    learner = learner_of(model, config.learner, optimization, temperature=config.rollout.temperature)
    return learner, tokenizer


def learner_of(
    model: nn.Module, config: cfg.LearnerConfig, optimization: Optimization, *, temperature: float
) -> TorchLearner:
    """Give a model an optimizer, as the backend and the number of processes ask for."""
    tokens = config.micro_batch_tokens
    if config.backend == "deepspeed":
        return DeepSpeedLearner(
            model, optimization, config.deepspeed, temperature=temperature, micro_batch_tokens=tokens
        )
    kind = TorchLearner if num_ranks() == 1 else ShardedLearner
    return kind(model, optimization, temperature=temperature, micro_batch_tokens=tokens)


def load_reference(model_path: Path, config: cfg.RunConfig) -> TorchModel:
    """Load the frozen start policy."""
    kind = TorchModel if num_ranks() == 1 else ShardedModel
    return kind(
        load_model(model_path)[0],
        temperature=config.rollout.temperature,
        micro_batch_tokens=config.learner.micro_batch_tokens,
    )


def load_critic_learner(model_path: Path, config: cfg.RunConfig, critic: CriticConfig) -> TorchLearner:
    """Load the start policy as a critic, with an optimizer."""
    optimization = Optimization(critic.lr, critic.weight_decay, critic.grad_clip)
    return learner_of(load_critic(model_path), config.learner, optimization, temperature=1.0)


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
        )
        for split in ("train", "dev", "test")
    }


def make_sampler(config: cfg.RunConfig, learner: TorchLearner, tokenizer: Any) -> LocalSampler:
    """Make the in-process sampler of a learner's own model."""
    return LocalSampler(
        learner.sampling_model(),
        eos_token_id=tokenizer.eos_token_id,
        max_new_tokens=config.rollout.max_response_tokens,
    )
