"""``istar doctor``: what is installed, and whether training with lr = 0 changes nothing, with any sampler.

The self-check plays a few tasks with a tiny random model, of text and of pictures, changes the weights, plays
again, scores all with the learner and takes one optimizer step at learning rate 0. Sampler and learner must
agree both times, the ratio must be exactly 1 and nothing may be clipped (spec §7.1). It samples in fp32 at a
temperature that is not 1, so that no rounding hides a sampler that reports something else.
"""

import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from istar_trainer.advantages import rloo_advantages, spread_over_tokens
from istar_trainer.attempts import Task
from istar_trainer.batch import StepBatch, collate
from istar_trainer.config import EnvConfig, LearnerConfig, RolloutConfig, RunConfig
from istar_trainer.config_algorithms import LossConfig
from istar_trainer.config_credits import NoCredit
from istar_trainer.config_sampler import LocalSamplerConfig, SamplerConfig, VllmSamplerConfig
from istar_trainer.factories import make_env, make_learner, make_players, make_policy_sampler
from istar_trainer.folder import describe_machine
from istar_trainer.learner import Optimization, TorchLearner
from istar_trainer.sampler import PolicySampler
from istar_trainer.tiny import init_tiny
from istar_trainer.update import PolicyBatch, update_policy

_AGREEMENT = 1e-4
"""Largest |Δ logprob| between sampler and learner in fp32: they sum in another order."""
_TEMPERATURE = 0.7
_TEXT = "istar/Sokoban-v0"
_PICTURES = "istar/VisualSokoban-v0"


def examine(vllm: Path | None = None) -> tuple[Table, bool]:
    """Run the checks with every sampler there is.

    Args:
        vllm: Interpreter that has vLLM; None checks vLLM if it is installed beside the trainer.

    Returns:
        A table for people, and whether everything is well.
    """
    table = Table(title="istar doctor", show_header=False)
    for key, value in describe_machine().items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        table.add_row(key, "none" if shown in ([], None) else str(shown))
    all_well = True
    for sampler in available_samplers(vllm):
        for seen, env_id in (("text", _TEXT), ("pictures", _PICTURES)):
            table.add_section()
            table.add_row(f"[bold]sampler {sampler.type}, {seen}[/]", "")
            for name, (value, is_well) in check_update_with_lr_zero(sampler, env_id).items():
                all_well &= is_well
                verdict = "ok" if is_well else "WRONG"
                style = None if is_well else "bold red"
                table.add_row(name, f"{value:.3g} {verdict}", style=style)
    return table, all_well


def available_samplers(vllm: Path | None) -> Sequence[SamplerConfig]:
    """Return the samplers that can be checked here."""
    if vllm is None and importlib.util.find_spec("vllm") is None:
        return [LocalSamplerConfig()]
    return [LocalSamplerConfig(), VllmSamplerConfig(python=vllm, dtype="float32", probe_band=_AGREEMENT)]


def check_update_with_lr_zero(
    sampler: SamplerConfig | None = None, env_id: str = _TEXT
) -> dict[str, tuple[float, bool]]:
    """Train one iteration with lr = 0.

    Args:
        sampler: What draws the replies; None for the one in this process.
        env_id: What is played; decides whether the model reads text or pictures.

    Returns:
        Each check with its value and whether it holds.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(
            run_dir=Path(folder) / "run",
            env=EnvConfig(id=env_id, kwargs={"max_steps": 4}),
            credit=NoCredit(),
            rollout=RolloutConfig(temperature=_TEMPERATURE),
            sampler=sampler or LocalSamplerConfig(),
        )
        path = _make_model(config, Path(folder) / "m")
        learner, tokenizer = make_learner(path, config, Optimization(lr=0.0, weight_decay=0.0, grad_clip=1.0))
        drawer = make_policy_sampler(config, learner, tokenizer, path)
        try:
            first = _mismatch(learner, _play(config, tokenizer, drawer)[0])
            _change_weights(learner)
            drawer.load(learner.model.state_dict(), 1)
            batch, returns = _play(config, tokenizer, drawer)
        finally:
            drawer.close()
    mismatch = _mismatch(learner, batch)
    before = learner.snapshot()
    metrics = _update(learner, batch, returns)
    moved = max(float((v - before[k]).abs().max()) for k, v in learner.snapshot().items())
    deviation = metrics["ratio/first_minibatch_max_dev"]
    clipped = metrics["ratio/first_minibatch_clip_frac"]
    return {
        "largest |Δ logprob| sampler – learner": (first, first < _AGREEMENT),
        "the same after a change of weights": (mismatch, mismatch < _AGREEMENT),
        "largest |ratio − 1| before the update": (deviation, deviation == 0.0),
        "share clipped before the update": (clipped, clipped == 0.0),
        "largest weight change at lr = 0": (moved, moved == 0.0),
    }


def _make_model(config: RunConfig, out: Path) -> Path:
    """Make a tiny model whose heads are as wide as every sampler's kernels want them."""
    env = make_env(config.env, "train")
    shape = {"hidden_size": 64, "num_layers": 2, "num_heads": 2}
    path = init_tiny(env, out, template="bare-v1", window=0, **shape, seed=0)
    env.close()
    return path


def _play(config: RunConfig, tokenizer: Any, sampler: PolicySampler) -> tuple[StepBatch, torch.Tensor]:
    """Play four tasks four times; returns the rows and the return of each trajectory."""
    player = make_players(config, tokenizer)["train"]
    tasks = [Task(str(seed), seed) for seed in range(4)]
    groups = player.play(tasks, sampler, group_size=4, seed=0, temperature=_TEMPERATURE)
    player.close()
    trajectories = [t for group in groups for t in group.trajectories]
    returns = torch.tensor([t.episode.episode_return for t in trajectories])
    return collate(trajectories, [group.id for group in groups]), returns


def _change_weights(learner: TorchLearner) -> None:
    """Scale every matrix, which changes what every layer does."""
    with torch.no_grad():
        for parameter in learner.model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5)


def _mismatch(learner: TorchLearner, batch: StepBatch) -> float:
    change = (learner.logprobs(batch) - batch.sampler_logprobs)[batch.response_mask]
    return float(change.abs().max())


def _update(learner: TorchLearner, batch: StepBatch, returns: torch.Tensor) -> dict[str, float]:
    groups = torch.arange(4).repeat_interleave(4)
    advantages = rloo_advantages(returns, groups, torch.ones(16, dtype=torch.bool))
    tokens = spread_over_tokens(advantages[batch.trajectory_index], batch.response_mask)
    data = PolicyBatch(batch, learner.logprobs(batch), tokens, batch.weights)
    return update_policy(learner, data, LossConfig(), LearnerConfig(lr=0.0), seed=0)
