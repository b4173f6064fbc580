"""Every algorithm with every credit method: nothing but rounding depends on how rows are laid out.

The names are read from the registries. The whole way is compared, from the models' logprobs over
both parts of the advantages to the gradient of the policy's first update.
"""

import copy
import random
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import istar_envs
from builders import RecordingLearner, ScriptedSampler, all_pairs
from istar_envs.actions import format_reply
from istar_trainer.advantages import combine_advantages
from istar_trainer.algorithms import ALGORITHMS, AlgorithmParts, make_algorithm
from istar_trainer.attempts import Task
from istar_trainer.batch import StepBatch, collate
from istar_trainer.config import LearnerConfig
from istar_trainer.config_algorithms import KlConfig
from istar_trainer.config_credits import PrmConfig
from istar_trainer.credits import CREDITS, BatchOutcomes, CreditParts, make_credit
from istar_trainer.critic import with_value_head
from istar_trainer.learner import Optimization
from istar_trainer.prm import Pairs
from istar_trainer.rollout import Player
from istar_trainer.update import PolicyBatch, token_rewards, update_policy
from istar_trainer.weights import load_model

WORDS = ("up", "down", "left", "right", "jump")
TOLERANCE = 2e-4
"""fp32 logprobs are good to 1e-5, and whitening divides by deviations down to about 0.1."""

new_env = partial(istar_envs.make, "istar/Sokoban-v0", split="train", levels="istar-6x6-1", max_steps=3)


@dataclass(frozen=True)
class World:
    """Judged games of random moves, and the models that all methods start from."""

    batch: StepBatch
    outcomes: BatchOutcomes
    pairs: Pairs
    policy: nn.Module
    other: nn.Module


@dataclass(frozen=True)
class Result:
    """What a batch is made of, row by row, and what the policy learns from it."""

    advantages: Tensor
    step_rewards: Tensor
    gradient: dict[str, Tensor]


@pytest.fixture(scope="module")
def world(tiny_folder, tiny_tokenizer) -> World:
    rng = random.Random(0)
    sampler = ScriptedSampler(tiny_tokenizer, lambda _request: format_reply((rng.choice(WORDS),)))
    player = Player(new_env, tiny_tokenizer, template="bare-v1", window=0, max_prompt_tokens=500)
    tasks = [Task(f"g{number}", number) for number in range(3)]
    groups = player.play(tasks, sampler, group_size=3, seed=0, temperature=1.0)
    player.close()
    trajectories = [t for group in groups for t in group.trajectories]
    outcomes = BatchOutcomes(
        values=torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
        has_outcome=torch.tensor([True] * 8 + [False]),
        groups=torch.arange(3).repeat_interleave(3),
        successes=torch.tensor([True, False, False, True, True, False, False, False, False]),
        episodes=tuple(t.episode for t in trajectories),
    )
    batch = collate(trajectories, [group.id for group in groups])
    policy, other = (shaken(load_model(tiny_folder)[0], seed) for seed in (1, 2))
    return World(batch, outcomes, all_pairs(outcomes), policy, other)


def shaken(model: nn.Module, seed: int) -> nn.Module:
    """Move all weights so far that models of different seeds disagree about every token."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def evaluate(
    world: World, algorithm: str, credit: str, batch: StepBatch, micro_batch_tokens: int = 10_000
) -> Result:
    def learner(model: nn.Module, optimization: Optimization) -> RecordingLearner:
        return RecordingLearner(
            copy.deepcopy(model), optimization, temperature=1.0, micro_batch_tokens=micro_batch_tokens
        )

    def new_critic(_config: object) -> RecordingLearner:
        model = with_value_head(copy.deepcopy(world.other))
        return learner(shaken(model, 3), Optimization(1e-3, 0.0, 1.0))

    policy = learner(world.policy, Optimization(1e-3, 0.0, 1e9))
    reference = learner(world.other, Optimization(0.0, 0.0, 1.0))
    method = make_algorithm(
        named(ALGORITHMS, algorithm), AlgorithmParts(new_critic, LearnerConfig(), 16, seed=0)
    )
    parts = CreditParts(
        policy=policy,
        prm=PrmConfig(beta=0.5, lr=1e-3),
        new_learner=lambda optimization, _path: learner(world.other, optimization),
        reference=lambda: reference,
        new_env=new_env,
    )
    old = policy.logprobs(batch)
    extra = token_rewards(KlConfig(coef=0.1, place="reward"), batch, old, reference.logprobs(batch))
    outcome_part = method.advantages(batch, world.outcomes, extra)
    step_part = make_credit(named(CREDITS, credit), parts).assign(batch, old, world.outcomes, world.pairs)
    advantages = combine_advantages(
        outcome_part.tokens, step_part.advantages, replaces_outcome=step_part.replaces_outcome
    )
    weights = batch.weights * world.outcomes.has_outcome[batch.trajectory_index]
    update_policy(policy, PolicyBatch(batch, old, advantages, weights), method.loss, LearnerConfig(), seed=0)
    return Result(advantages, step_part.step_rewards, policy.gradients[0])


def named(registry: Any, name: str) -> Any:
    """The configuration of that name with its defaults."""
    return next(config() for config in registry if config().type == name)


def laid_out_anew(batch: StepBatch) -> tuple[StepBatch, Tensor]:
    """The same rows in another order, wider, and with copies in between that do not count.

    Returns:
        The batch, and which row of the original each of its rows is.
    """
    rows = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    rows = torch.cat([rows[:2], torch.tensor([4, 0, 4]), rows[2:]])
    weights = torch.ones(len(rows))
    weights[2:5] = 0
    names = ("input_ids", "attention_mask", "response_mask", "sampler_logprobs")
    wider = {name: F.pad(getattr(batch, name), (2, 3))[rows] for name in names}
    return replace(batch.select(rows), weights=weights, **wider), rows


@pytest.mark.parametrize("credit", [config().type for config in CREDITS])
@pytest.mark.parametrize("algorithm", [config().type for config in ALGORITHMS])
def test_order_padding_filling_and_splitting_of_rows_change_only_the_rounding(world, algorithm, credit):
    expected = evaluate(world, algorithm, credit, world.batch)
    assert all(value.isfinite().all() for value in expected.gradient.values())
    assert any(value.abs().max() > 10 * TOLERANCE for value in expected.gradient.values())
    batch, rows = laid_out_anew(world.batch)
    actual = evaluate(world, algorithm, credit, batch, micro_batch_tokens=150)
    assert actual.advantages[~batch.response_mask].eq(0).all()
    counts = batch.weights > 0
    at, wanted = batch.response_mask[counts], world.batch.response_mask[rows[counts]]
    pairs = {
        "advantages": (actual.advantages[counts][at], expected.advantages[rows[counts]][wanted]),
        "step rewards": (actual.step_rewards[counts], expected.step_rewards[rows[counts]]),
        **{key: (actual.gradient[key], value) for key, value in expected.gradient.items()},
    }
    for key, (one, other) in pairs.items():
        difference = float((one - other).abs().max()) / max(1.0, float(other.abs().max()))
        assert difference < TOLERANCE, f"{key} differ by {difference:.2g}"
