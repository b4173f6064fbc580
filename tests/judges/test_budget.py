"""The budget: what is set aside, what is spent, and that the limit holds."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from istar_envs.chat import ChatBudget, Usage
from istar_envs.errors import ConfigError
from istar_judges.budget import Budget


def test_what_is_used_replaces_what_was_set_aside():
    budget = Budget(max_tokens=100)
    budget.settle(budget.reserve(60, 40), Usage(10, 5))
    assert (budget.spent.usage, budget.spent.calls) == (Usage(10, 5), 1)
    assert budget.reserve(60, 25) is not None


def test_a_cost_that_nobody_can_tell_counts_in_full():
    budget = Budget(max_tokens=100)
    budget.settle(budget.reserve(60, 30), None)
    assert (budget.spent.usage, budget.spent.unknown_calls) == (Usage(60, 30), 1)
    with pytest.raises(ChatBudget):
        budget.reserve(10, 1)


def test_a_call_waits_when_others_may_still_turn_out_cheaper():
    budget = Budget(max_tokens=100)
    ticket = budget.reserve(50, 40)
    assert budget.reserve(20, 0) is None
    budget.settle(ticket, Usage(5, 5))
    assert budget.reserve(20, 0) is not None


def test_a_call_that_can_never_fit_is_refused_with_the_figures():
    budget = Budget(max_tokens=100, max_cost=1.0, prompt_price=100.0)
    budget.settle(budget.reserve(30, 0), Usage(30, 0))
    with pytest.raises(ChatBudget, match=r"30 tokens of 100, cost 0.003 of 1; the next call may take 71"):
        budget.reserve(71, 0)


def test_the_limit_on_money_counts_both_prices():
    budget = Budget(max_cost=1.0, prompt_price=2.0, completion_price=10.0)
    budget.settle(budget.reserve(100_000, 50_000), Usage(100_000, 50_000))
    assert budget.spent.cost == pytest.approx(0.7)
    with pytest.raises(ChatBudget):
        budget.reserve(0, 30_001)
    assert budget.reserve(0, 30_000) is not None


def test_without_limits_everything_is_counted_and_nothing_refused():
    budget = Budget()
    budget.settle(budget.reserve(10**9, 10**9), Usage(10**9, 0))
    assert budget.spent.usage == Usage(10**9, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": -1}, "must not be negative"),
        ({"prompt_price": -0.1}, "must not be negative"),
        ({"max_cost": 1.0}, "without prices limits nothing"),
    ],
)
def test_a_budget_that_cannot_be_meant_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Budget(**options)


@pytest.mark.property
@given(
    st.integers(0, 500),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.floats(0, 1)), max_size=30),
)
def test_no_order_of_calls_spends_more_than_the_limit(limit, calls):
    budget = Budget(max_tokens=limit)
    waiting: list[tuple[int, Usage]] = []
    for prompt, completion, used in calls:
        try:
            ticket = budget.reserve(prompt, completion)
        except ChatBudget:
            continue
        if ticket is not None:
            waiting.append((ticket, Usage(int(prompt * used), completion)))
        elif waiting:
            budget.settle(*waiting.pop(0))
    for ticket, usage in waiting:
        budget.settle(ticket, usage)
    assert budget.spent.usage.prompt_tokens + budget.spent.usage.completion_tokens <= limit


def test_threads_together_stay_within_the_limit():
    budget = Budget(max_tokens=1000)

    def work() -> None:
        try:
            for _ in range(500):
                ticket = budget.reserve(1, 1)
                if ticket is not None:
                    budget.settle(ticket, Usage(1, 1))
        except ChatBudget:
            pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.spent.usage == Usage(500, 500)
