"""Published and hand-computed numbers of the specification (section 8), in float64 to 1e-6.

The golden group has four trajectories of one task: token log-ratios per step, β = 0.05.
"""

import math

import pytest
import torch
from torch import Tensor

from istar_trainer.advantages import (
    combine_advantages,
    grpo_advantages,
    istar_official_step_advantages,
    normalize_step_rewards,
    rloo_advantages,
)
from istar_trainer.attribution import token_kl
from istar_trainer.implicit_reward import (
    pair_loss,
    pair_weights,
    score_weights,
    step_rewards,
    token_log_ratios,
    trajectory_scores,
)
from istar_trainer.losses import (
    aggregate,
    aggregation_weights,
    clipped_policy_loss,
    kl_penalty,
    overlong_penalty,
    policy_log_ratios,
)
from istar_trainer.masked import masked_mean, masked_std

BETA = 0.05
STEPS = [[0.2, -0.1], [0.4], [-0.3, 0.1, 0.0], [0.5], [-0.2, -0.2], [0.1], [0.1, 0.1], [-0.6]]
TRAJECTORY = torch.tensor([0, 0, 1, 1, 1, 2, 2, 3])
SAME_GROUP = torch.zeros(8, dtype=torch.long)
FOUR_IN_GROUP = torch.zeros(4, dtype=torch.long)
ALL_ROWS = torch.ones(8, dtype=torch.bool)
ALL_TRAJECTORIES = torch.ones(4, dtype=torch.bool)
OUTCOMES = torch.tensor([10.0, 0.0, 10.0, 0.0], dtype=torch.float64)
PREFERRED, REJECTED = torch.tensor([0, 0, 2, 2]), torch.tensor([1, 3, 1, 3])


def near(actual: Tensor, expected: list[float] | float) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


def golden_log_ratios() -> tuple[Tensor, Tensor]:
    mask = torch.tensor([[k < len(step) for k in range(3)] for step in STEPS])
    padded = torch.tensor([step + [9.9] * (3 - len(step)) for step in STEPS], dtype=torch.float64)
    old = torch.linspace(-3, -1, 24, dtype=torch.float64).reshape(8, 3)
    return token_log_ratios(old + padded, old, mask), mask


def golden_rewards() -> Tensor:
    log_ratios, mask = golden_log_ratios()
    return step_rewards(log_ratios, mask, beta=BETA)


def golden_scores(score: str) -> Tensor:
    _, mask = golden_log_ratios()
    weights = score_weights(TRAJECTORY, mask, ALL_ROWS, num_trajectories=4, score=score)
    return trajectory_scores(golden_rewards(), TRAJECTORY, weights, num_trajectories=4)


def golden_step_advantages() -> Tensor:
    return normalize_step_rewards(
        golden_rewards(), SAME_GROUP, ALL_ROWS, scope="group", norm="mean_std", std_floor=0.0
    )


def test_g1_step_rewards():
    near(golden_rewards(), [0.005, 0.020, -0.010, 0.025, -0.020, 0.005, 0.010, -0.030])


@pytest.mark.parametrize(
    ("score", "expected"),
    [("sum", [0.025, -0.005, 0.015, -0.030]), ("mean", [0.0125, -0.001666667, 0.0075, -0.030])],
)
def test_g2_trajectory_scores(score, expected):
    near(golden_scores(score), expected)


@pytest.mark.parametrize(
    ("score", "losses", "mean"),
    [
        ("sum", [0.678259676, 0.666025258, 0.683197180, 0.670900284], 0.674595600),
        ("mean", [0.686088934, 0.672122945, 0.688574351, 0.674572952], 0.680339795),
    ],
)
def test_g3_and_g4_pair_losses(score, losses, mean):
    scores, one = golden_scores(score), torch.ones(1, dtype=torch.float64)
    for k, expected in enumerate(losses):
        near(pair_loss(scores, PREFERRED[k : k + 1], REJECTED[k : k + 1], one).loss, expected)
    weights = pair_weights(torch.zeros(4, dtype=torch.long), weighting="group")
    near(pair_loss(scores, PREFERRED, REJECTED, weights).loss, mean)


def test_g3_derivative_of_the_pair_loss():
    scores = golden_scores("sum").requires_grad_()
    result = pair_loss(scores, PREFERRED, REJECTED, torch.full((4,), 0.25, dtype=torch.float64))
    expected = [-0.244688507, 0.246875182, -0.245938017, 0.243751341]
    near(result.coefficients, expected)
    near(result.coefficients.sum(), 0.0)
    near(torch.autograd.grad(result.loss, scores)[0], expected)


@pytest.mark.parametrize(("std", "size"), [("unbiased", 0.86602525), ("population", 0.9999998)])
def test_g5_grpo_outcome_advantages(std, size):
    advantages = grpo_advantages(OUTCOMES, FOUR_IN_GROUP, ALL_TRAJECTORIES, std=std)
    near(advantages, [size, -size, size, -size])


def test_g5_rloo_outcome_advantages():
    advantages = rloo_advantages(OUTCOMES, FOUR_IN_GROUP, ALL_TRAJECTORIES)
    near(advantages, [6.66666667, -6.66666667, 6.66666667, -6.66666667])


def test_g6_step_advantages():
    rewards = golden_rewards()
    near(masked_mean(rewards, ALL_ROWS), 0.000625)
    near(masked_std(rewards, ALL_ROWS, unbiased=False), 0.017929985)
    near(masked_std(rewards, ALL_ROWS, unbiased=True), 0.019167961)
    expected = [0.244005, 1.080592, -0.592583, 1.359455, -1.150308, 0.244005, 0.522867, -1.708033]
    near(golden_step_advantages(), expected)


def test_g7_combined_advantages():
    outcome_part = grpo_advantages(OUTCOMES, FOUR_IN_GROUP, ALL_TRAJECTORIES, std="population")
    combined = combine_advantages(outcome_part[TRAJECTORY, None], golden_step_advantages()[:, None])[:, 0]
    expected = [1.244005, 2.080592, -1.592583, 0.359455, -2.150308, 1.244005, 1.522867, -2.708033]
    near(combined, expected)


def test_g8_official_step_advantages_and_their_defect():
    advantages = istar_official_step_advantages(golden_rewards(), TRAJECTORY, SAME_GROUP)
    expected = [0.555556, 1.222222, -0.111111, 1.444444, -0.555556, 0.555556, 0.777778, -1.0]
    near(advantages, expected)
    near(advantages.sum(), 2.888889)
    backwards = istar_official_step_advantages(golden_rewards().flip(0), TRAJECTORY.flip(0), SAME_GROUP)
    assert not torch.allclose(backwards.flip(0), advantages)


def test_g11_overlong_penalty():
    lengths = torch.tensor([16000, 16384, 18432, 20480])
    near(overlong_penalty(lengths, max_length=20480, buffer=4096, factor=1.0), [0.0, 0.0, -0.5, -1.0])


@pytest.mark.parametrize(("form", "expected"), [("step_product", 1.284025417), ("step_geo", 1.086904050)])
def test_g12_step_ratios(form, expected):
    change = torch.tensor([[0.1, -0.05, 0.2]], dtype=torch.float64)
    mask = torch.ones(1, 3, dtype=torch.bool)
    near(policy_log_ratios(change, torch.zeros_like(change), mask, form=form).exp(), [[expected] * 3])


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "loss"),
    [
        (1.3, 1.0, None, -1.2),
        (1.3, -1.0, None, 1.3),
        (0.7, 1.0, None, -0.7),
        (0.7, -1.0, None, 0.8),
        (5.0, -1.0, 3.0, 3.0),
        (1.1, -1.0, 3.0, 1.1),
        (5.0, 1.0, 3.0, -1.2),
    ],
)
def test_g13_clipped_loss(ratio, advantage, dual_clip, loss):
    log_ratio = torch.tensor([[math.log(ratio)]], dtype=torch.float64)
    value = clipped_policy_loss(
        log_ratio,
        torch.tensor([[advantage]], dtype=torch.float64),
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=dual_clip,
    )
    near(value, [[loss]])


@pytest.mark.parametrize(
    ("estimator", "up", "down"),
    [("k1", 0.3, -0.3), ("k2", 0.045, 0.045), ("k3", 0.040818221, 0.049858808)],
)
def test_g14_kl_estimators(estimator, up, down):
    difference = torch.tensor([[0.3, -0.3]], dtype=torch.float64)
    mask = torch.ones(1, 2, dtype=torch.bool)
    near(kl_penalty(difference, torch.zeros_like(difference), mask, estimator=estimator), [[up, down]])


def test_g17_policy_gradient_of_the_implicit_reward_is_minus_the_gradient_of_kl():
    theta = torch.tensor([0.2, -0.3, 0.5], dtype=torch.float64, requires_grad=True)
    phi = torch.tensor([0.1, 0.4, -0.2], dtype=torch.float64).log_softmax(0)
    logprobs = theta.log_softmax(0)
    old = logprobs.detach()
    one_row_per_action = torch.ones(3, 1, dtype=torch.bool)
    rewards = token_log_ratios(phi[:, None], old[:, None], one_row_per_action)
    log_ratios = policy_log_ratios(logprobs[:, None], old[:, None], one_row_per_action, form="token")
    losses = clipped_policy_loss(log_ratios, rewards, clip_low=0.2, clip_high=0.2)
    weights = aggregation_weights(one_row_per_action, torch.arange(3), old.exp(), mode="step_mean")
    ascent = -torch.autograd.grad(aggregate(losses, weights), theta, retain_graph=True)[0]
    kl = (logprobs.exp() * (logprobs - phi)).sum()
    near(ascent, [0.037148957, 0.186659385, -0.223808343])
    near(-torch.autograd.grad(kl, theta)[0], [0.037148957, 0.186659385, -0.223808343])
    near(kl.detach(), 0.154248208)
    near(token_kl(theta[None, None].detach(), phi[None, None]), [[0.154248208]])


def test_g18_optimum_of_the_pair_loss_is_the_tilted_reference():
    reference = torch.tensor([[0.2], [0.5], [0.3]], dtype=torch.float64).log()
    true_rewards = torch.tensor([1.0, 0.0, -0.5], dtype=torch.float64)
    first, second = torch.combinations(torch.arange(3)).T
    targets = (true_rewards[first] - true_rewards[second]).sigmoid()
    weights = pair_weights(torch.zeros(3, dtype=torch.long), weighting="pair")
    mask = torch.ones(3, 1, dtype=torch.bool)
    logits = reference.flatten().clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [logits], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def scores() -> Tensor:
        return step_rewards(token_log_ratios(logits.log_softmax(0)[:, None], reference, mask), mask, beta=0.5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = pair_loss(scores(), first, second, weights, targets).loss
        loss.backward()
        return loss

    optimizer.step(closure)
    near(logits.detach().softmax(0), [0.707704659, 0.239443527, 0.052851814])
    near(scores().detach() - true_rewards, [-0.368145] * 3)
