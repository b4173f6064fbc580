"""Policy and value losses: ratio forms, clipping, KL estimators, entropy and aggregation.

Every function yields one value per token; ``aggregation_weights``, computed once on the whole
batch, says how they add up, and ``aggregate`` is that dot product. A micro-batch slices its rows
of the weights, so no split of the batch can change loss or gradient. Tensors are [rows, seq] with
``response_mask`` True at sampled, trainable tokens.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_envs.errors import suggest
from istar_trainer.masked import at_least_float32, masked_mean, masked_sum, sum_by_index

RatioForm = Literal["token", "step_product", "step_geo"]
KlEstimator = Literal["k1", "k2", "k3"]
Aggregation = Literal["step_mean", "token_mean", "trajectory_mean", "constant"]

LOG_RATIO_LIMIT = 20.0
KL_LIMIT = 10.0


@dataclass(frozen=True)
class RatioStats:
    """How far the policy has moved from the snapshot that sampled, over the counted tokens.

    Attributes:
        mean: Mean ratio.
        max: Largest ratio.
        max_deviation: Largest |ratio − 1|; 0 before the first update.
        clip_low_frac: Share of tokens held back by the lower clip (ratio below it, A < 0).
        clip_high_frac: Share of tokens held back by the upper clip (ratio above it, A > 0).
        approx_kl: Estimate of KL(π_old‖π_θ) per token in nats, never negative.
    """

    mean: float
    max: float
    max_deviation: float
    clip_low_frac: float
    clip_high_frac: float
    approx_kl: float


def policy_log_ratios(
    logprobs: Float[Tensor, "rows seq"],
    old_logprobs: Float[Tensor, "rows seq"],
    response_mask: Bool[Tensor, "rows seq"],
    *,
    form: RatioForm,
) -> Float[Tensor, "rows seq"]:
    """Log of the importance ratio that each token's loss uses.

    Implements spec §3.5. ``token``: its own ratio. ``step_product``: the product over the step, the
    paper's ratio and, under ``step_mean``, the paper's gradient, which is as many times larger as
    the step has tokens. ``step_geo``: the geometric mean over the step, with the gradient routed to
    each token by the stop-gradient identity.

    Args:
        logprobs: Log-probabilities under the policy; carries gradient.
        old_logprobs: The same under the snapshot that sampled; never gets gradient.
        response_mask: True at sampled tokens.
        form: Which ratio.

    Returns:
        Log-ratios, 0 outside the mask, limited to ±20 so that no ratio overflows.

    Raises:
        ValueError: If ``form`` is unknown.
    """
    change = at_least_float32(logprobs) - at_least_float32(old_logprobs.detach())
    if form == "token":
        log_ratios = change
    elif form == "step_product":
        log_ratios = masked_sum(change, response_mask).unsqueeze(-1).expand_as(change)
    elif form == "step_geo":
        step_mean = masked_mean(change, response_mask).unsqueeze(-1)
        log_ratios = step_mean.detach() + change - change.detach()
    else:
        raise ValueError(f'unknown ratio form "{form}".{suggest(form, get_args(RatioForm))}')
    return torch.where(response_mask, log_ratios, 0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def clipped_policy_loss(
    log_ratios: Float[Tensor, "rows seq"],
    advantages: Float[Tensor, "rows seq"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Float[Tensor, "rows seq"]:
    """Clipped surrogate as a loss to minimise: −min(ρA, clip(ρ, 1 − low, 1 + high)·A).

    Args:
        log_ratios: From ``policy_log_ratios``; carries gradient.
        advantages: A of each token; no gradient.
        clip_low: How far below 1 the ratio may fall before its gradient stops.
        clip_high: How far above 1 the ratio may rise before its gradient stops.
        dual_clip: Cap c of the loss at c·|A| where A < 0, above 1; None for no cap.

    Returns:
        Loss of each token.
    """
    ratios = log_ratios.exp()
    clipped = ratios.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratios * advantages, clipped * advantages)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)


def clipped_value_loss(
    values: Float[Tensor, "rows seq"],
    old_values: Float[Tensor, "rows seq"],
    returns: Float[Tensor, "rows seq"],
    *,
    clip: float | None,
) -> Float[Tensor, "rows seq"]:
    """Half the squared error of the value, or of the value held near its old one if that is larger.

    Implements ½·max((V − R)², (clip(V, V_old ± c) − R)²) of spec §4.1.

    Args:
        values: The critic's values; carries gradient.
        old_values: Its values before the update; no gradient.
        returns: What they should have been; no gradient.
        clip: How far c a value may move before its gradient stops; None for no limit.

    Returns:
        Loss of each token.
    """
    errors = (values - returns).square()
    if clip is None:
        return 0.5 * errors
    held = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum(errors, (held - returns).square())


def kl_penalty(
    logprobs: Float[Tensor, "rows seq"],
    ref_logprobs: Float[Tensor, "rows seq"],
    response_mask: Bool[Tensor, "rows seq"],
    *,
    estimator: KlEstimator,
) -> Float[Tensor, "rows seq"]:
    """Estimate KL(π_θ‖π_ref) at each sampled token.

    Implements spec §4.8 with d = log π_θ − log π_ref limited to ±10: k1 = d, k2 = d²/2,
    k3 = e^(−d) − 1 + d.

    Args:
        logprobs: Log-probabilities under the policy; carries gradient.
        ref_logprobs: The same under the frozen reference; never gets gradient.
        response_mask: True at sampled tokens.
        estimator: Which form.

    Returns:
        Estimate in nats, 0 outside the mask.

    Raises:
        ValueError: If ``estimator`` is unknown.
    """
    difference = at_least_float32(logprobs) - at_least_float32(ref_logprobs.detach())
    d = torch.where(response_mask, difference, 0.0).clamp(-KL_LIMIT, KL_LIMIT)
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d.square()
    if estimator == "k3":
        return torch.expm1(-d) + d
    raise ValueError(f'unknown KL estimator "{estimator}".{suggest(estimator, get_args(KlEstimator))}')


def token_entropy(logits: Float[Tensor, "*axes vocab"]) -> Float[Tensor, "*axes"]:
    """Entropy of the next-token distribution.

    Args:
        logits: Logits, divided by the sampling temperature; carries gradient.

    Returns:
        Entropy in nats, at least float32. A token with logit minus infinity adds nothing.
    """
    logprobs = at_least_float32(logits).log_softmax(-1)
    return -(logprobs.exp() * torch.where(logprobs > -torch.inf, logprobs, 0.0)).sum(-1)


def aggregation_weights(
    response_mask: Bool[Tensor, "rows seq"],
    trajectory_index: Int[Tensor, " rows"],
    row_weights: Float[Tensor, " rows"],
    *,
    mode: Aggregation,
    constant: float | None = None,
) -> Float[Tensor, "rows seq"]:
    """Weight of each token's loss in the batch's loss; call it once, on the whole batch.

    Implements the aggregations of spec §3.5. ``step_mean``: mean over a step's tokens, then over
    steps. ``token_mean``: mean over all tokens. ``trajectory_mean``: mean over a step's tokens,
    over the trajectory's steps, then over trajectories. ``constant``: sum of a trajectory's tokens
    divided by a constant number of tokens instead of its length, then mean over trajectories.

    Args:
        response_mask: True at sampled tokens.
        trajectory_index: Trajectory of each row, any integers from 0.
        row_weights: Weight of each row, 0 for padding; halves for a row held twice.
        mode: Which aggregation.
        constant: Tokens that ``constant`` divides by, above 0; None in the other modes.

    Returns:
        float64 weights, 0 outside the mask and in rows without weight; all 0 for an empty batch.

    Raises:
        ValueError: If ``mode`` is unknown or ``constant`` does not fit it.
    """
    if (mode == "constant") != (constant is not None and constant > 0):
        raise ValueError(
            f'mode "{mode}" does not fit constant={constant}: set it above 0 for "constant" only'
        )
    tokens = response_mask.sum(-1)
    weights = row_weights.double() * (tokens > 0)
    num_trajectories = int(trajectory_index.max()) + 1 if len(trajectory_index) else 0
    per_trajectory = sum_by_index(weights, trajectory_index, num_trajectories)
    num_live = (per_trajectory > 0).sum()
    if mode == "token_mean":
        row = weights / _nonzero((weights * tokens).sum())
    elif mode == "step_mean":
        row = weights / tokens.clamp_min(1) / _nonzero(weights.sum())
    elif mode == "trajectory_mean":
        row = weights / tokens.clamp_min(1) / _nonzero(per_trajectory[trajectory_index] * num_live)
    elif constant is not None:
        row = weights / (constant * num_live.clamp_min(1))
    else:
        raise ValueError(f'unknown aggregation "{mode}".{suggest(mode, get_args(Aggregation))}')
    return row.unsqueeze(-1) * response_mask


def aggregate(
    token_losses: Float[Tensor, "rows seq"], weights: Float[Tensor, "rows seq"]
) -> Float[Tensor, ""]:
    """Dot product of the tokens' losses with their weights.

    Args:
        token_losses: Loss of each token of these rows; carries gradient.
        weights: These rows' part of ``aggregation_weights`` of the whole batch.

    Returns:
        These rows' share of the loss; shares of all micro-batches add up to the whole.
    """
    return masked_sum((token_losses * weights).flatten(), (weights != 0).flatten()).to(token_losses.dtype)


def ratio_stats(
    log_ratios: Float[Tensor, "rows seq"],
    advantages: Float[Tensor, "rows seq"],
    mask: Bool[Tensor, "rows seq"],
    *,
    clip_low: float,
    clip_high: float,
) -> RatioStats:
    """Summarise the ratios of one optimizer step.

    Args:
        log_ratios: From ``policy_log_ratios``, of all its micro-batches together.
        advantages: A of each token.
        mask: True at the tokens that count.
        clip_low: As in ``clipped_policy_loss``.
        clip_high: As in ``clipped_policy_loss``.

    Returns:
        Plain numbers; ratio 1 and zeros if no token counts.
    """
    change = log_ratios.detach()[mask].double()
    if not len(change):
        return RatioStats(1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    ratios, signs = change.exp(), advantages[mask].sign()
    return RatioStats(
        mean=float(ratios.mean()),
        max=float(ratios.max()),
        max_deviation=float((ratios - 1).abs().max()),
        clip_low_frac=float(((ratios < 1 - clip_low) & (signs < 0)).double().mean()),
        clip_high_frac=float(((ratios > 1 + clip_high) & (signs > 0)).double().mean()),
        approx_kl=float((torch.expm1(change) - change).mean()),
    )


def overlong_penalty(
    lengths: Int[Tensor, "*axes"], *, max_length: int, buffer: int, factor: float
) -> Float[Tensor, "*axes"]:
    """Soft penalty for replies that come near the length limit.

    Implements spec §4.5(d): 0 up to ``max_length`` − ``buffer``, then falling linearly to
    −``factor`` at ``max_length``.

    Args:
        lengths: Number of sampled tokens.
        max_length: Limit on them.
        buffer: Width of the ramp below the limit, in tokens, above 0.
        factor: Penalty at the limit, in reward units.

    Returns:
        float64 penalty, never positive.

    Raises:
        ValueError: If ``buffer`` is not above 0 or exceeds ``max_length``.
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"buffer must be in 1..max_length={max_length}, got {buffer}")
    excess = lengths.double() - (max_length - buffer)
    return -factor * (excess / buffer).clamp_min(0.0)


def _nonzero(divisor: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Replace 0 by 1 in a divisor whose numerator is 0 as well."""
    return torch.where(divisor == 0, 1.0, divisor)
