"""``istar doctor``: what is installed, and whether training with lr = 0 changes nothing.

The self-check plays a few tasks with a tiny random model, scores them with the learner and takes
one optimizer step at learning rate 0. Sampler and learner must agree, the ratio must be exactly 1
and nothing may be clipped (spec §7.1).
"""

import tempfile
from pathlib import Path

import torch
from rich.table import Table

from istar_trainer.advantages import rloo_advantages, spread_over_tokens
from istar_trainer.batch import collate
from istar_trainer.config import LearnerConfig, RunConfig
from istar_trainer.config_algorithms import LossConfig
from istar_trainer.config_credits import NoCredit
from istar_trainer.factories import make_env, make_learner, make_players, make_sampler
from istar_trainer.folder import describe_machine
from istar_trainer.learner import Optimization
from istar_trainer.rollout import Task
from istar_trainer.tiny import init_tiny
from istar_trainer.update import PolicyBatch, update_policy

_AGREEMENT = 1e-4
"""Largest |Δ logprob| between sampler and learner in fp32: they sum in another order."""


def examine() -> tuple[Table, bool]:
    """Run the checks.

    Returns:
        A table for people, and whether everything is well.
    """
    table = Table(title="istar doctor", show_header=False)
    for key, value in describe_machine().items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        table.add_row(key, "none" if shown in ([], None) else str(shown))
    checks = check_update_with_lr_zero()
    for name, (value, is_well) in checks.items():
        table.add_row(
            name, f"{value:.3g} {'ok' if is_well else 'WRONG'}", style=None if is_well else "bold red"
        )
    return table, all(is_well for _, is_well in checks.values())


def check_update_with_lr_zero() -> dict[str, tuple[float, bool]]:
    """Train one iteration with lr = 0.

    Returns:
        Each check with its value and whether it holds.
    """
    config = RunConfig(credit=NoCredit())
    with tempfile.TemporaryDirectory() as folder:
        env = make_env(config.env, "train")
        path = init_tiny(
            env,
            Path(folder) / "m",
            template="bare-v1",
            window=0,
            hidden_size=32,
            num_layers=2,
            num_heads=2,
            seed=0,
        )
        env.close()
        learner, tokenizer = make_learner(path, config, Optimization(lr=0.0, weight_decay=0.0, grad_clip=1.0))
    player = make_players(config, tokenizer)["train"]
    groups = player.play(
        [Task(str(seed), seed) for seed in range(4)],
        make_sampler(config, learner, tokenizer),
        group_size=4,
        seed=0,
        temperature=1.0,
    )
    player.close()
    batch = collate([t for g in groups for t in g.trajectories], [g.id for g in groups])
    before = learner.snapshot()
    old = learner.logprobs(batch)
    returns = torch.tensor([t.episode.episode_return for g in groups for t in g.trajectories])
    trajectory_groups = torch.arange(4).repeat_interleave(4)
    advantages = rloo_advantages(returns, trajectory_groups, torch.ones(16, dtype=torch.bool))
    tokens = spread_over_tokens(advantages[batch.trajectory_index], batch.response_mask)
    data = PolicyBatch(batch, old, tokens, batch.weights)
    metrics = update_policy(learner, data, LossConfig(), LearnerConfig(lr=0.0), seed=0)
    mismatch = float((old - batch.sampler_logprobs)[batch.response_mask].abs().max())
    moved = max(float((v - before[k]).abs().max()) for k, v in learner.snapshot().items())
    deviation = metrics["ratio/first_minibatch_max_dev"]
    clipped = metrics["ratio/first_minibatch_clip_frac"]
    return {
        "largest |Δ logprob| sampler – learner": (mismatch, mismatch < _AGREEMENT),
        "largest |ratio − 1| before the update": (deviation, deviation == 0.0),
        "share clipped before the update": (clipped, clipped == 0.0),
        "largest weight change at lr = 0": (moved, moved == 0.0),
    }
