"""A sampler that disagrees with the learner: what is measured, and how the loss is corrected, by hand."""

import math
from dataclasses import replace

import pytest
import torch

from builders import make_learner, make_scene
from istar_trainer.config import LearnerConfig
from istar_trainer.config_algorithms import CorrectionConfig, LossConfig
from istar_trainer.metrics import METRICS
from istar_trainer.mismatch import accepted, importance_weights, mismatch_metrics
from istar_trainer.update import PolicyBatch, correct_for_sampler, update_policy

SAMPLER = torch.tensor([[0.0, -1.0, -2.0, -1.0], [0.0, -3.0, -1.0, 0.0]])
"""Two rows whose first column is the prompt; the second row's last column is padding."""
OLD = SAMPLER + torch.tensor([[9.0, math.log(4), math.log(0.5), 0.0], [9.0, math.log(0.25), 0.0, 9.0]])
MASK = torch.tensor([[False, True, True, True], [False, True, True, False]])


def test_token_weights_are_the_ratios_cut_at_the_cap():
    weights = importance_weights(OLD, SAMPLER, MASK, form="token", cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([[0, 2.0, 0.5, 1.0], [0, 0.25, 1.0, 0]]))


def test_a_step_shares_the_product_or_the_geometric_mean_of_its_ratios():
    product = importance_weights(OLD, SAMPLER, MASK, form="step_product", cap=10.0)
    torch.testing.assert_close(product, torch.tensor([[0, 2.0, 2.0, 2.0], [0, 0.25, 0.25, 0]]))
    mean = importance_weights(OLD, SAMPLER, MASK, form="step_geo", cap=10.0)
    first = 2 ** (1 / 3)
    torch.testing.assert_close(mean, torch.tensor([[0, first, first, first], [0, 0.5, 0.5, 0]]))


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("token", [[False, False, True, True], [False, False, True, False]]),
        ("step_product", [[False, True, True, True], [False, False, False, False]]),
        ("step_geo", [[False, True, True, True], [False, True, True, False]]),
    ],
)
def test_only_ratios_inside_the_band_are_accepted(form, expected):
    inside = accepted(OLD, SAMPLER, MASK, form=form, low=0.49, high=2.01)
    assert inside.tolist() == expected


def test_disagreement_by_hand():
    metrics = mismatch_metrics(OLD, SAMPLER, MASK, clip_low=0.2, clip_high=0.2)
    changes = [math.log(4), math.log(0.5), 0.0, math.log(0.25), 0.0]
    assert metrics["mismatch/abs_mean"] == pytest.approx(sum(map(abs, changes)) / 5)
    assert metrics["mismatch/abs_max"] == pytest.approx(math.log(4))
    assert metrics["mismatch/k3"] == pytest.approx(sum(math.exp(d) - 1 - d for d in changes) / 5)
    assert metrics["mismatch/beyond_clip_frac"] == pytest.approx(3 / 5)
    assert mismatch_metrics(OLD, SAMPLER, MASK, clip_low=0.8, clip_high=0.2)[
        "mismatch/beyond_clip_frac"
    ] == pytest.approx(1 / 5)


def test_without_tokens_there_is_no_disagreement():
    metrics = mismatch_metrics(OLD, SAMPLER, torch.zeros_like(MASK), clip_low=0.2, clip_high=0.2)
    assert set(metrics.values()) == {0.0}


def disagreeing(**changes: float) -> PolicyBatch:
    """Rows whose sampler agrees with the learner, but for log-ratios of chosen ``row,token`` keys."""
    scene, learner = make_scene(), make_learner()
    old = learner.logprobs(scene.batch)
    sampler = old.clone()
    for key, log_ratio in changes.items():
        row, token = map(int, key[1:].split("_"))
        place = scene.batch.response_mask[row].nonzero()[token]
        sampler[row, place] = old[row, place] - log_ratio
    batch = replace(scene.batch, sampler_logprobs=sampler)
    advantages = torch.where(batch.response_mask, 1.0 + torch.arange(len(batch))[:, None], 0.0)
    return PolicyBatch(batch, old, advantages, batch.weights)


def first_loss(data: PolicyBatch, **loss) -> dict[str, float]:
    return update_policy(make_learner(lr=0.0), data, LossConfig(**loss), LearnerConfig(lr=0.0), seed=0)


def test_no_correction_is_the_default_and_one_without_disagreement_changes_nothing():
    data = disagreeing()
    plain = first_loss(data)
    assert not plain.keys() & {"mismatch/weight_mean", "mismatch/rejected_frac"}
    corrected = first_loss(data, correction=CorrectionConfig(reject="step_product"))
    assert corrected["policy/loss"] == plain["policy/loss"]
    assert corrected["mismatch/weight_mean"] == pytest.approx(1.0)
    assert corrected["mismatch/capped_frac"] == corrected["mismatch/rejected_frac"] == 0.0
    assert corrected.keys() <= METRICS.keys()


def test_weights_multiply_the_losses_of_their_tokens():
    data = disagreeing(r1_0=math.log(1.5), r2_0=math.log(8))
    tokens = data.batch.response_mask.sum().item()
    values = data.advantages[data.batch.response_mask]
    plain = first_loss(data, aggregation="token_mean")
    assert plain["policy/loss"] == pytest.approx(-float(values.mean()), rel=1e-5)
    corrected = first_loss(data, aggregation="token_mean", correction=CorrectionConfig(weight_cap=3.0))
    extra = 0.5 * 2.0 + 2.0 * 3.0  # (w − 1)·A of the two tokens; the second weight is cut at 3
    assert corrected["policy/loss"] == pytest.approx(-(float(values.sum()) + extra) / tokens, rel=1e-5)
    assert corrected["mismatch/capped_frac"] == pytest.approx(1 / tokens)
    assert corrected["mismatch/weight_mean"] == pytest.approx(1 + (0.5 + 2.0) / tokens)


def test_what_is_rejected_leaves_numerator_and_denominator():
    data = disagreeing(r1_0=math.log(8))
    mask = data.batch.response_mask.clone()
    correction = CorrectionConfig(weight=None, reject="token")
    mask[1, mask[1].nonzero()[0]] = False
    by_token = first_loss(data, aggregation="token_mean", correction=correction)
    assert by_token["policy/loss"] == pytest.approx(-float(data.advantages[mask].mean()), rel=1e-5)
    mask[1] = False
    whole = CorrectionConfig(weight=None, reject="step_product")
    by_step = first_loss(data, aggregation="token_mean", correction=whole)
    assert by_step["policy/loss"] == pytest.approx(-float(data.advantages[mask].mean()), rel=1e-5)
    num = int(data.batch.response_mask.sum())
    assert by_step["mismatch/rejected_frac"] == pytest.approx(1 - int(mask.sum()) / num)


def test_a_batch_that_is_rejected_whole_moves_nothing():
    data = disagreeing()
    far = replace(data, batch=replace(data.batch, sampler_logprobs=data.old_logprobs - 5.0))
    learner = make_learner(lr=1e-2)
    before = learner.snapshot()
    loss = LossConfig(correction=CorrectionConfig(reject="token"))
    metrics = update_policy(learner, far, loss, LearnerConfig(lr=1e-2, weight_decay=0.0), seed=0)
    assert metrics["mismatch/rejected_frac"] == 1.0
    assert metrics["policy/loss"] == metrics["policy/grad_norm"] == 0.0
    after = learner.snapshot()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_rows_of_weight_0_are_not_counted():
    data = disagreeing(r1_0=math.log(8))
    weights = data.batch.weights.clone()
    weights[1] = 0
    padded = replace(data, weights=weights)
    correction = CorrectionConfig(reject="token")
    _, metrics = correct_for_sampler(padded, LossConfig(correction=correction))
    assert metrics["mismatch/abs_max"] == metrics["mismatch/rejected_frac"] == 0.0
