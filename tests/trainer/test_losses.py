import math

import pytest
import torch
from torch import Tensor

from istar_trainer.losses import (
    RatioStats,
    aggregate,
    aggregation_weights,
    clipped_policy_loss,
    kl_penalty,
    overlong_penalty,
    policy_log_ratios,
    ratio_stats,
    token_entropy,
)

FORMS = ["token", "step_product", "step_geo"]
MODES = ["step_mean", "token_mean", "trajectory_mean", "constant"]

# Trajectory 0 holds rows 0 and 2, trajectory 3 holds row 1; row 3 is padding, row 4 has no token.
MASK = torch.tensor(
    [[True, True, False], [True, True, True], [True, False, False], [True, True, True], [False, False, False]]
)
TRAJECTORY = torch.tensor([0, 3, 0, 0, 3])
ROW_WEIGHTS = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0])


def f64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def equal(actual: Tensor, expected: object, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=atol)


def weights(mode: str) -> Tensor:
    constant = 10.0 if mode == "constant" else None
    return aggregation_weights(MASK, TRAJECTORY, ROW_WEIGHTS, mode=mode, constant=constant)


@pytest.mark.parametrize(
    ("mode", "row_values"),
    [
        ("step_mean", [1 / 6, 1 / 9, 1 / 3]),
        ("token_mean", [1 / 6, 1 / 6, 1 / 6]),
        ("trajectory_mean", [1 / 8, 1 / 6, 1 / 4]),
        ("constant", [1 / 20, 1 / 20, 1 / 20]),
    ],
)
def test_aggregation_weights_by_hand(mode, row_values):
    a, b, c = row_values
    equal(weights(mode), [[a, a, 0], [b, b, b], [c, 0, 0], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("mode", ["step_mean", "token_mean", "trajectory_mean"])
def test_means_have_weights_that_sum_to_1(mode):
    assert weights(mode).sum().item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_a_row_held_twice_with_half_the_weight_counts_once(mode):
    rows = torch.tensor([0, 0, 1, 2])
    constant = 10.0 if mode == "constant" else None
    split = aggregation_weights(
        MASK[rows], TRAJECTORY[rows], f64([0.5, 0.5, 1.0, 1.0]), mode=mode, constant=constant
    )
    equal(split[0] + split[1], weights(mode)[0].tolist())
    equal(split[2:], weights(mode)[1:3].tolist())


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_without_live_rows_has_loss_0(mode):
    constant = 1.0 if mode == "constant" else None
    nothing = aggregation_weights(MASK, TRAJECTORY, torch.zeros(5), mode=mode, constant=constant)
    losses = torch.full((5, 3), torch.nan, requires_grad=True)
    loss = aggregate(losses, nothing)
    loss.backward()
    assert loss.item() == 0
    assert losses.grad.eq(0).all()
    empty = aggregation_weights(MASK[:0], TRAJECTORY[:0], ROW_WEIGHTS[:0], mode=mode, constant=constant)
    assert empty.shape == (0, 3)


def test_aggregate_is_a_dot_product_that_never_sees_masked_losses():
    losses = torch.where(MASK, f64([[1.0], [2.0], [3.0], [4.0], [5.0]]), torch.nan)
    equal(aggregate(losses, weights("step_mean")), 2.0)
    equal(aggregate(losses, weights("trajectory_mean")), 2.0)
    equal(aggregate(losses, weights("constant")), 0.55)


@pytest.mark.parametrize("form", FORMS)
def test_masked_tokens_change_neither_ratios_nor_gradients(form):
    old = torch.zeros(5, 3, dtype=torch.float64)
    clean = torch.where(MASK, f64([0.1, -0.2, 0.3]), 0.0).requires_grad_()
    dirty = torch.where(MASK, f64([0.1, -0.2, 0.3]), torch.nan).requires_grad_()
    for logprobs in (clean, dirty):
        policy_log_ratios(logprobs, old, MASK, form=form).exp().sum().backward()
    assert torch.equal(
        policy_log_ratios(clean, old, MASK, form=form), policy_log_ratios(dirty, old, MASK, form=form)
    )
    assert torch.equal(clean.grad, dirty.grad)


@pytest.mark.parametrize(("form", "share"), [("step_product", 1.0), ("step_geo", 1 / 3)])
def test_step_ratios_under_step_mean_have_the_exact_gradient(form, share):
    change = f64([[0.05, -0.02, 0.1]]).requires_grad_()
    mask = torch.ones(1, 3, dtype=torch.bool)
    step = aggregation_weights(mask, torch.tensor([0]), torch.ones(1), mode="step_mean")
    log_ratios = policy_log_ratios(change, torch.zeros_like(change), mask, form=form)
    loss = aggregate(clipped_policy_loss(log_ratios, f64([[2.0] * 3]), clip_low=0.2, clip_high=0.2), step)
    ratio = math.exp(share * 0.13)
    equal(loss.detach(), -2.0 * ratio)
    equal(torch.autograd.grad(loss, change)[0], [[-2.0 * ratio * share] * 3])


def test_one_token_steps_make_all_ratio_forms_agree():
    change = f64([[0.3], [-0.4]])
    mask = torch.ones(2, 1, dtype=torch.bool)
    for form in FORMS:
        equal(policy_log_ratios(change, torch.zeros_like(change), mask, form=form), [[0.3], [-0.4]])


@pytest.mark.parametrize("form", FORMS)
def test_first_step_has_ratio_1_and_the_gradient_of_reinforce(form):
    logprobs = f64([[-0.3, -1.0, -2.0], [-0.1, -0.7, -3.0]]).requires_grad_()
    mask = torch.tensor([[True, True, True], [True, False, False]])
    advantages = f64([[1.5], [-0.5]]).expand(2, 3)
    log_ratios = policy_log_ratios(logprobs, logprobs.detach(), mask, form=form)
    assert log_ratios.exp().eq(1).all()
    step = aggregation_weights(mask, torch.tensor([0, 1]), torch.ones(2), mode="step_mean")
    losses = clipped_policy_loss(log_ratios, advantages, clip_low=0.2, clip_high=0.2)
    gradient = torch.autograd.grad(aggregate(losses, step), logprobs)[0]
    # REINFORCE on the step's log-probability; token and geo divide it by the step's length.
    length = torch.tensor([[1.0], [1.0]]) if form == "step_product" else mask.sum(-1, keepdim=True)
    reinforce = torch.where(mask, -advantages / length / 2, 0.0)
    torch.testing.assert_close(gradient, reinforce, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [(1.3, 1.0, 0.0), (0.7, -1.0, 0.0), (1.3, -1.0, 1.3), (0.7, 1.0, -0.7), (1.1, 1.0, -1.1)],
)
def test_clipping_stops_the_gradient_only_where_it_holds_the_policy_back(ratio, advantage, slope):
    log_ratio = f64([[math.log(ratio)]]).requires_grad_()
    clipped_policy_loss(log_ratio, f64([[advantage]]), clip_low=0.2, clip_high=0.2).sum().backward()
    equal(log_ratio.grad, [[slope]])


def test_the_two_clip_bounds_are_independent():
    log_ratios, advantages = f64([[math.log(1.25), math.log(0.85)]]), f64([[1.0, -1.0]])
    losses = clipped_policy_loss(log_ratios, advantages, clip_low=0.1, clip_high=0.28)
    equal(losses, [[-1.25, 0.9]])


@pytest.mark.parametrize("form", FORMS)
def test_runaway_log_ratios_stay_finite_in_loss_and_gradient(form):
    logprobs = torch.tensor([[500.0, 500.0], [-500.0, -500.0]], requires_grad=True)
    mask = torch.ones(2, 2, dtype=torch.bool)
    log_ratios = policy_log_ratios(logprobs, torch.zeros(2, 2), mask, form=form)
    losses = clipped_policy_loss(log_ratios, torch.ones(2, 2), clip_low=0.2, clip_high=0.2)
    losses.sum().backward()
    equal(losses.detach(), [[-1.2] * 2, [-math.exp(-20.0)] * 2], atol=1e-9)
    assert logprobs.grad.isfinite().all()


def test_kl_limits_the_difference_and_sends_no_gradient_to_the_reference():
    logprobs, reference = f64([[-40.0, -1.0]]).requires_grad_(), f64([[0.0, 0.0]]).requires_grad_()
    mask = torch.tensor([[True, False]])
    penalty = kl_penalty(logprobs, reference, mask, estimator="k3")
    equal(penalty.detach(), [[math.exp(10) - 11, 0.0]], atol=1e-9)
    penalty.sum().backward()
    assert reference.grad is None


def test_entropy_by_hand():
    logits = torch.tensor([[[0.0, 0.0, -torch.inf], [math.log(3.0), 0.0, -torch.inf]]], requires_grad=True)
    entropy = token_entropy(logits)
    expected = [[math.log(2), math.log(4) - 0.75 * math.log(3)]]
    equal(entropy.detach(), expected, atol=1e-6)  # float32
    entropy.sum().backward()
    assert logits.grad.isfinite().all()


def test_ratio_stats_by_hand():
    ratios = f64([[1.5, 0.5, 1.5, 0.5, 99.0]])
    advantages = f64([[1.0, -1.0, -1.0, 1.0, 1.0]])
    mask = torch.tensor([[True, True, True, True, False]])
    stats = ratio_stats(ratios.log(), advantages, mask, clip_low=0.2, clip_high=0.2)
    assert stats.mean == pytest.approx(1.0)
    assert stats.max == pytest.approx(1.5)
    assert stats.max_deviation == pytest.approx(0.5)
    assert stats.clip_low_frac == pytest.approx(0.25)
    assert stats.clip_high_frac == pytest.approx(0.25)
    kl = ((0.5 - math.log(1.5)) + (-0.5 - math.log(0.5))) / 2
    assert stats.approx_kl == pytest.approx(kl)


def test_ratio_stats_of_nothing_and_of_an_unchanged_policy_are_neutral():
    neutral = RatioStats(1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    same, one = torch.zeros(1, 2), torch.ones(1, 2)
    for mask in (torch.zeros(1, 2, dtype=torch.bool), torch.ones(1, 2, dtype=torch.bool)):
        assert ratio_stats(same, one, mask, clip_low=0.2, clip_high=0.2) == neutral


def test_overlong_penalty_scales_with_its_factor():
    penalty = overlong_penalty(torch.tensor([5, 9, 10]), max_length=10, buffer=2, factor=3.0)
    equal(penalty, [0.0, -1.5, -3.0])


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda: policy_log_ratios(torch.zeros(5, 3), torch.zeros(5, 3), MASK, form="geo"), "step_geo"),
        (lambda: kl_penalty(torch.zeros(5, 3), torch.zeros(5, 3), MASK, estimator="k4"), '"k4"'),
        (lambda: aggregation_weights(MASK, TRAJECTORY, ROW_WEIGHTS, mode="stepmean"), 'mean "step_mean"'),
        (lambda: aggregation_weights(MASK, TRAJECTORY, ROW_WEIGHTS, mode="constant"), "constant=None"),
        (
            lambda: aggregation_weights(MASK, TRAJECTORY, ROW_WEIGHTS, mode="step_mean", constant=2.0),
            '"step_mean" does not fit constant=2.0',
        ),
        (
            lambda: overlong_penalty(torch.tensor([1]), max_length=4, buffer=0, factor=1.0),
            "buffer must be in 1..max_length=4, got 0",
        ),
    ],
)
def test_misuse_says_what_to_type_instead(misuse, message):
    with pytest.raises((ValueError, TypeError)) as error:
        misuse()
    # With argument types checked at run time the checker answers first, in its own words.
    assert message in str(error.value) or isinstance(error.value, TypeError)
