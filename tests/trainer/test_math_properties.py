"""Invariants of the specification (section 8, P1–P19 and P22) that need no model, on random batches.

The whole path from log-probabilities to both losses runs in float64; results must agree to 1e-9,
far above its rounding and far below any real difference.
"""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_math import (
    BETA,
    PUBLISHED,
    TOLERANCE,
    advantages_of,
    all_pairs,
    assert_same,
    batch_weights,
    batches,
    chosen,
    evaluate,
    options_of_all_kinds,
    pairs_of,
    random_batch,
    seeds,
    step_values,
    token_losses,
)
from torch import Tensor

from istar_trainer.advantages import (
    grpo_advantages,
    normalize_step_rewards,
    rloo_advantages,
)
from istar_trainer.attribution import attribute_credit, step_centers, token_kl
from istar_trainer.implicit_reward import (
    pair_loss,
    pair_weights,
    two_pass_surrogate,
)
from istar_trainer.losses import aggregate
from istar_trainer.masked import group_mean, group_std


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(batches, options_of_all_kinds, seeds)
def test_order_of_rows_changes_nothing(batch, options, seed):
    order = torch.randperm(len(batch.step), generator=torch.Generator().manual_seed(seed))
    assert_same(evaluate(batch.rows(order), options), evaluate(batch, options), order)


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(batches, options_of_all_kinds, seeds)
def test_names_of_trajectories_and_groups_change_nothing(batch, options, seed):
    generator = torch.Generator().manual_seed(seed)
    old_number = torch.randperm(len(batch.groups), generator=generator)  # of the new trajectory i
    renamed = replace(
        batch,
        trajectory=old_number.argsort()[batch.trajectory],
        groups=torch.randperm(100, generator=generator)[batch.groups][old_number] - 50,
        outcomes=batch.outcomes[old_number],
        has_outcome=batch.has_outcome[old_number],
    )
    assert_same(evaluate(renamed, options), evaluate(batch, options), torch.arange(len(batch.step)))


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(batches, options_of_all_kinds, st.integers(0, 3), st.integers(0, 3))
def test_padding_on_either_side_changes_nothing(batch, options, left, right):
    def pad(values: Tensor, fill: float | bool) -> Tensor:
        before = values.new_full((len(values), left, *values.shape[2:]), fill)
        after = values.new_full((len(values), right, *values.shape[2:]), fill)
        return torch.cat([before, values, after], dim=1)

    padded = replace(
        batch,
        old_logits=pad(batch.old_logits, 9.0),
        prm_logits=pad(batch.prm_logits, torch.inf),
        logits=pad(batch.logits, -torch.inf),
        tokens=pad(batch.tokens, 0),
        mask=pad(batch.mask, False),
    )
    actual, expected = evaluate(padded, options), evaluate(batch, options)
    end = left + batch.mask.shape[1]
    actual = replace(
        actual,
        prm_gradient=actual.prm_gradient[:, left:end],
        advantages=actual.advantages[:, left:end],
        policy_gradient=actual.policy_gradient[:, left:end],
    )
    assert_same(actual, expected, torch.arange(len(batch.step)))


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(batches, options_of_all_kinds, st.integers(1, 4))
def test_rows_of_weight_0_change_nothing(batch, options, num_extra):
    rows = torch.arange(len(batch.step))
    filled = batch.rows(torch.cat([rows, rows[:1].expand(num_extra)]))
    is_extra = torch.arange(len(filled.step)) >= len(rows)
    filled = replace(
        filled,
        valid=~is_extra,
        prm_logits=torch.where(is_extra[:, None, None], 50.0, filled.prm_logits),
        logits=torch.where(is_extra[:, None, None], -50.0, filled.logits),
    )
    result = evaluate(filled, options)
    assert_same(result, evaluate(batch, options), rows)
    assert result.prm_gradient[len(rows) :].eq(0).all()
    assert result.policy_gradient[len(rows) :].eq(0).all()


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(batches, options_of_all_kinds, seeds)
def test_values_at_positions_that_were_not_sampled_change_nothing(batch, options, seed):
    torch.manual_seed(seed)

    def disturb(logits: Tensor) -> Tensor:
        return torch.where(batch.mask[..., None], logits, 30 * torch.randn_like(logits))

    disturbed = replace(
        batch,
        old_logits=disturb(batch.old_logits),
        prm_logits=disturb(batch.prm_logits),
        logits=disturb(batch.logits),
        tokens=torch.where(batch.mask, batch.tokens, 0),
    )
    assert_same(evaluate(disturbed, options), evaluate(batch, options), torch.arange(len(batch.step)))


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(batches, options_of_all_kinds, st.integers(1, 7), seeds)
def test_split_into_micro_batches_changes_neither_gradient(batch, options, size, seed):
    whole = evaluate(batch, options)
    prm_logits = batch.prm_logits.clone().requires_grad_()
    logits = batch.logits.clone().requires_grad_()
    pair, by_row = pairs_of(batch, batch.prm_logits, options)
    by_token = batch_weights(batch, options)
    order = torch.randperm(len(batch.step), generator=torch.Generator().manual_seed(seed))
    policy_loss = torch.zeros((), dtype=torch.float64)
    for rows in order.split(size):
        part = batch.rows(rows)
        values = step_values(part, prm_logits[rows], options)
        two_pass_surrogate(values, part.trajectory, by_row[rows], pair.coefficients).backward()
        losses = token_losses(part, logits[rows], whole.advantages[rows], options)
        share = aggregate(losses, by_token[rows])
        share.backward()
        policy_loss += share.detach()
    split = replace(whole, prm_gradient=prm_logits.grad, policy_loss=policy_loss, policy_gradient=logits.grad)
    assert_same(split, whole, torch.arange(len(batch.step)))


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(batches, seeds)
def test_pair_loss_knows_only_differences_inside_a_group(batch, seed):
    torch.manual_seed(seed)
    scores = torch.randn(len(batch.groups), dtype=torch.float64)
    shifted = scores + torch.randn(10, dtype=torch.float64)[batch.groups]
    preferred, rejected = all_pairs(batch)
    weights = pair_weights(batch.groups[preferred], weighting="group")
    base = pair_loss(scores, preferred, rejected, weights)
    moved = pair_loss(shifted, preferred, rejected, weights)
    torch.testing.assert_close(moved.loss, base.loss, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(moved.coefficients, base.coefficients, rtol=0, atol=TOLERANCE)


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(batches, st.floats(0.1, 30.0))
def test_coefficients_sum_to_0_in_every_group_and_stay_within_the_pair_weights(batch, scale):
    scores = scale * batch.outcomes.neg().sin()
    preferred, rejected = all_pairs(batch)
    weights = pair_weights(batch.groups[preferred], weighting="group")
    coefficients = pair_loss(scores, preferred, rejected, weights).coefficients
    everyone = torch.ones_like(batch.has_outcome)
    assert group_mean(coefficients, batch.groups, everyone).abs().max() < TOLERANCE
    bound = torch.zeros_like(coefficients).index_add(0, preferred, weights).index_add(0, rejected, weights)
    assert (coefficients.abs() <= bound + TOLERANCE).all()
    only_preferred = ~torch.isin(torch.arange(len(scores)), rejected)
    only_rejected = ~torch.isin(torch.arange(len(scores)), preferred)
    assert (coefficients[only_preferred] <= 0).all()
    assert (coefficients[only_rejected] >= 0).all()


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(st.floats(-30, 30), st.floats(-30, 30), st.floats(0, 1))
def test_swapping_a_pair_flips_its_margin_and_its_label(left, right, target):
    scores = torch.tensor([left, right], dtype=torch.float64)
    one, p = torch.ones(1, dtype=torch.float64), torch.tensor([target], dtype=torch.float64)
    first, second = torch.tensor([0]), torch.tensor([1])
    straight = pair_loss(scores, first, second, one, p)
    swapped = pair_loss(scores, second, first, one, 1 - p)
    assert torch.equal(straight.margins, -swapped.margins)
    torch.testing.assert_close(straight.loss, swapped.loss, rtol=1e-12, atol=TOLERANCE)
    certain = pair_loss(scores, first, second, one).loss.neg().exp()
    opposite = pair_loss(scores, second, first, one).loss.neg().exp()
    assert (certain + opposite).item() == pytest.approx(1.0, abs=TOLERANCE)


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(batches)
def test_outcome_advantages_sum_to_0_in_every_group_of_two_or_more(batch):
    advantages = [
        rloo_advantages(batch.outcomes, batch.groups, batch.has_outcome),
        *(
            grpo_advantages(batch.outcomes, batch.groups, batch.has_outcome, std=std)
            for std in ("unbiased", "population", "none")
        ),
    ]
    for group in batch.groups.unique():
        judged = (batch.groups == group) & batch.has_outcome
        if judged.sum() >= 2:
            assert all(values[judged].sum().abs() < TOLERANCE for values in advantages)


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(batches, st.floats(0.01, 10.0), seeds)
def test_step_advantages_are_standard_and_know_neither_beta_nor_offsets(batch, beta, seed):
    torch.manual_seed(seed)
    rewards = torch.randn(len(batch.step), dtype=torch.float64)
    keys = batch.groups[batch.trajectory]
    moved = beta * rewards + torch.randn(10, dtype=torch.float64)[keys]

    def normalised(values: Tensor) -> Tensor:
        return normalize_step_rewards(
            values, keys, batch.valid, scope="group", norm="mean_std", std_floor=1e-12
        )

    base = normalised(rewards)
    several = group_std(rewards, keys, batch.valid, unbiased=False) > 1e-12
    assert group_mean(base, keys, batch.valid).abs().max() < TOLERANCE
    deviation = group_std(base, keys, batch.valid, unbiased=False)
    torch.testing.assert_close(deviation, several.double(), rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(normalised(moved), base, rtol=0, atol=1e-6)  # β down to 0.01 costs digits


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(batches)
def test_rewards_stay_below_minus_beta_log_old_probability(batch):
    rewards = step_values(batch, batch.prm_logits, PUBLISHED)
    old = torch.where(batch.mask, chosen(batch.old_logits, batch.tokens), 0.0).sum(-1)
    assert (rewards <= -BETA * old + TOLERANCE).all()


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(batches)
def test_attribution_keeps_every_total_up_to_the_first_state(batch):
    rewards = step_values(batch, batch.prm_logits, PUBLISHED)
    centers = step_centers(token_kl(batch.old_logits, batch.prm_logits), batch.mask, beta=BETA)
    shifted = attribute_credit(
        rewards,
        centers,
        batch.trajectory,
        batch.step,
        batch.valid,
        attribution="shifted",
        center="none",
        gamma=1.0,
    )
    size = len(batch.groups)
    first = centers[batch.step == 0]
    total = torch.zeros(size, dtype=torch.float64).index_add(0, batch.trajectory, rewards)
    credited = torch.zeros(size, dtype=torch.float64).index_add(0, batch.trajectory, shifted)
    torch.testing.assert_close(credited, total - first, rtol=0, atol=TOLERANCE)


def test_tied_outcomes_send_exactly_no_gradient_to_the_prm():
    batch = random_batch(3)
    result = evaluate(replace(batch, outcomes=torch.ones_like(batch.outcomes)), PUBLISHED)
    assert result.pair.loss.item() == 0
    assert result.prm_gradient.eq(0).all()
    assert result.pair.coefficients.eq(0).all()


def test_each_loss_sends_gradient_to_its_own_model_only():
    batch = random_batch(4)
    old, prm, policy = (
        logits.clone().requires_grad_() for logits in (batch.old_logits, batch.prm_logits, batch.logits)
    )
    live = replace(batch, old_logits=old, prm_logits=prm, logits=policy)
    losses = token_losses(live, policy, advantages_of(batch, PUBLISHED), PUBLISHED)
    aggregate(losses, batch_weights(live, PUBLISHED)).backward()
    assert policy.grad.abs().max() > 0
    assert prm.grad is None
    assert old.grad is None
    policy.grad = None
    for score in ("sum", "centered_sum"):
        pairs_of(live, prm, replace(PUBLISHED, score=score))[0].loss.backward()
    assert prm.grad.abs().max() > 0
    assert policy.grad is None
    assert old.grad is None


def test_step_advantages_of_the_example_that_order_used_to_change_are_the_same_in_every_order():
    rewards = torch.tensor([0.01, 0.02, -0.01, 0.03], dtype=torch.float64)
    keys, valid = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.bool)
    for norm in ("mean_std", "rloo", "maxabs"):
        base = normalize_step_rewards(rewards, keys, valid, scope="group", norm=norm, std_floor=0.0)
        for order in map(torch.tensor, permutations(range(4))):
            permuted = normalize_step_rewards(
                rewards[order], keys, valid, scope="group", norm=norm, std_floor=0.0
            )
            torch.testing.assert_close(permuted, base[order], rtol=0, atol=TOLERANCE)
