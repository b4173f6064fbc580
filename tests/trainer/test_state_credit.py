"""Credit compared between actions in equal states, against numbers computed by hand."""

import math

import pytest
import torch
from torch import Tensor

from istar_trainer.state_credit import action_ids, choices, state_auc, variance_shares

STATES = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3])
ACTIONS = torch.tensor([5, 5, 6, 5, 7, 5, 8, 8])
ALL = torch.ones(8, dtype=torch.bool)


def floats(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_equal_replies_have_equal_numbers_wherever_their_prompts_stand():
    ids = torch.tensor([[9, 1, 2, 0], [0, 1, 2, 0], [9, 1, 3, 0], [9, 1, 2, 4]])
    mask = torch.tensor([[False, True, True, False]] * 3 + [[False, True, True, True]])
    numbers = action_ids(ids, mask).tolist()
    assert numbers[0] == numbers[1]
    assert len(set(numbers)) == 3


def test_only_states_that_saw_different_actions_offer_a_choice():
    assert choices(STATES, ACTIONS, ALL).tolist() == [True] * 5 + [False] * 3
    valid = ALL.clone()
    valid[2] = False  # the only other action of state 0
    assert choices(STATES, ACTIONS, valid).tolist() == [False, False, False, True, True, False, False, False]


def test_variance_is_split_between_state_action_and_what_followed():
    # State 0: 1, 3 (one action) and 5; state 1: −3, −6. Mean of all five 0, total 80.
    # Inside states: means 3 and −4.5, squares 4 + 0 + 4 + 2.25 + 2.25 = 12.5; inside actions: 1 + 1 = 2.
    shares = variance_shares(floats(1, 3, 5, -3, -6, 99, 99, 99), STATES, ACTIONS, ALL)
    assert shares.compared == 5 / 8
    assert shares.state == pytest.approx(1 - 12.5 / 80)
    assert shares.action == pytest.approx(10.5 / 80)
    assert shares.state_std == pytest.approx(math.sqrt(12.5 / 5))


def test_credit_of_states_alone_is_seen_through():
    shares = variance_shares(STATES.double(), STATES, ACTIONS, ALL)
    assert shares.state == 1
    assert shares.action == 0
    assert shares.state_std == 0


def test_without_a_choice_or_without_variance_there_is_no_share():
    nothing = variance_shares(floats(*range(8)), STATES, torch.zeros_like(ACTIONS), ALL)
    assert nothing.compared == 0
    assert all(math.isnan(x) for x in (nothing.state, nothing.action, nothing.state_std))
    flat = variance_shares(torch.ones(8), STATES, ACTIONS, ALL)
    assert math.isnan(flat.state)
    assert flat.state_std == 0


def test_auc_compares_successes_with_failures_of_other_actions_in_the_same_state():
    won = torch.tensor([True, False, False, True, False, True, True, False])
    # State 0: the success (credit 4) against the failure of the other action (credit 1) is right; the failure
    # of its own action (credit 9) is not compared. State 1: −1 against 2 is wrong. State 3: one action only.
    credit = floats(4, 9, 1, -1, 2, 0, 0, 7)
    assert state_auc(credit, STATES, ACTIONS, won, ALL) == 0.5
    assert state_auc(torch.zeros(8), STATES, ACTIONS, won, ALL) == 0.5
    assert state_auc(credit.clone().index_fill(0, torch.tensor([3]), 3), STATES, ACTIONS, won, ALL) == 1


def test_auc_is_nan_where_nothing_can_be_compared():
    assert math.isnan(state_auc(torch.zeros(8), STATES, ACTIONS, ALL, ALL))


def test_rows_that_do_not_count_and_the_order_of_rows_change_nothing():
    torch.manual_seed(0)
    credit, won = torch.randn(40), torch.rand(40) < 0.5
    states, actions = torch.randint(4, (40,)), torch.randint(3, (40,))
    valid = torch.arange(40) < 30
    order = torch.randperm(40)
    for measure in (
        lambda i: state_auc(credit[i], states[i], actions[i], won[i], valid[i]),
        lambda i: variance_shares(credit[i], states[i], actions[i], valid[i]).action,
    ):
        expected = measure(torch.arange(30))
        assert measure(torch.arange(40)) == pytest.approx(expected, abs=1e-12)
        assert measure(order) == pytest.approx(expected, abs=1e-12)
