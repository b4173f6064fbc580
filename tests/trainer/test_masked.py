import pytest
import torch
from torch import Tensor

from istar_trainer.masked import (
    at_least_float32,
    divide_above_floor,
    group_count,
    group_deviation,
    group_max,
    group_mean,
    group_std,
    group_sum,
    leave_one_out,
    masked_mean,
    masked_std,
    masked_sum,
    require_unique_steps,
    sum_by_index,
    table_places,
    to_table,
    whiten_by_mean_and_std,
)

VALUES = torch.tensor([1.0, 10.0, 3.0, 20.0, torch.nan, 5.0], dtype=torch.float64)
KEYS = torch.tensor([7, -2, 7, -2, 7, 7])
VALID = torch.tensor([True, True, True, True, False, True])
TWO_ROWS = torch.tensor([[1.0, 2.0, torch.nan], [torch.inf, torch.nan, torch.nan]])
TWO_ROWS_MASK = torch.tensor([[True, True, False], [False, False, False]])


def equal(actual: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=1e-12)


def test_masked_sum_and_mean_ignore_what_does_not_count_and_give_0_for_nothing():
    equal(masked_sum(TWO_ROWS, TWO_ROWS_MASK), [3.0, 0.0])
    equal(masked_mean(TWO_ROWS, TWO_ROWS_MASK), [1.5, 0.0])


@pytest.mark.parametrize(("unbiased", "expected"), [(False, 0.5), (True, 0.5**0.5)])
def test_masked_std_divides_by_n_or_by_n_minus_1(unbiased, expected):
    std = masked_std(TWO_ROWS.double(), TWO_ROWS_MASK, unbiased=unbiased)
    equal(std, [expected, 0.0])


def test_nan_outside_the_mask_does_not_reach_the_gradient():
    values = TWO_ROWS.clone().requires_grad_()
    masked_mean(values, TWO_ROWS_MASK).sum().backward()
    equal(values.grad.flatten(), [0.5, 0.5, 0.0, 0.0, 0.0, 0.0])


def test_half_precision_is_summed_without_its_rounding():
    values = torch.full((1, 1000), 0.1, dtype=torch.bfloat16)
    total = masked_sum(values, torch.ones_like(values, dtype=torch.bool))
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(1000 * values[0, 0].item(), rel=1e-6)


def test_at_least_float32_keeps_double():
    assert at_least_float32(torch.zeros(1, dtype=torch.float16)).dtype == torch.float32
    assert at_least_float32(torch.zeros(1, dtype=torch.float64)).dtype == torch.float64


def test_sum_by_index_fills_missing_places_with_0():
    equal(sum_by_index(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 2]), 4), [2.0, 0.0, 5.0, 0.0])


def test_group_statistics_by_hand():
    equal(group_sum(VALUES, KEYS, VALID), [9.0, 30.0, 9.0, 30.0, 9.0, 9.0])
    assert group_count(KEYS, VALID).tolist() == [3, 2, 3, 2, 3, 3]
    equal(group_mean(VALUES, KEYS, VALID), [3.0, 15.0, 3.0, 15.0, 3.0, 3.0])
    equal(group_max(VALUES, KEYS, VALID), [5.0, 20.0, 5.0, 20.0, 5.0, 5.0])
    equal(group_deviation(VALUES, KEYS, VALID), [-2.0, -5.0, 0.0, 5.0, 0.0, 2.0])
    population = (8 / 3) ** 0.5
    equal(
        group_std(VALUES, KEYS, VALID, unbiased=False),
        [population, 5.0, population, 5.0, population, population],
    )
    equal(group_std(VALUES, KEYS, VALID, unbiased=True), [2.0, 50**0.5, 2.0, 50**0.5, 2.0, 2.0])


def test_leave_one_out_compares_with_the_mean_of_the_others():
    equal(leave_one_out(VALUES, KEYS, VALID), [-3.0, -10.0, 0.0, 10.0, 0.0, 3.0])


def test_leave_one_out_keeps_a_lonely_value_and_drops_what_does_not_count():
    equal(
        leave_one_out(torch.tensor([4.0, 9.0]), torch.tensor([1, 1]), torch.tensor([True, False])), [4.0, 0.0]
    )


@pytest.mark.parametrize("value", [0.1, 1e6 + 0.3, -7e-9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tied_group_has_exactly_no_deviation(value, dtype):
    values = torch.full((7,), value, dtype=dtype)
    keys, valid = torch.zeros(7, dtype=torch.long), torch.ones(7, dtype=torch.bool)
    assert group_deviation(values, keys, valid).eq(0).all()
    assert whiten_by_mean_and_std(values, keys, valid, std_floor=0.0).eq(0).all()


def test_whitening_gives_0_up_to_the_floor_and_unit_size_above_it():
    values, keys = torch.tensor([1.0, 3.0]), torch.tensor([0, 0])
    valid = torch.tensor([True, True])
    equal(whiten_by_mean_and_std(values, keys, valid, std_floor=1.0), [0.0, 0.0])
    equal(whiten_by_mean_and_std(values, keys, valid, std_floor=0.99), [-1.0, 1.0])


def test_divide_above_floor_never_divides_by_0():
    equal(
        divide_above_floor(torch.tensor([1.0, 1.0]), torch.tensor([0.0, -torch.inf]), floor=0.0), [0.0, 0.0]
    )


def test_groups_without_counted_items_and_empty_input_are_fine():
    nothing = torch.zeros(0), torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.bool)
    assert whiten_by_mean_and_std(*nothing, std_floor=0.0).shape == (0,)
    alone = torch.tensor([torch.nan]), torch.tensor([3]), torch.tensor([False])
    equal(whiten_by_mean_and_std(*alone, std_floor=0.0), [0.0])
    equal(leave_one_out(*alone), [0.0])


def test_a_step_held_twice_is_rejected_unless_its_copy_does_not_count():
    trajectories, steps = torch.tensor([4, 4, 9, 4]), torch.tensor([0, 1, 0, 1])
    require_unique_steps(trajectories, steps, torch.tensor([True, True, True, False]))
    with pytest.raises(ValueError, match="step 1 of trajectory 4 appears in 2 rows"):
        require_unique_steps(trajectories, steps, torch.tensor([True, True, True, True]))


def test_sequences_lie_side_by_side_in_a_table_whatever_the_order_of_items():
    place = table_places(torch.tensor([7, -2, 7, 7]), torch.tensor([30, 5, 0, 10]))
    values = torch.tensor([3.0, 9.0, 1.0, 2.0])
    table = to_table(values, place)
    assert table.tolist() == [[9.0, 0.0, 0.0], [1.0, 2.0, 3.0]]
    assert torch.equal(table[place], values)
    assert to_table(values[:0], table_places(KEYS[:0], KEYS[:0])).shape == (0, 0)
