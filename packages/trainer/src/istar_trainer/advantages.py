"""From outcomes and step rewards to one advantage per step, and per token.

Outcome estimators work on ``trajectories``, step normalisers on ``rows`` (steps). A trajectory
without a verdict (``has_outcome`` False) and a row that does not count (``valid`` False) get 0 and
enter no mean. Nothing here carries gradient, and no result depends on the order of rows, except in
``istar_official_step_advantages``, which reproduces a known defect on purpose.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_envs.errors import suggest
from istar_trainer.masked import (
    at_least_float32,
    divide_above_floor,
    group_count,
    group_deviation,
    group_max,
    group_std,
    group_sum,
    leave_one_out,
    whiten_by_mean_and_std,
)

OutcomeStd = Literal["unbiased", "population", "none"]
StepScope = Literal["group", "batch"]
StepNorm = Literal["mean_std", "rloo", "maxabs", "none"]
CreditGroups = Literal["all", "with_pairs"]

GRPO_EPS = 1e-6


def grpo_advantages(
    outcomes: Float[Tensor, " trajectories"],
    trajectory_groups: Int[Tensor, " trajectories"],
    has_outcome: Bool[Tensor, " trajectories"],
    *,
    std: OutcomeStd,
) -> Float[Tensor, " trajectories"]:
    """Compare each outcome with its group: (r − mean) / (std + 1e-6).

    Implements spec §4.2. The group of one keeps its outcome (mean 0, std 1).

    Args:
        outcomes: Judged result of each trajectory.
        trajectory_groups: Group of each trajectory.
        has_outcome: True where the judge gave a verdict.
        std: ``unbiased`` (n - 1, the published code), ``population`` (n) or ``none``, which only
            subtracts the mean.

    Returns:
        One advantage per trajectory, summing to 0 in every group of two or more.

    Raises:
        ValueError: If ``std`` is unknown.
    """
    if std not in get_args(OutcomeStd):
        raise ValueError(f'unknown std "{std}".{suggest(std, get_args(OutcomeStd))}')
    advantages = group_deviation(outcomes, trajectory_groups, has_outcome)
    if std != "none":
        spread = group_std(outcomes, trajectory_groups, has_outcome, unbiased=std == "unbiased")
        advantages = advantages / (spread + GRPO_EPS)
    alone = has_outcome & (group_count(trajectory_groups, has_outcome) == 1)
    return torch.where(alone, at_least_float32(outcomes), advantages)


def rloo_advantages(
    outcomes: Float[Tensor, " trajectories"],
    trajectory_groups: Int[Tensor, " trajectories"],
    has_outcome: Bool[Tensor, " trajectories"],
) -> Float[Tensor, " trajectories"]:
    """Compare each outcome with the mean of the others of its group.

    Implements spec §4.3: N/(N − 1)·(r − mean); the group of one keeps its outcome.

    Args:
        outcomes: Judged result of each trajectory.
        trajectory_groups: Group of each trajectory.
        has_outcome: True where the judge gave a verdict.

    Returns:
        One advantage per trajectory, summing to 0 in every group of two or more.
    """
    return leave_one_out(outcomes, trajectory_groups, has_outcome)


def normalize_step_rewards(
    step_rewards: Float[Tensor, " rows"],
    group_ids: Int[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
    *,
    scope: StepScope,
    norm: StepNorm,
    std_floor: float,
) -> Float[Tensor, " rows"]:
    """Compare each step's implicit reward with all steps of its group, or of the batch.

    Implements the step advantage A^S of spec §1.3 and §3.4, with the measured floor of §7.4.

    Args:
        step_rewards: Implicit reward (or attributed credit) of each step.
        group_ids: Group of each row. Rows of a group need not be neighbours.
        valid: True where a row counts.
        scope: Compare within the ``group`` or over the whole ``batch``.
        norm: ``mean_std`` (population), ``rloo`` over steps, ``maxabs`` (divide by the largest
            magnitude, no centring) or ``none``.
        std_floor: What the divisor of ``mean_std`` and ``maxabs`` must exceed, in reward units; a
            group below it holds rounding noise and gets 0.

    Returns:
        One value per row, 0 for rows that do not count.

    Raises:
        ValueError: If an option is unknown.

    Example:
        >>> one, all_rows = torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.bool)
        >>> normalize_step_rewards(
        ...     torch.tensor([1.0, 3.0]), one, all_rows, scope="group", norm="mean_std", std_floor=1e-3
        ... )
        tensor([-1.,  1.])
    """
    if scope not in get_args(StepScope):
        raise ValueError(f'unknown scope "{scope}".{suggest(scope, get_args(StepScope))}')
    keys = group_ids if scope == "group" else torch.zeros_like(group_ids)
    if norm == "mean_std":
        return whiten_by_mean_and_std(step_rewards, keys, valid, std_floor=std_floor)
    if norm == "rloo":
        return leave_one_out(step_rewards, keys, valid)
    counted = at_least_float32(torch.where(valid, step_rewards, 0.0))
    if norm == "maxabs":
        return divide_above_floor(counted, group_max(counted.abs(), keys, valid), floor=std_floor)
    if norm == "none":
        return counted
    raise ValueError(f'unknown norm "{norm}".{suggest(norm, get_args(StepNorm))}')


def is_degenerate(
    outcomes: Float[Tensor, " trajectories"],
    trajectory_groups: Int[Tensor, " trajectories"],
    has_outcome: Bool[Tensor, " trajectories"],
) -> Bool[Tensor, " trajectories"]:
    """Say which trajectories belong to a group whose outcomes are all equal.

    Args:
        outcomes: Judged result of each trajectory.
        trajectory_groups: Group of each trajectory.
        has_outcome: True where the judge gave a verdict; the others are not compared.

    Returns:
        True for every member of a group in which no two verdicts differ.
    """
    return group_std(outcomes, trajectory_groups, has_outcome, unbiased=False) == 0


def step_advantage_factors(
    outcomes: Float[Tensor, " trajectories"],
    trajectory_groups: Int[Tensor, " trajectories"],
    has_outcome: Bool[Tensor, " trajectories"],
    preferred: Int[Tensor, " pairs"],
    *,
    groups: CreditGroups,
    degenerate_scale: float,
) -> Float[Tensor, " trajectories"]:
    """Say how much of its step advantage each trajectory may keep.

    Implements ``credit.groups`` of spec §10 and ``step_adv_on_degenerate_groups`` of §3.4.

    Args:
        outcomes: Judged result of each trajectory.
        trajectory_groups: Group of each trajectory.
        has_outcome: True where the judge gave a verdict.
        preferred: Preferred trajectory of each pair of the batch.
        groups: ``all`` credits every group, ``with_pairs`` only groups that gave the PRM a pair.
        degenerate_scale: Factor for groups whose outcomes are all equal, where only the PRM would
            move the policy: 1 keeps their step advantages, 0 drops them.

    Returns:
        float64 factor per trajectory, 0 without a verdict.

    Raises:
        ValueError: If ``groups`` is unknown.
    """
    tied = is_degenerate(outcomes, trajectory_groups, has_outcome)
    factors = torch.where(tied, degenerate_scale, 1.0).double() * has_outcome
    if groups == "all":
        return factors
    if groups == "with_pairs":
        return factors * torch.isin(trajectory_groups, trajectory_groups[preferred])
    raise ValueError(f'unknown groups "{groups}".{suggest(groups, get_args(CreditGroups))}')


def combine_advantages(
    outcome_advantages: Float[Tensor, "rows seq"],
    step_advantages: Float[Tensor, "rows seq"],
    *,
    replaces_outcome: bool = False,
) -> Float[Tensor, "rows seq"]:
    """Add the two parts of a token's advantage: A = A^E + α·A^S (spec §1.3).

    Args:
        outcome_advantages: A^E of each token.
        step_advantages: A^S of each token, already scaled by α; where it is 0, the outcome part
            stays as it is, bit for bit.
        replaces_outcome: Whether the step part is the whole advantage.

    Returns:
        One advantage per token.
    """
    if replaces_outcome:
        return step_advantages
    total = outcome_advantages + step_advantages
    return torch.where(step_advantages == 0, outcome_advantages.to(total.dtype), total)


def spread_over_tokens(
    step_values: Float[Tensor, " rows"], response_mask: Bool[Tensor, "rows seq"]
) -> Float[Tensor, "rows seq"]:
    """Give every sampled token of a step the step's value.

    Args:
        step_values: One value per row.
        response_mask: True where the policy sampled the token.

    Returns:
        The step's value at its sampled tokens, 0 elsewhere.
    """
    return torch.where(response_mask, step_values.unsqueeze(-1), 0.0)


def istar_official_step_advantages(
    step_rewards: Float[Tensor, " rows"],
    trajectory_ids: Int[Tensor, " rows"],
    group_ids: Int[Tensor, " rows"],
) -> Float[Tensor, " rows"]:
    """Reproduce the step advantage of the published code, for forensic comparison only.

    Spec §2.4: rewards are divided by the batch's largest magnitude; the baseline averages only the
    *first-seen* row of each trajectory, times N/(N − 1) with N trajectories. It therefore depends
    on the order of rows and does not sum to 0.

    Args:
        step_rewards: Implicit reward of each step, all rows counting.
        trajectory_ids: Trajectory of each row.
        group_ids: Group of each row.

    Returns:
        One value per row.
    """
    everyone = torch.ones_like(group_ids, dtype=torch.bool)
    whole_batch = torch.zeros_like(group_ids)
    scaled = divide_above_floor(step_rewards, group_max(step_rewards.abs(), whole_batch, everyone), floor=0.0)
    order = torch.arange(len(step_rewards), device=step_rewards.device)
    first_seen = order == -group_max(-order.double(), trajectory_ids, everyone)
    count = group_count(group_ids, first_seen)
    baseline = group_sum(scaled, group_ids, first_seen) / count
    return torch.where(count == 1, scaled, (scaled - baseline) * count / (count - 1).clamp_min(1))
