"""Whether step credit is about actions or only about states.

Pair accuracy cannot tell: a reward model that recognises bad states and long episodes ranks pairs well
and still credits every action alike (spec §10). Here credit is compared only between different actions
taken in the same state, over the rows of one batch.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_trainer.masked import group_count, group_deviation, group_sum


@dataclass(frozen=True, slots=True)
class VarianceShares:
    """Where the variance of credit comes from, over steps whose state saw different actions.

    Attributes:
        compared: Share of all steps that stand in such a state.
        state: Share of their credit's variance that the state alone explains.
        action: Share that the action explains on top of its state; the rest is what follows it.
        state_std: Standard deviation of credit inside states, in the unit of the credit.
    """

    compared: float
    state: float
    action: float
    state_std: float


def action_ids(
    input_ids: Int[Tensor, "rows seq"], response_mask: Bool[Tensor, "rows seq"]
) -> Int[Tensor, " rows"]:
    """Number replies so that equal replies have equal numbers.

    Args:
        input_ids: Token ids; replies of all rows begin at the same column.
        response_mask: True where the policy sampled the token.

    Returns:
        Number of each row's reply.
    """
    return _number(torch.where(response_mask, input_ids, -1))


def choices(
    states: Int[Tensor, " rows"], actions: Int[Tensor, " rows"], valid: Bool[Tensor, " rows"]
) -> Bool[Tensor, " rows"]:
    """Say which rows that count stand in a state where other rows did something else."""
    same = group_count(_pairs_of(states, actions), valid)
    return valid & (same < group_count(states, valid))


def variance_shares(
    credit: Float[Tensor, " rows"],
    states: Int[Tensor, " rows"],
    actions: Int[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
) -> VarianceShares:
    """Split the variance of credit into what the state, and what the action in it, explains.

    Args:
        credit: Credit of each step, before any normalization.
        states: Equal iff two steps were taken in equal states.
        actions: From ``action_ids``.
        valid: True where a row counts.

    Returns:
        The shares; NaN where nothing can be compared or credit does not vary.
    """
    chosen = choices(states, actions, valid)
    everyone = torch.zeros_like(states)
    total = float(group_deviation(credit.double(), everyone, chosen).square().sum())
    in_state = group_deviation(credit.double(), states, chosen)
    within = float(in_state.square().sum())
    in_action = group_deviation(credit.double(), _pairs_of(states, actions), chosen)
    rest = float(in_action.square().sum())
    num = int(chosen.sum())
    return VarianceShares(
        compared=num / max(int(valid.sum()), 1),
        state=1 - within / total if total > 0 else float("nan"),
        action=(within - rest) / total if total > 0 else float("nan"),
        state_std=(within / num) ** 0.5 if num else float("nan"),
    )


def state_auc(
    credit: Float[Tensor, " rows"],
    states: Int[Tensor, " rows"],
    actions: Int[Tensor, " rows"],
    won: Bool[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
) -> float:
    """Probability that of two actions in one state the one that led to success has more credit.

    Args:
        credit: Credit of each step.
        states: Equal iff two steps were taken in equal states.
        actions: From ``action_ids``; equal actions are not compared.
        won: True for steps of successful trajectories.
        valid: True where a row counts.

    Returns:
        Share in [0, 1] over all such pairs of steps, ties counting one half; NaN without pairs.
    """
    mixed = group_sum((won & valid).double(), states, valid) * group_sum(
        (~won & valid).double(), states, valid
    )
    chosen = (choices(states, actions, valid) & (mixed > 0)).nonzero().squeeze(1)
    chosen = chosen[states[chosen].argsort(stable=True)]
    right = compared = 0.0
    sizes = torch.unique_consecutive(states[chosen], return_counts=True)[1].tolist()
    for rows in torch.split(chosen, sizes):
        good, bad = rows[won[rows]], rows[~won[rows]]
        differs = actions[good][:, None] != actions[bad]
        gap = credit.double()[good][:, None] - credit.double()[bad]
        right += float((((gap > 0).double() + 0.5 * (gap == 0).double()) * differs).sum())
        compared += float(differs.sum())
    return right / compared if compared else float("nan")


def _pairs_of(states: Int[Tensor, " rows"], actions: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    return _number(torch.stack([states, actions], dim=1))


def _number(keys: Int[Tensor, "rows key"]) -> Int[Tensor, " rows"]:
    """Number rows so that equal ones have equal numbers."""
    numbers: Int[Tensor, " rows"] = torch.unique(keys, dim=0, return_inverse=True)[1]
    return numbers
