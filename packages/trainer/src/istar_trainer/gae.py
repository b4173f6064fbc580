"""Generalized advantage estimation over any sequences: tokens of a step, of a trajectory, or steps.

An item is a token or a step. It is named by the sequence it belongs to and its position there, so
the order of items changes nothing. How tokens and steps become items is the caller's choice.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_trainer.masked import at_least_float32, group_max, table_places, to_table


def gae(
    rewards: Float[Tensor, " items"],
    values: Float[Tensor, " items"],
    sequence_ids: Int[Tensor, " items"],
    positions: Int[Tensor, " items"],
    *,
    gamma: Float[Tensor, " items"],
    lam: Float[Tensor, " items"],
) -> Float[Tensor, " items"]:
    """Sum the discounted temporal differences that follow each item in its sequence.

    Implements spec §4.1: δ_t = r_t + γ·V_{t+1} − V_t and A_t = δ_t + γ·λ·A_{t+1}, with V and A 0
    after the last item. Zero values with λ = 1 give discounted rewards to go.

    Args:
        rewards: What each item earns.
        values: Value of the state before each item; no gradient.
        sequence_ids: Sequence of each item, any integers.
        positions: Place of each item in its sequence; they need not be consecutive.
        gamma: Discount from each item to the next.
        lam: λ from each item to the next.

    Returns:
        One advantage per item, in the precision of ``values``. Returns are advantages plus values.

    Example:
        >>> one, order, ones = torch.zeros(3, dtype=torch.long), torch.arange(3), torch.ones(3)
        >>> earned, expected = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.5, 0.6, 0.7])
        >>> gae(earned, expected, one, order, gamma=ones, lam=ones)
        tensor([0.5000, 0.4000, 0.3000])
    """
    place = table_places(sequence_ids, positions)
    before = to_table(values.double(), place)
    discount = to_table(gamma.double(), place)
    differences = to_table(rewards.double(), place) + discount * F.pad(before[:, 1:], (0, 1)) - before
    factors = discount * to_table(lam.double(), place)
    columns = list(differences.unbind(1))
    for column in range(len(columns) - 2, -1, -1):
        columns[column] = columns[column] + factors[:, column] * columns[column + 1]
    advantages = torch.stack(columns, dim=1)[place] if columns else values
    return advantages.to(at_least_float32(values).dtype)


def token_gae(
    rewards: Float[Tensor, "rows seq"],
    values: Float[Tensor, "rows seq"],
    mask: Bool[Tensor, "rows seq"],
    sequence_ids: Int[Tensor, " rows"],
    step_ids: Int[Tensor, " rows"],
    *,
    gamma: float,
    lam: float,
    gamma_turn: float | None = None,
    lam_turn: float | None = None,
) -> Float[Tensor, "rows seq"]:
    """Run ``gae`` over the sampled tokens of each sequence of steps, skipping all others.

    Implements the token scopes of spec §4.1: with one step per sequence the recursion stays inside
    the step; otherwise advantage and value are carried over the border of steps, with a discount
    and a λ of their own if given (the bi-level form).

    Args:
        rewards: What each token earns.
        values: Value of the state before each token; no gradient.
        mask: True at the tokens that count.
        sequence_ids: Sequence of each row, any integers.
        step_ids: Order of the rows inside their sequence.
        gamma: Discount from token to token.
        lam: λ from token to token.
        gamma_turn: Discount from the last token of a step to the next step; None for ``gamma``.
        lam_turn: λ from the last token of a step to the next step; None for ``lam``.

    Returns:
        One advantage per token, 0 outside the mask.
    """
    row, column = mask.nonzero().unbind(1)
    turns = last_token(mask)[mask]
    advantages = gae(
        rewards[mask],
        values[mask],
        sequence_ids[row],
        step_ids[row] * mask.shape[1] + column,
        gamma=torch.where(turns, gamma if gamma_turn is None else gamma_turn, gamma),
        lam=torch.where(turns, lam if lam_turn is None else lam_turn, lam),
    )
    return torch.zeros_like(values).to(advantages.dtype).masked_scatter(mask, advantages)


def last_token(mask: Bool[Tensor, "rows seq"]) -> Bool[Tensor, "rows seq"]:
    """Mark the last token of each row that counts.

    Args:
        mask: True at the tokens that count.

    Returns:
        True at one token of every row that has any.
    """
    return mask & (mask.flip(1).cumsum(1).flip(1) == 1)


def first_token(mask: Bool[Tensor, "rows seq"]) -> Bool[Tensor, "rows seq"]:
    """Mark the first token of each row that counts.

    Args:
        mask: True at the tokens that count.

    Returns:
        True at one token of every row that has any.
    """
    return mask & (mask.cumsum(1) == 1)


def last_step(
    trajectory_ids: Int[Tensor, " rows"], step_ids: Int[Tensor, " rows"], valid: Bool[Tensor, " rows"]
) -> Bool[Tensor, " rows"]:
    """Mark the last step of each trajectory.

    Args:
        trajectory_ids: Trajectory of each row, any integers.
        step_ids: Order of the steps inside their trajectory.
        valid: True where a row counts.

    Returns:
        True at one counted row of every trajectory that has any.
    """
    return valid & (step_ids == group_max(step_ids.double(), trajectory_ids, valid))
