"""Masked and per-group sums, means and deviations: the only place where they exist.

Axes: ``items`` are rows or trajectories, whichever the caller groups. Masks are True where an item
counts. Values under a False mask may be anything, NaN included: they reach neither results nor
gradients. Everything is accumulated in float64 and returned in the caller's precision (at least
float32). Groups are named by keys, so the order of items changes nothing.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def at_least_float32(values: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Widen half-precision values to float32; leave float32 and float64 as they are.

    Args:
        values: Any floating-point tensor; gradient passes through.

    Returns:
        The values in float32 or float64.
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))


def masked_sum(
    values: Float[Tensor, "*batch seq"], mask: Bool[Tensor, "*batch seq"]
) -> Float[Tensor, "*batch"]:
    """Add up the counted entries of the last axis.

    Args:
        values: What to add; gradient passes through.
        mask: True where an entry counts.

    Returns:
        One sum per leading position, 0 where nothing counts.
    """
    total = torch.where(mask, values, 0.0).double().sum(-1)
    return total.to(at_least_float32(values).dtype)


def masked_mean(
    values: Float[Tensor, "*batch seq"], mask: Bool[Tensor, "*batch seq"]
) -> Float[Tensor, "*batch"]:
    """Average the counted entries of the last axis.

    Args:
        values: What to average; gradient passes through.
        mask: True where an entry counts.

    Returns:
        One mean per leading position, 0 where nothing counts.
    """
    return masked_sum(values, mask) / mask.sum(-1).clamp_min(1)


def masked_std(
    values: Float[Tensor, "*batch seq"], mask: Bool[Tensor, "*batch seq"], *, unbiased: bool
) -> Float[Tensor, "*batch"]:
    """Standard deviation of the counted entries of the last axis.

    Args:
        values: What to measure.
        mask: True where an entry counts.
        unbiased: Divide by n - 1 (True) or by n, the population form (False).

    Returns:
        One deviation per leading position, 0 where fewer than two entries count.
    """
    deviation = values - masked_mean(values, mask).unsqueeze(-1)
    count = mask.sum(-1) - int(unbiased)
    return (masked_sum(deviation.square(), mask) / count.clamp_min(1)).sqrt()


def sum_by_index(
    values: Float[Tensor, " items"], index: Int[Tensor, " items"], size: int
) -> Float[Tensor, " {size}"]:
    """Add up the items that share an index.

    Args:
        values: What to add; gradient passes through.
        index: Destination of each item, 0 to ``size`` - 1.
        size: Number of destinations.

    Returns:
        One sum per destination, 0 where no item points.
    """
    zeros = torch.zeros(size, dtype=torch.float64, device=values.device)
    total = zeros.index_add(0, index, values.double())
    return total.to(at_least_float32(values).dtype)


def group_sum(
    values: Float[Tensor, " items"], keys: Int[Tensor, " items"], valid: Bool[Tensor, " items"]
) -> Float[Tensor, " items"]:
    """Sum over the counted items of each item's group.

    Args:
        values: What to add.
        keys: Group of each item: any integers, in any order.
        valid: True where an item counts.

    Returns:
        The sum of its group at every item, 0 where the group has no counted item.
    """
    groups, index = torch.unique(keys, return_inverse=True)
    return sum_by_index(torch.where(valid, values, 0.0), index, len(groups))[index]


def group_count(keys: Int[Tensor, " items"], valid: Bool[Tensor, " items"]) -> Int[Tensor, " items"]:
    """Count the items of each item's group that count.

    Args:
        keys: Group of each item.
        valid: True where an item counts.

    Returns:
        The number of counted members of its group at every item, int64.
    """
    return group_sum(valid.double(), keys, valid).long()


def group_mean(
    values: Float[Tensor, " items"], keys: Int[Tensor, " items"], valid: Bool[Tensor, " items"]
) -> Float[Tensor, " items"]:
    """Average over the counted items of each item's group.

    Args:
        values: What to average.
        keys: Group of each item.
        valid: True where an item counts.

    Returns:
        The mean of its group at every item, 0 where the group has no counted item.
    """
    return group_sum(values, keys, valid) / group_count(keys, valid).clamp_min(1)


def group_max(
    values: Float[Tensor, " items"], keys: Int[Tensor, " items"], valid: Bool[Tensor, " items"]
) -> Float[Tensor, " items"]:
    """Largest counted value of each item's group.

    Args:
        values: What to compare.
        keys: Group of each item.
        valid: True where an item counts.

    Returns:
        The maximum of its group at every item, minus infinity where the group has no counted item.
    """
    groups, index = torch.unique(keys, return_inverse=True)
    lowest = values.new_full((len(groups),), -torch.inf)
    counted = torch.where(valid, values, -torch.inf)
    return lowest.scatter_reduce(0, index, counted, "amax")[index]


def group_deviation(
    values: Float[Tensor, " items"], keys: Int[Tensor, " items"], valid: Bool[Tensor, " items"]
) -> Float[Tensor, " items"]:
    """Subtract the mean of each item's group.

    A group whose values are all equal gives exactly zero, not rounding noise that a later division
    by its own deviation would turn into unit size.

    Args:
        values: What to centre.
        keys: Group of each item.
        valid: True where an item counts.

    Returns:
        Value minus group mean, 0 for items that do not count.
    """
    below_top = torch.where(valid, values.double() - group_max(values, keys, valid).double(), 0.0)
    deviation = torch.where(valid, below_top - group_mean(below_top, keys, valid), 0.0)
    return deviation.to(at_least_float32(values).dtype)


def group_std(
    values: Float[Tensor, " items"],
    keys: Int[Tensor, " items"],
    valid: Bool[Tensor, " items"],
    *,
    unbiased: bool,
) -> Float[Tensor, " items"]:
    """Standard deviation over the counted items of each item's group.

    Args:
        values: What to measure.
        keys: Group of each item.
        valid: True where an item counts.
        unbiased: Divide by n - 1 (True) or by n, the population form (False).

    Returns:
        The deviation of its group at every item, 0 where the group is tied or has one counted item.
    """
    squares = group_sum(group_deviation(values.double(), keys, valid).square(), keys, valid)
    count = group_count(keys, valid) - int(unbiased)
    return (squares / count.clamp_min(1)).sqrt().to(at_least_float32(values).dtype)


def whiten_by_mean_and_std(
    values: Float[Tensor, " items"],
    keys: Int[Tensor, " items"],
    valid: Bool[Tensor, " items"],
    *,
    std_floor: float,
) -> Float[Tensor, " items"]:
    """Subtract the group's mean and divide by its population deviation.

    Args:
        values: What to whiten.
        keys: Group of each item; one key for all whitens over the whole batch.
        valid: True where an item counts.
        std_floor: Deviation, in the unit of the values, that a group must exceed; a group that
            varies less holds noise and gives 0.

    Returns:
        Mean 0 and deviation 1 in every group above the floor; 0 elsewhere.
    """
    std = group_std(values, keys, valid, unbiased=False)
    return divide_above_floor(group_deviation(values, keys, valid), std, floor=std_floor)


def divide_above_floor(
    values: Float[Tensor, " items"], divisors: Float[Tensor, " items"], *, floor: float
) -> Float[Tensor, " items"]:
    """Divide where the divisor exceeds a floor, and give 0 elsewhere.

    Args:
        values: Numerators.
        divisors: Denominators; may be 0 or not finite.
        floor: Value that a divisor must exceed, at least 0.

    Returns:
        The quotient, or 0 where the divisor does not exceed the floor.
    """
    above = divisors > floor
    return torch.where(above, values / torch.where(above, divisors, 1.0), 0.0)


def leave_one_out(
    values: Float[Tensor, " items"], keys: Int[Tensor, " items"], valid: Bool[Tensor, " items"]
) -> Float[Tensor, " items"]:
    """Subtract from each item the mean of the *other* members of its group.

    Args:
        values: What to compare.
        keys: Group of each item.
        valid: True where an item counts.

    Returns:
        Value minus mean of the others; the value itself where there are no others; 0 for items
        that do not count.
    """
    count = group_count(keys, valid)
    scaled = group_deviation(values, keys, valid) * count / (count - 1).clamp_min(1)
    alone = at_least_float32(torch.where(valid, values, 0.0))
    return torch.where(count == 1, alone, scaled)


def require_unique_steps(
    trajectory_ids: Int[Tensor, " rows"], step_ids: Int[Tensor, " rows"], valid: Bool[Tensor, " rows"]
) -> None:
    """Check that no step of a trajectory appears in two counted rows.

    Args:
        trajectory_ids: Trajectory of each row.
        step_ids: Position of the step inside its trajectory.
        valid: True where a row counts; padding rows may repeat anything.

    Raises:
        ValueError: If a step appears twice: copying rows to fill a batch would count it double in
            pairs, baselines and loss. Fill with rows that do not count instead.
    """
    keys = torch.stack([trajectory_ids[valid], step_ids[valid]], dim=1)
    distinct, counts = torch.unique(keys, dim=0, return_counts=True)
    if len(distinct) < len(keys):
        trajectory, step = distinct[counts.argmax()].tolist()
        raise ValueError(
            f"step {step} of trajectory {trajectory} appears in {int(counts.max())} rows that count; "
            "fill batches with rows of weight 0 instead of copies"
        )


def table_places(
    sequence_ids: Int[Tensor, " items"], positions: Int[Tensor, " items"]
) -> tuple[Int[Tensor, " items"], Int[Tensor, " items"]]:
    """Number the sequences, and the items inside each by their order, from 0.

    Args:
        sequence_ids: Sequence of each item, any integers.
        positions: Order of the items inside their sequence; they need not be consecutive.

    Returns:
        Line and column of each item in a table with one sequence per line.
    """
    sequence = torch.unique(sequence_ids, return_inverse=True)[1]
    order = positions.argsort(stable=True)
    order = order[sequence[order].argsort(stable=True)]
    counts = sequence.bincount()
    starts = counts.cumsum(0) - counts
    column = torch.arange(len(order), device=order.device) - starts[sequence[order]]
    return sequence, torch.empty_like(order).scatter(0, order, column)


def to_table(
    values: Float[Tensor, " items"], place: tuple[Int[Tensor, " items"], Int[Tensor, " items"]]
) -> Float[Tensor, "sequences longest"]:
    """Lay values out as one line per sequence, 0 after its last item.

    Args:
        values: One value per item.
        place: From ``table_places``.

    Returns:
        The table; ``table[place]`` gives the values back.
    """
    height, width = (int(axis.max()) + 1 if len(axis) else 0 for axis in place)
    return values.new_zeros(height, width).index_put(place, values)
