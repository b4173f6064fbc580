"""Anchors, split outcomes and token rewards against numbers computed by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from istar_trainer.attribution import discounted_to_go
from istar_trainer.gae import last_token
from istar_trainer.implicit_reward import label_loss, step_rewards
from istar_trainer.step_credit import (
    anchor_advantages,
    exact_anchors,
    normalize_tokens,
    reward_leave_one_out,
    similar_anchors,
    split_outcomes,
    turn_scores,
)

X = torch.nan


def ints(*values: int) -> Tensor:
    return torch.tensor(values)


def floats(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def yes(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.bool)


def near(actual: Tensor, expected: object, atol: float = 1e-6) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=atol)


def test_g10_discounted_returns():
    returns = discounted_to_go(floats(0, 0, 0, 10), ints(0, 0, 0, 0), ints(0, 1, 2, 3), yes(4), gamma=0.95)
    near(returns, [8.57375, 9.025, 9.5, 10])


def test_g10_anchor_advantages_without_a_divisor():
    near(anchor_advantages(floats(10, 9.5, 0), ints(4, 4, 4), yes(3), std="none"), [3.5, 3.0, -6.5])


def test_g15_cross_entropy_of_a_success_and_a_failure():
    score = step_rewards(floats(0.2, -0.1, 0.4)[None], yes(3)[None], beta=0.05)
    near(label_loss(score, floats(1), yes(1)).loss, 0.680725304)
    near(label_loss(score, floats(0), yes(1)).loss, 0.705725304)


def test_g16_split_of_an_outcome_over_three_turns():
    shares = split_outcomes(floats(1), floats(0.4, -0.1, 0.2), ints(0, 0, 0), yes(3), temperature=0.7)
    near(shares, [0.446226, 0.218446, 0.335328])


def test_returns_skip_rows_that_do_not_count_and_refuse_steps_that_appear_twice():
    valid = torch.tensor([True, False, True, True])
    returns = discounted_to_go(floats(4, X, 2, 1), ints(7, 7, 7, 3), ints(5, 5, 0, 0), valid, gamma=0.5)
    near(returns, [4, 0, 4, 1])
    with pytest.raises(ValueError, match="step 0 of trajectory 1 appears in 2 rows"):
        discounted_to_go(floats(1, 1), ints(1, 1), ints(0, 0), yes(2), gamma=1.0)
    with pytest.raises(ValueError, match="gamma must be in"):
        discounted_to_go(floats(1), ints(0), ints(0), yes(1), gamma=1.5)


def test_steps_share_an_anchor_iff_group_and_state_agree():
    anchors = exact_anchors(ints(0, 0, 1, 0, 1), ints(5, 6, 5, 5, 5))
    same = anchors[:, None] == anchors
    expected = [{0, 3}, {1}, {2, 4}, {0, 3}, {2, 4}]
    assert [set(row.nonzero().flatten().tolist()) for row in same] == expected


def test_a_step_alone_in_its_anchor_gets_nothing_and_a_row_that_does_not_count_keeps_nobody_company():
    valid = torch.tensor([True, True, True, False])
    near(anchor_advantages(floats(1, 3, 9, 5), ints(0, 0, 1, 1), valid, std="none"), [-1, 1, 0, 0])


def test_anchors_divided_by_the_unbiased_deviation():
    size = 1 / (math.sqrt(2) + 1e-6)
    near(anchor_advantages(floats(1, 3), ints(0, 0), yes(2), std="unbiased"), [-size, size])


def test_all_distinct_states_add_nothing_to_the_base_algorithm():
    """P23: with every state seen once, A^E is all there is."""
    returns = torch.arange(6, dtype=torch.float64)
    anchors = exact_anchors(ints(0, 0, 0, 1, 1, 1), ints(0, 1, 2, 3, 4, 5))
    for std in ("none", "unbiased", "population"):
        assert anchor_advantages(returns, anchors, yes(6), std=std).eq(0).all()


def test_nearly_equal_texts_of_a_group_share_an_anchor_first_fit():
    # Ratio of two texts of 20 characters that differ in one: 2·19/40 = 0.95; in two: 0.90.
    base = "abcdefghijklmnopqrst"
    one_off, two_off, other = base[:-1] + "!", base[:-2] + "!?", "0123456789"
    texts = [other, base, one_off, two_off, base]
    anchors = similar_anchors(texts, ints(0, 0, 0, 0, 1), ints(3, 0, 1, 2, 0), threshold=0.95).tolist()
    assert anchors[1] == anchors[2]
    assert len({anchors[0], anchors[1], anchors[3], anchors[4]}) == 4


def test_a_later_text_is_compared_with_the_first_of_an_anchor_only():
    base = "abcdefghijklmnopqrst"
    chain = [base, base[:-1] + "!", base[:-2] + "!!"]  # each like the one before, the ends not alike
    steps = ints(0, 1, 2)
    assert similar_anchors(chain, ints(0, 0, 0), steps, threshold=0.95).tolist() == [0, 0, 1]


def test_similar_anchors_do_not_depend_on_the_order_of_rows():
    texts = ["ab" * 10, "ab" * 9 + "ac", "ab" * 9 + "xy", "ba" * 10, "ab" * 10]
    groups, steps = ints(0, 0, 0, 1, 1), ints(0, 1, 1, 0, 2)
    anchors = similar_anchors(texts, groups, steps, threshold=0.9)
    order = ints(4, 2, 0, 3, 1)
    shuffled = similar_anchors([texts[i] for i in order], groups[order], steps[order], threshold=0.9)
    assert torch.equal(shuffled, anchors[order])


@pytest.mark.parametrize("threshold", [0.0, 1.01])
def test_a_threshold_that_no_ratio_can_have_is_refused(threshold):
    with pytest.raises(ValueError, match="threshold must be in"):
        similar_anchors(["a"], ints(0), ints(0), threshold=threshold)


def test_turn_scores_are_free_of_the_turns_own_length():
    ratios = floats(0.1, 0.3, 0.4, X, 0.2, X).reshape(3, 2)
    mask = torch.tensor([[True, True], [True, False], [True, False]])
    # Means 0.2, 0.4 and 0.2; mean length of the counted turns (2 + 1) / 2.
    near(turn_scores(ratios, mask, torch.tensor([True, True, False])), [0.3, 0.6, 0])


def test_turn_rewards_sum_to_the_outcome_of_each_trajectory():
    trajectories = ints(1, 0, 1, 1, 0)
    scores = floats(3, -2, 700, 1, 0.5)
    rewards = split_outcomes(floats(10, -4), scores, trajectories, yes(5), temperature=0.7)
    sums = torch.zeros(2, dtype=torch.float64).index_add(0, trajectories, rewards)
    assert sums.tolist() == pytest.approx([10, -4], abs=1e-12)
    assert rewards[2] == pytest.approx(-4)


def test_rows_that_do_not_count_get_no_share():
    valid = torch.tensor([True, False])
    near(split_outcomes(floats(2), floats(1, X), ints(0, 0), valid, temperature=1.0), [2, 0])
    near(split_outcomes(floats(2), floats(1), ints(0), ~yes(1), temperature=1.0), [0])
    with pytest.raises(ValueError, match="temperature must be above 0"):
        split_outcomes(floats(1), floats(1), ints(0), yes(1), temperature=0.0)


def test_rewards_against_the_mean_of_the_groups_trajectories():
    # Trajectory 0: two steps with rewards 1, 3 | 5, mean 3. Trajectory 1: reward 1. Mean of means 2,
    # and N / (N − 1) = 2. Trajectory 2 is alone in its group and keeps its reward.
    rewards = floats(1, 3, 5, X, 1, X, 7, X).reshape(4, 2)
    mask = torch.tensor([[True, True], [True, False], [True, False], [True, False]])
    compared = reward_leave_one_out(rewards, mask, ints(0, 0, 1, 2), ints(0, 0, 1))
    near(compared, [[-2, 2], [6, 0], [-2, 0], [7, 0]])


def test_a_trajectory_without_counted_tokens_is_no_member_of_its_group():
    mask = torch.tensor([[True], [False]])
    near(reward_leave_one_out(floats(3, X)[:, None], mask, ints(0, 1), ints(0, 0)), [[3], [0]])


def test_tokens_are_normalized_over_all_rows_of_their_key():
    values = floats(1, 3, 5, X, 2, 2).reshape(3, 2)
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    size = 2 / math.sqrt(8 / 3)  # 1, 3, 5: mean 3, population deviation √(8/3)
    near(normalize_tokens(values, ints(0, 0, 1), mask, std_floor=0.0), [[-size, 0], [size, 0], [0, 0]])
    assert normalize_tokens(values, ints(0, 0, 1), mask, std_floor=2.0).eq(0).all()


def test_label_loss_averages_over_the_trajectories_that_count():
    scores = floats(0.3, -0.2, X).requires_grad_()
    counted = torch.tensor([True, True, False])
    result = label_loss(scores, floats(1, 0, 1), counted)
    expected = (math.log1p(math.exp(-0.3)) + math.log1p(math.exp(-0.2))) / 2
    near(result.loss.detach(), expected)
    near(result.margins, [0.3, 0.2])
    near(result.coefficients, [-1 / (1 + math.exp(0.3)) / 2, 1 / (1 + math.exp(0.2)) / 2, 0])
    gradient = torch.autograd.grad(result.loss, scores)[0]
    torch.testing.assert_close(gradient, result.coefficients)


def test_label_loss_without_labels_is_exactly_0():
    scores = floats(0.3, X).requires_grad_()
    result = label_loss(scores, floats(1, 0), torch.zeros(2, dtype=torch.bool))
    assert result.loss == 0
    assert len(result.margins) == 0
    assert torch.autograd.grad(result.loss, scores)[0].eq(0).all()


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_permuting_rows_permutes_every_result(seed):
    torch.manual_seed(seed)
    rows = 12
    trajectories = torch.arange(rows) % 4
    steps, groups = torch.arange(rows) // 4, trajectories // 2
    values, outcomes = torch.randn(rows, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    mask = torch.rand(rows, 3) < 0.7
    mask[:, 0] = True
    valid = torch.rand(rows) < 0.8
    states = torch.randint(3, (rows,))

    def results(order: Tensor) -> list[Tensor]:
        v, m, ok, t, g = values[order], mask[order], valid[order], trajectories[order], groups[order]
        returns = discounted_to_go(v[:, 0], t, steps[order], ok, gamma=0.9)
        anchors = exact_anchors(g, states[order])
        scores = turn_scores(v, m, ok)
        return [
            anchor_advantages(returns, anchors, ok, std="unbiased"),
            split_outcomes(outcomes, scores, t, ok, temperature=0.7),
            reward_leave_one_out(v, last_token(m) & ok[:, None], t, torch.tensor([0, 0, 1, 1])),
            normalize_tokens(v, g, m & ok[:, None], std_floor=0.0),
        ]

    order = torch.randperm(rows)
    for moved, still in zip(results(order), results(torch.arange(rows)), strict=True):
        torch.testing.assert_close(moved, still[order], rtol=0, atol=1e-9)
