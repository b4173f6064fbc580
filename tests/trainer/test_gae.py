"""Advantage estimation by hand, over tokens, over steps, and across their borders."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from istar_trainer.gae import first_token, gae, last_step, last_token, token_gae


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def in_order(rewards: Tensor, values: Tensor, gamma: float, lam: float) -> Tensor:
    """All items are one sequence, as they stand."""
    size, one = len(rewards), torch.zeros(len(rewards), dtype=torch.long)
    discount, trace = (torch.full((size,), factor, dtype=torch.float64) for factor in (gamma, lam))
    return gae(rewards, values, one, torch.arange(size), gamma=discount, lam=trace)


@pytest.mark.parametrize(
    ("rewards", "values", "gamma", "lam", "expected"),
    [
        ((0, 0, 1), (0.5, 0.6, 0.7), 1.0, 1.0, (0.5, 0.4, 0.3)),
        ((0, 0, 1), (0.5, 0.6, 0.7), 0.99, 0.95, (0.446828575, 0.37515, 0.3)),
        ((0, 0, 10), (4, 5, 6), 0.95, 0.9, (4.2726, 4.12, 4)),
    ],
    ids=["undiscounted", "discounted", "steps"],
)
def test_g9_golden_advantages(rewards, values, gamma, lam, expected):
    actual = in_order(numbers(*rewards), numbers(*values), gamma, lam)
    torch.testing.assert_close(actual, numbers(*expected), rtol=0, atol=1e-6)


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_p24_without_values_and_discounts_advantages_are_rewards_to_go(rewards):
    earned = numbers(*rewards)
    expected = earned.flip(0).cumsum(0).flip(0)
    torch.testing.assert_close(in_order(earned, torch.zeros_like(earned), 1.0, 1.0), expected)


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31))
def test_order_of_items_and_names_of_sequences_change_nothing(seed):
    torch.manual_seed(seed)
    sequence, position = torch.randint(3, (12,)), torch.randperm(12)
    rewards, values, gamma, lam = torch.rand(4, 12, dtype=torch.float64)
    expected = gae(rewards, values, sequence, position, gamma=gamma, lam=lam)
    order = torch.randperm(12)
    moved = gae(
        rewards[order],
        values[order],
        -7 * sequence[order],
        3 * position[order],
        gamma=gamma[order],
        lam=lam[order],
    )
    assert torch.equal(moved, expected[order])


def test_sequences_do_not_see_each_other():
    one = torch.zeros(2, dtype=torch.long)
    ones = torch.ones(4, dtype=torch.float64)
    advantages = gae(
        numbers(0, 5, 1, 7),
        torch.zeros(4, dtype=torch.float64),
        torch.tensor([0, 1, 0, 1]),
        torch.arange(4),
        gamma=ones,
        lam=ones,
    )
    assert advantages.tolist() == [1.0, 12.0, 1.0, 7.0]
    assert gae(ones[:0], ones[:0], one[:0], one[:0], gamma=ones[:0], lam=ones[:0]).tolist() == []


# Two steps of one trajectory, in reverse row order: step 0 has tokens 1 and 3, step 1 only token 2.
MASK = torch.tensor([[False, False, True, False], [False, True, False, True]])
STEPS, SAME = torch.tensor([1, 0]), torch.tensor([4, 4])
REWARDS = torch.where(MASK, torch.tensor([[0.0, 0.0, 8.0, 0.0], [0.0, 1.0, 0.0, 2.0]]), torch.nan)
VALUES = torch.where(MASK, torch.tensor([[0.0, 0.0, 4.0, 0.0], [0.0, 2.0, 0.0, 6.0]]), torch.nan)


def test_tokens_skip_what_was_not_sampled_and_carry_over_the_border_of_steps():
    actual = token_gae(REWARDS.nan_to_num(), VALUES.nan_to_num(), MASK, SAME, STEPS, gamma=0.5, lam=0.5)
    # last: 8 − 4 = 4; before: 2 + .5·4 − 6 + .25·4 = −1; first: 1 + .5·6 − 2 + .25·(−1) = 1.75
    assert actual.tolist() == [[0.0, 0.0, 4.0, 0.0], [0.0, 1.75, 0.0, -1.0]]


def test_numbers_at_other_tokens_are_not_read():
    actual = token_gae(REWARDS, VALUES, MASK, SAME, STEPS, gamma=0.5, lam=0.5)
    assert actual.isfinite().all()
    assert actual[~MASK].eq(0).all()


def test_rows_that_are_sequences_of_their_own_end_at_their_border():
    actual = token_gae(REWARDS, VALUES, MASK, torch.arange(2), STEPS, gamma=0.5, lam=0.5)
    # step 0: 2 − 6 = −4; 1 + .5·6 − 2 + .25·(−4) = 1
    assert actual.tolist() == [[0.0, 0.0, 4.0, 0.0], [0.0, 1.0, 0.0, -4.0]]


def test_the_border_of_steps_may_have_a_discount_of_its_own():
    actual = token_gae(REWARDS, VALUES, MASK, SAME, STEPS, gamma=0.5, lam=0.5, gamma_turn=1.0, lam_turn=0.75)
    # border: 2 + 4 − 6 + .75·4 = 3; inside: 1 + .5·6 − 2 + .25·3 = 2.75
    assert actual.tolist() == [[0.0, 0.0, 4.0, 0.0], [0.0, 2.75, 0.0, 3.0]]


def test_first_and_last_tokens_and_steps_are_found():
    assert last_token(MASK).int().tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]
    assert first_token(MASK).int().tolist() == [[0, 0, 1, 0], [0, 1, 0, 0]]
    assert not first_token(torch.zeros(1, 3, dtype=torch.bool)).any()
    trajectory, step = torch.tensor([7, 2, 7, 7]), torch.tensor([1, 0, 2, 3])
    valid = torch.tensor([True, True, True, False])
    assert last_step(trajectory, step, valid).tolist() == [False, True, True, False]
