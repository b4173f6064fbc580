"""Invariants of the specification (section 8, P6, P7, P8 and P15) on random batches of a tiny model."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from builders import (
    FLOAT32,
    RecordingLearner,
    Scene,
    assert_same_tensors,
    gradients,
    make_learner,
    make_scene,
)
from istar_trainer.advantages import spread_over_tokens
from istar_trainer.batch import StepBatch
from istar_trainer.config import LearnerConfig
from istar_trainer.config_algorithms import LossConfig
from istar_trainer.config_credits import PrmConfig
from istar_trainer.prm import ImplicitPrm
from istar_trainer.update import PolicyBatch, update_policy

pytestmark = pytest.mark.property
SETTINGS = settings(max_examples=12, deadline=None)
GRADIENT = 2e-5
"""fp32 gradients summed in another order; their entries are of the size of 1."""

outcomes = st.lists(st.lists(st.booleans(), min_size=1, max_size=3), min_size=1, max_size=3)
scenes = st.tuples(st.integers(0, 10_000), outcomes)
"""Arguments of ``make_scene``."""
seeds = st.integers(0, 10_000)


def prm_gradient(
    scene: Scene, batch: StepBatch, *, tokens: int = 10_000, score: str = "sum"
) -> dict[str, Tensor]:
    """Gradient of one PRM update on a batch that holds the scene's rows in some form."""
    policy, learner = make_learner(), make_learner(seed=1, micro_batch_tokens=tokens)
    prm = ImplicitPrm(learner, policy, PrmConfig(score=score, beta=0.5), with_centers=False)
    old_logprobs = policy.logprobs(batch)
    scores = prm.score(batch, old_logprobs)
    prm.update(batch, old_logprobs, scene.pairs, len(scene.outcomes), scores)
    return learner.gradients[0] if learner.gradients else {}


def policy_gradient(batch: StepBatch, advantages: Tensor, *, tokens: int = 10_000) -> dict[str, Tensor]:
    learner = make_learner(seed=2, micro_batch_tokens=tokens)
    old_logprobs = make_learner().logprobs(batch)
    of_tokens = spread_over_tokens(advantages, batch.response_mask)
    data = PolicyBatch(batch, old_logprobs, of_tokens, batch.weights)
    update_policy(learner, data, LossConfig(), LearnerConfig(), seed=0)
    return learner.gradients[0]


def advantages_of(scene: Scene) -> Tensor:
    return torch.randn(len(scene.batch), generator=torch.Generator().manual_seed(0))


def widened(batch: StepBatch, left: int, right: int, fill: int) -> StepBatch:
    """The same rows in a wider rectangle, with any token as padding."""

    def pad(values: Tensor, value: float = 0) -> Tensor:
        return torch.nn.functional.pad(values, (left, right), value=value)

    attention = pad(batch.attention_mask)
    ids = torch.where(attention, pad(batch.input_ids), fill)
    return replace(
        batch,
        input_ids=ids,
        attention_mask=attention,
        response_mask=pad(batch.response_mask),
        sampler_logprobs=pad(batch.sampler_logprobs),
    )


@SETTINGS
@given(scenes, seeds, st.sampled_from([1, 25, 60]), st.sampled_from(["sum", "mean", "centered_sum"]))
def test_order_of_rows_and_micro_batches_change_neither_gradient(drawn, seed, tokens, score):
    scene = make_scene(*drawn)
    order = torch.randperm(len(scene.batch), generator=torch.Generator().manual_seed(seed))
    shuffled, advantages = scene.batch.select(order), advantages_of(scene)
    expected = prm_gradient(scene, scene.batch, score=score)
    assert_same_tensors(prm_gradient(scene, shuffled, tokens=tokens, score=score), expected, atol=GRADIENT)
    assert_same_tensors(
        policy_gradient(shuffled, advantages[order], tokens=tokens),
        policy_gradient(scene.batch, advantages),
        atol=GRADIENT,
    )


@SETTINGS
@given(scenes, st.integers(0, 4), st.integers(0, 4), st.integers(0, 23))
def test_padding_of_any_width_and_token_changes_nothing(drawn, left, right, fill):
    scene = make_scene(*drawn)
    wide, advantages = widened(scene.batch, left, right, fill), advantages_of(scene)
    learner = make_learner()
    width = scene.batch.input_ids.shape[1]
    inner = learner.logprobs(wide)[:, left : left + width]
    torch.testing.assert_close(inner, learner.logprobs(scene.batch), rtol=0, atol=FLOAT32)
    assert_same_tensors(prm_gradient(scene, wide), prm_gradient(scene, scene.batch), atol=GRADIENT)
    assert_same_tensors(
        policy_gradient(wide, advantages), policy_gradient(scene.batch, advantages), atol=GRADIENT
    )


@SETTINGS
@given(scenes, seeds)
def test_there_are_logits_for_response_tokens_only_and_all_carry_gradient(drawn, seed):
    scene = make_scene(*drawn)
    learner: RecordingLearner = make_learner()
    rows = torch.arange(len(scene.batch))
    out = learner.forward(scene.batch, rows)
    out.states.retain_grad()
    weights = torch.randn(scene.batch.input_ids.shape, generator=torch.Generator().manual_seed(seed))
    (out.logprobs() * weights).sum().backward()
    assert len(out.states) == out.mask.sum()
    assert out.states.grad.abs().sum(-1).gt(0).all()


@SETTINGS
@given(scenes, st.integers(1, 3))
def test_rows_of_weight_0_carry_no_gradient(drawn, num_extra):
    scene = make_scene(*drawn)
    rows = torch.tensor([*range(len(scene.batch)), *([0] * num_extra)])
    filled, advantages = scene.batch.select(rows), advantages_of(scene)[rows]
    filled.weights[len(scene.batch) :] = 0
    assert_same_tensors(prm_gradient(scene, filled), prm_gradient(scene, scene.batch), atol=GRADIENT)
    assert_same_tensors(
        policy_gradient(filled, advantages), policy_gradient(scene.batch, advantages_of(scene)), atol=GRADIENT
    )


@SETTINGS
@given(scenes)
def test_rows_held_twice_get_the_logprobs_of_one(drawn):
    scene = make_scene(*drawn)
    learner = make_learner()
    doubled = scene.batch.select(torch.arange(len(scene.batch)).repeat(2))
    once = learner.logprobs(scene.batch)
    torch.testing.assert_close(learner.logprobs(doubled), once.repeat(2, 1), rtol=0, atol=FLOAT32)
    learner.backward(doubled, lambda out, _rows: out.logprobs().sum() / 2)
    twice = gradients(learner.model)
    learner.optimizer.zero_grad()
    learner.backward(scene.batch, lambda out, _rows: out.logprobs().sum())
    size = max(float(g.abs().max()) for g in twice.values())
    assert_same_tensors(twice, gradients(learner.model), atol=1e-5 * max(1.0, size))
