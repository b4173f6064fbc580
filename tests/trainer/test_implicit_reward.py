import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from istar_trainer.implicit_reward import (
    pair_accuracy,
    pair_loss,
    pair_weights,
    score_weights,
    step_rewards,
    token_log_ratios,
    trajectory_scores,
    two_pass_surrogate,
)


def f64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def equal(actual: Tensor, expected: object, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=atol)


def test_equal_models_give_no_reward_and_log_2_per_pair():
    logprobs, mask = f64([[-1.0, -2.0], [-0.5, -3.0]]), torch.tensor([[True, True], [True, False]])
    rewards = step_rewards(token_log_ratios(logprobs, logprobs, mask), mask, beta=0.05)
    assert rewards.eq(0).all()
    result = pair_loss(rewards, torch.tensor([0]), torch.tensor([1]), f64([0.8]))
    equal(result.loss, 0.8 * math.log(2))
    equal(result.coefficients, [-0.4, 0.4])


def test_log_ratios_ignore_masked_tokens_and_never_send_gradient_to_the_old_policy():
    prm = f64([[-1.0, torch.nan]]).requires_grad_()
    old = f64([[-2.0, -torch.inf]]).requires_grad_()
    ratios = token_log_ratios(prm, old, torch.tensor([[True, False]]))
    equal(ratios.detach(), [[1.0, 0.0]])
    ratios.sum().backward()
    equal(prm.grad, [[1.0, 0.0]])
    assert old.grad is None


def test_half_precision_logprobs_are_widened_before_they_are_subtracted():
    prm, old = torch.tensor([[-100.0]]).bfloat16(), torch.tensor([[-0.0078125]]).bfloat16()
    ratios = token_log_ratios(prm, old, torch.tensor([[True]]))
    assert ratios.dtype == torch.float32
    equal(ratios, [[-99.9921875]])


def test_tokens_add_up_to_steps_and_steps_to_trajectories():
    ratios = f64([[0.5, 1.0], [2.0, 9.0], [4.0, 8.0]])
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    rewards = step_rewards(ratios, mask, beta=0.5)
    equal(rewards, [0.75, 1.0, 6.0])
    equal(step_rewards(ratios, mask, beta=0.5, length_norm="tokens"), [0.375, 1.0, 3.0])


@pytest.mark.parametrize(
    ("score", "expected"),
    [("sum", [1.0, 9.0]), ("centered_sum", [1.0, 9.0]), ("mean", [1.0, 4.5]), ("token_norm", [0.5, 3.0])],
)
def test_scores_by_hand(score, expected):
    trajectory = torch.tensor([1, 0, 1, 0])
    mask = torch.tensor([[True, False], [True, True], [True, True], [True, True]])
    values = f64([3.0, 1.0, 6.0, torch.nan])
    valid = torch.tensor([True, True, True, False])
    weights = score_weights(trajectory, mask, valid, num_trajectories=2, score=score)
    equal(trajectory_scores(values, trajectory, weights, num_trajectories=2), expected)


def test_a_trajectory_without_rows_scores_0():
    weights = score_weights(
        torch.tensor([1]), torch.ones(1, 1).bool(), torch.tensor([True]), num_trajectories=3, score="mean"
    )
    equal(trajectory_scores(f64([2.0]), torch.tensor([1]), weights, num_trajectories=3), [0.0, 2.0, 0.0])


def test_group_weights_give_every_group_the_same_say():
    groups = torch.tensor([5, 5, 5, 8])
    equal(pair_weights(groups, weighting="group"), [1 / 6, 1 / 6, 1 / 6, 1 / 2])
    equal(pair_weights(groups, weighting="pair"), [0.25] * 4)
    assert pair_weights(groups[:0], weighting="group").shape == (0,)
    assert pair_weights(groups[:0], weighting="pair").shape == (0,)


def test_without_pairs_loss_and_gradient_are_exactly_0():
    scores = f64([1.0, 2.0]).requires_grad_()
    none = torch.zeros(0, dtype=torch.long)
    result = pair_loss(scores, none, none, f64([]))
    result.loss.backward()
    assert result.loss.item() == 0
    assert scores.grad.eq(0).all()
    assert result.coefficients.eq(0).all()
    assert math.isnan(pair_accuracy(result.margins, f64([])))


def test_huge_margins_stay_finite_in_loss_and_gradient():
    scores = torch.tensor([-120.0, 120.0, 1e4], requires_grad=True)
    preferred, rejected = torch.tensor([0, 1, 0]), torch.tensor([1, 0, 2])
    result = pair_loss(scores, preferred, rejected, torch.ones(3, dtype=torch.float64))
    equal(result.loss.detach(), 240.0 + 10120.0)
    result.loss.backward()
    assert scores.grad.isfinite().all()
    equal(result.coefficients, [-2.0, 1.0, 1.0])


def test_soft_label_of_one_half_has_no_gradient_at_margin_0():
    scores = f64([0.3, 0.3]).requires_grad_()
    result = pair_loss(scores, torch.tensor([0]), torch.tensor([1]), f64([1.0]), f64([0.5]))
    result.loss.backward()
    assert scores.grad.eq(0).all()
    assert result.coefficients.eq(0).all()


def test_soft_label_pulls_the_margin_to_its_log_odds():
    scores = f64([math.log(0.8 / 0.2), 0.0])
    at_optimum = pair_loss(scores, torch.tensor([0]), torch.tensor([1]), f64([1.0]), f64([0.8]))
    equal(at_optimum.coefficients, [0.0, 0.0])
    equal(at_optimum.loss, -0.8 * math.log(0.8) - 0.2 * math.log(0.2))


def test_pair_accuracy_counts_a_tie_as_one_half():
    equal(pair_accuracy(f64([1.0, 0.0, -1.0, 2.0]), f64([1.0, 1.0, 1.0, 1.0])), 0.625)


@pytest.mark.parametrize("score", ["sum", "mean", "token_norm"])
def test_two_passes_over_micro_batches_give_the_gradient_of_the_whole_loss(score):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 5)).double()
    features = torch.randn(12, 3, 4, dtype=torch.float64)
    tokens = torch.randint(5, (12, 3))
    old = torch.randn(12, 3, 5, dtype=torch.float64).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    mask = torch.rand(12, 3) < 0.7
    trajectory = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 4, 4])
    valid = torch.arange(12) != 5
    preferred, rejected = torch.tensor([0, 0, 3]), torch.tensor([1, 4, 1])
    weights = score_weights(trajectory, mask, valid, num_trajectories=5, score=score)

    def values(rows: Tensor) -> Tensor:
        logprobs = model(features[rows]).log_softmax(-1).gather(-1, tokens[rows][..., None])[..., 0]
        return step_rewards(token_log_ratios(logprobs, old[rows], mask[rows]), mask[rows], beta=0.3)

    scores = trajectory_scores(values(torch.arange(12)), trajectory, weights, num_trajectories=5)
    result = pair_loss(scores, preferred, rejected, pair_weights(torch.zeros(3).long(), weighting="group"))
    whole = torch.autograd.grad(result.loss, list(model.parameters()))

    for rows in torch.randperm(12).split(5):
        two_pass_surrogate(values(rows), trajectory[rows], weights[rows], result.coefficients).backward()
    for parameter, expected in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-14)
        assert expected.abs().max() > 1e-4


def test_bradley_terry_rewards_are_recovered_on_a_binary_tree():
    """Depth 3, one softmax per node; soft labels on all 28 pairs of the 8 paths; β = 0.5."""
    torch.manual_seed(1)
    paths = torch.tensor([[i >> 2, i >> 1 & 1, i & 1] for i in range(8)])
    nodes = torch.tensor([[0, 1 + (i >> 2), 3 + (i >> 1)] for i in range(8)])
    reference = torch.randn(7, 2, dtype=torch.float64).log_softmax(-1)
    true_rewards = torch.randn(8, dtype=torch.float64)
    first, second = torch.combinations(torch.arange(8)).T
    targets = (true_rewards[first] - true_rewards[second]).sigmoid()
    weights = pair_weights(torch.zeros(28).long(), weighting="pair")
    trajectory, mask = torch.arange(8).repeat_interleave(3), torch.ones(24, 1, dtype=torch.bool)
    steps = score_weights(trajectory, mask, mask[:, 0], num_trajectories=8, score="sum")
    logits = reference.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [logits], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-18, line_search_fn="strong_wolfe"
    )

    def scores() -> Tensor:
        chosen = logits.log_softmax(-1)[nodes, paths].reshape(24, 1)
        ratios = token_log_ratios(chosen, reference[nodes, paths].reshape(24, 1), mask)
        return trajectory_scores(step_rewards(ratios, mask, beta=0.5), trajectory, steps, num_trajectories=8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = pair_loss(scores(), first, second, weights, targets).loss
        loss.backward()
        return loss

    optimizer.step(closure)
    offset = scores().detach() - true_rewards
    assert (offset - offset.mean()).abs().max() < 1e-6


def test_one_update_moves_the_weights_of_a_linear_model_and_lowers_the_loss():
    torch.manual_seed(2)
    features, tokens = torch.randn(6, 2, 4, dtype=torch.float64), torch.randint(3, (6, 2))
    mask, trajectory = torch.ones(6, 2, dtype=torch.bool), torch.tensor([0, 0, 1, 2, 2, 3])
    prm = torch.nn.Linear(4, 3).double()
    before = [p.detach().clone() for p in prm.parameters()]
    old = -F.cross_entropy(prm(features).transpose(1, 2), tokens, reduction="none").detach()
    steps = score_weights(trajectory, mask, mask[:, 0], num_trajectories=4, score="sum")

    def loss() -> Tensor:
        logprobs = -F.cross_entropy(prm(features).transpose(1, 2), tokens, reduction="none")
        rewards = step_rewards(token_log_ratios(logprobs, old, mask), mask, beta=0.05)
        scores = trajectory_scores(rewards, trajectory, steps, num_trajectories=4)
        return pair_loss(scores, torch.tensor([0, 2]), torch.tensor([1, 3]), f64([0.5, 0.5])).loss

    optimizer = torch.optim.SGD(prm.parameters(), lr=0.1)
    first = loss()
    first.backward()
    optimizer.step()
    assert first.item() == pytest.approx(math.log(2), abs=1e-12)
    assert loss().item() < first.item()
    assert all((p.detach() - q).abs().max() > 0 for p, q in zip(prm.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda m: step_rewards(torch.zeros(1, 1), m, beta=0.0), "beta must be above 0, got 0.0"),
        (lambda m: step_rewards(torch.zeros(1, 1), m, beta=1.0, length_norm="token"), 'mean "tokens"'),
        (lambda m: score_weights(m[0].long(), m, m[0], num_trajectories=2, score="summ"), 'mean "sum"'),
        (lambda m: pair_weights(m[0].long(), weighting="groups"), 'mean "group"'),
    ],
)
def test_misuse_says_what_to_type_instead(misuse, message):
    with pytest.raises((ValueError, TypeError)) as error:
        misuse(torch.ones(1, 1, dtype=torch.bool))
    # With argument types checked at run time the checker answers first, in its own words.
    assert message in str(error.value) or isinstance(error.value, TypeError)
