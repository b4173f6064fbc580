"""Which step a state's share of the implicit reward belongs to.

The implicit reward of a step splits into what the action did, r − c, and an offset of the state
it was taken in, c(h) = E over the old policy's actions of r(h, a) = −β·KL(π_old‖π_φ). That offset
reflects what the *previous* action led to, so the shifted forms move it there (spec §10). Nothing
here needs gradient except the centring of PRM scores.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_envs.errors import suggest
from istar_trainer.gae import gae
from istar_trainer.masked import (
    at_least_float32,
    masked_sum,
    require_unique_steps,
    table_places,
    to_table,
)

Attribution = Literal["as_published", "shifted", "shifted_to_go"]
Center = Literal["none", "policy_kl"]


def token_kl(
    old_logits: Float[Tensor, "*axes vocab"], prm_logits: Float[Tensor, "*axes vocab"]
) -> Float[Tensor, "*axes"]:
    """Divergence KL(π_old‖π_φ) of the next-token distributions, computed from all their logits.

    Args:
        old_logits: Logits of the policy that sampled, divided by the sampling temperature; never
            gets gradient.
        prm_logits: Logits of the PRM at the same temperature; carries gradient.

    Returns:
        Divergence in nats at every position, at least float32. A token that the old policy cannot
        produce (logit minus infinity) adds nothing.
    """
    old = at_least_float32(old_logits.detach()).log_softmax(-1)
    prm = at_least_float32(prm_logits).log_softmax(-1)
    possible = old > -torch.inf
    return torch.where(possible, old.exp() * (old - torch.where(possible, prm, 0.0)), 0.0).sum(-1)


def step_centers(
    kl: Float[Tensor, "rows seq"], response_mask: Bool[Tensor, "rows seq"], *, beta: float
) -> Float[Tensor, " rows"]:
    """Expected implicit reward of each step under the policy that sampled it.

    Implements c_t = −β·Σ_k KL(π_old‖π_φ)_k of spec §10, along the sampled tokens.

    Args:
        kl: From ``token_kl``; carries gradient if it has one.
        response_mask: True where the policy sampled the token.
        beta: PRM temperature.

    Returns:
        One offset per step in β-scaled nats, never above 0 (but for rounding).
    """
    return -beta * masked_sum(kl, response_mask)


def center_step_rewards(
    step_rewards: Float[Tensor, " rows"], centers: Float[Tensor, " rows"]
) -> Float[Tensor, " rows"]:
    """Take each step's expected reward under the old policy off: r̃ = r − c.

    Args:
        step_rewards: Implicit reward of each step; carries gradient if it has one.
        centers: From ``step_centers`` at the same β.

    Returns:
        Rewards whose mean over the old policy's actions is 0 in every state.
    """
    return step_rewards - centers


def attribute_credit(
    step_rewards: Float[Tensor, " rows"],
    centers: Float[Tensor, " rows"] | None,
    trajectory_ids: Int[Tensor, " rows"],
    step_ids: Int[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
    *,
    attribution: Attribution,
    center: Center,
    gamma: float,
) -> Float[Tensor, " rows"]:
    """Decide how much of the implicit reward each step is credited with.

    Implements the attributions of spec §10. ``as_published`` keeps r (or r − c with ``center:
    policy_kl``). ``shifted`` gives r_t − c_t + c_{t+1}, where c after the last step is 0, so a
    trajectory's total changes only by c of its first state, which its group shares.
    ``shifted_to_go`` adds up the shifted credit of this and all later steps, discounted. The shifted
    forms always split r, so ``center`` matters to ``as_published`` only.

    Args:
        step_rewards: Implicit reward of each step in β-scaled nats.
        centers: From ``step_centers``; None only for ``as_published`` with ``center: none``.
        trajectory_ids: Trajectory of each row, any integers.
        step_ids: Order of the steps inside their trajectory; rows may come in any order.
        valid: True where a row counts; rows that do not are skipped and get 0.
        attribution: Which form.
        center: Whether ``as_published`` takes c off.
        gamma: Discount of ``shifted_to_go`` in [0, 1].

    Returns:
        Credit of each row. ``as_published`` with ``center: none`` is the input itself.

    Raises:
        ValueError: If an option is unknown or out of range, centres are missing, or a step appears twice.
    """
    if center not in get_args(Center):
        raise ValueError(f'unknown center "{center}".{suggest(center, get_args(Center))}')
    if attribution not in get_args(Attribution):
        raise ValueError(f'unknown attribution "{attribution}".{suggest(attribution, get_args(Attribution))}')
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be in [0, 1], got {gamma}")
    if attribution == "as_published" and center == "none":
        return step_rewards
    if centers is None:
        raise ValueError(f'attribution "{attribution}" with center "{center}" needs centers, got None')
    credit = torch.where(valid, center_step_rewards(step_rewards, centers), 0.0)
    if attribution == "as_published":
        return credit
    require_unique_steps(trajectory_ids, step_ids, valid)
    place = table_places(trajectory_ids[valid], step_ids[valid])
    next_centers = F.pad(to_table(centers[valid], place)[:, 1:], (0, 1))
    shifted = torch.zeros_like(credit).masked_scatter(
        valid, (to_table(credit[valid], place) + next_centers)[place]
    )
    if attribution == "shifted":
        return shifted
    return discounted_to_go(shifted, trajectory_ids, step_ids, valid, gamma=gamma)


def discounted_to_go(
    values: Float[Tensor, " rows"],
    trajectory_ids: Int[Tensor, " rows"],
    step_ids: Int[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
    *,
    gamma: float,
) -> Float[Tensor, " rows"]:
    """Add up each step's value and all later ones of its trajectory, discounted.

    Implements R_t = Σ_{k≥t} γ^{k−t} r_k of spec §4.6.

    Args:
        values: One value per step.
        trajectory_ids: Trajectory of each row, any integers.
        step_ids: Order of the steps inside their trajectory; rows may come in any order.
        valid: True where a row counts; rows that do not are skipped and get 0.
        gamma: Discount in [0, 1].

    Returns:
        The discounted sum of each row.

    Raises:
        ValueError: If ``gamma`` is out of range or a step appears twice.
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be in [0, 1], got {gamma}")
    require_unique_steps(trajectory_ids, step_ids, valid)
    counted = values[valid]
    sums = gae(
        counted,
        torch.zeros_like(counted),
        trajectory_ids[valid],
        step_ids[valid],
        gamma=torch.full_like(counted, gamma),
        lam=torch.ones_like(counted),
    )
    return torch.zeros_like(values).masked_scatter(valid, sums.to(values.dtype))
