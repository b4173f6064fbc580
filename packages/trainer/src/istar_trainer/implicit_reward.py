"""The implicit process reward and its pair loss, as functions from tensors to tensors.

A step's reward is how much more likely the PRM finds it than the policy that sampled it; the PRM
learns from which of two trajectories of a group was better. Models, optimizers and batches are not
here, so the identities of the method can be checked with plain numbers. Axes: ``rows`` are steps,
``trajectories`` are numbered 0 to ``num_trajectories`` - 1 and named by ``trajectory_index``.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_envs.errors import suggest
from istar_trainer.masked import (
    at_least_float32,
    group_count,
    masked_mean,
    masked_sum,
    sum_by_index,
)

LengthNorm = Literal["none", "tokens"]
Score = Literal["sum", "mean", "centered_sum", "token_norm"]
PairWeighting = Literal["group", "pair"]


@dataclass(frozen=True)
class ScoreLoss:
    """What a loss on trajectory scores yields.

    Attributes:
        loss: Weighted loss over all pairs or labels; carries the gradient of the scores.
        coefficients: ∂loss/∂score of every trajectory, detached; 0 for trajectories in no pair and
            without a label.
        margins: How far each pair or label is on its right side, detached: score of the preferred
            minus score of the rejected, or the score with the sign of its label.
    """

    loss: Float[Tensor, ""]
    coefficients: Float[Tensor, " trajectories"]
    margins: Float[Tensor, " examples"]


def token_log_ratios(
    prm_logprobs: Float[Tensor, "rows seq"],
    old_logprobs: Float[Tensor, "rows seq"],
    response_mask: Bool[Tensor, "rows seq"],
) -> Float[Tensor, "rows seq"]:
    """Compare the PRM with the policy that sampled, token by token.

    Implements ℓ = log π_φ − log π_old of spec §0; both at the temperature of sampling.

    Args:
        prm_logprobs: Log-probability of each token under the PRM; carries gradient.
        old_logprobs: The same under the policy snapshot that sampled; never gets gradient.
        response_mask: True where the policy sampled the token.

    Returns:
        Log-ratios in nats, at least float32, 0 outside the mask.
    """
    difference = at_least_float32(prm_logprobs) - at_least_float32(old_logprobs.detach())
    return torch.where(response_mask, difference, 0.0)


def step_rewards(
    log_ratios: Float[Tensor, "rows seq"],
    response_mask: Bool[Tensor, "rows seq"],
    *,
    beta: float,
    length_norm: LengthNorm = "none",
) -> Float[Tensor, " rows"]:
    """Add the token log-ratios of each step up to its implicit reward.

    Implements r = β·Σ_k ℓ_k of spec §1.1 and §3.1, or β times the mean over tokens.

    Args:
        log_ratios: Token log-ratios in nats; carries gradient.
        response_mask: True where the policy sampled the token.
        beta: PRM temperature, above 0.
        length_norm: ``none`` sums over tokens; ``tokens`` averages over them.

    Returns:
        Implicit reward of each step, in β-scaled nats; 0 for a row without tokens.

    Raises:
        ValueError: If ``beta`` is not above 0 or ``length_norm`` is unknown.
    """
    if beta <= 0:
        raise ValueError(f"beta must be above 0, got {beta}")
    if length_norm == "none":
        return beta * masked_sum(log_ratios, response_mask)
    if length_norm == "tokens":
        return beta * masked_mean(log_ratios, response_mask)
    raise ValueError(f'unknown length_norm "{length_norm}".{suggest(length_norm, get_args(LengthNorm))}')


def score_weights(
    trajectory_index: Int[Tensor, " rows"],
    response_mask: Bool[Tensor, "rows seq"],
    valid: Bool[Tensor, " rows"],
    *,
    num_trajectories: int,
    score: Score,
) -> Float[Tensor, " rows"]:
    """Say with which weight each step enters the score of its trajectory.

    Every score is a weighted sum of step values, so weights computed once on the whole batch make
    the gradient exact however the rows are cut into micro-batches.

    Args:
        trajectory_index: Trajectory of each row.
        response_mask: True where the policy sampled the token.
        valid: True where a row counts; padding rows get weight 0.
        num_trajectories: Number of trajectories in the batch.
        score: ``sum`` adds the steps (spec §1.1); ``mean`` divides by their number; ``token_norm``
            divides by the number of tokens; ``centered_sum`` adds steps that the caller has centred
            under the old policy (see ``attribution.center_step_rewards``).

    Returns:
        float64 weight of each row, without gradient.

    Raises:
        ValueError: If ``score`` is unknown.
    """
    tokens = response_mask.sum(-1)
    counts = (valid & (tokens > 0)).double()
    if score in {"sum", "centered_sum"}:
        return counts
    if score == "mean":
        sizes = counts
    elif score == "token_norm":
        sizes = counts * tokens
    else:
        raise ValueError(f'unknown score "{score}".{suggest(score, get_args(Score))}')
    return counts / sum_by_index(sizes, trajectory_index, num_trajectories).clamp_min(1)[trajectory_index]


def trajectory_scores(
    step_values: Float[Tensor, " rows"],
    trajectory_index: Int[Tensor, " rows"],
    weights: Float[Tensor, " rows"],
    *,
    num_trajectories: int,
) -> Float[Tensor, " trajectories"]:
    """Add the weighted step values of each trajectory up to its score S.

    Args:
        step_values: Implicit reward of each step, centred or not; carries gradient.
        trajectory_index: Trajectory of each row.
        weights: From ``score_weights``.
        num_trajectories: Number of trajectories in the batch.

    Returns:
        One score per trajectory, 0 for a trajectory without rows.
    """
    terms = torch.where(weights > 0, step_values, 0.0) * weights
    return sum_by_index(terms, trajectory_index, num_trajectories).to(step_values.dtype)


def pair_weights(pair_groups: Int[Tensor, " pairs"], *, weighting: PairWeighting) -> Float[Tensor, " pairs"]:
    """Weigh pairs so that the loss is a mean over groups, or over pairs.

    Args:
        pair_groups: Group of each pair.
        weighting: ``group`` gives 1 / (pairs of the group · groups with pairs), spec §3.2; ``pair``
            gives 1 / pairs.

    Returns:
        float64 weights that sum to 1, or nothing if there are no pairs.

    Raises:
        ValueError: If ``weighting`` is unknown.
    """
    everyone = torch.ones_like(pair_groups, dtype=torch.bool)
    if weighting == "group":
        return 1.0 / (group_count(pair_groups, everyone) * len(torch.unique(pair_groups))).double()
    if weighting == "pair":
        return everyone.double() / max(len(pair_groups), 1)
    raise ValueError(f'unknown weighting "{weighting}".{suggest(weighting, get_args(PairWeighting))}')


def pair_loss(
    scores: Float[Tensor, " trajectories"],
    preferred: Int[Tensor, " pairs"],
    rejected: Int[Tensor, " pairs"],
    weights: Float[Tensor, " pairs"],
    targets: Float[Tensor, " pairs"] | None = None,
) -> ScoreLoss:
    """Bradley–Terry loss of the trajectory scores on preference pairs.

    Implements Σ w·(−p·log σ(Δ) − (1 − p)·log σ(−Δ)) of spec §1.2 and §3.2 with Δ the score margin,
    and its closed-form derivative.

    Args:
        scores: Score S of each trajectory; carries gradient.
        preferred: Trajectory that was better, one per pair.
        rejected: Trajectory that was worse, one per pair.
        weights: Weight of each pair, see ``pair_weights``.
        targets: Probability p in [0, 1] that the preferred one is better; None means 1.

    Returns:
        Loss, coefficients and margins. Without pairs the loss and all gradients are exactly 0.
    """
    exact = scores.double()
    margins = exact[preferred] - exact[rejected]
    certainty = torch.ones_like(margins) if targets is None else targets.double()
    losses, slopes = _logistic(margins, certainty, weights)
    coefficients = torch.zeros_like(exact).index_add(0, preferred, slopes).index_add(0, rejected, -slopes)
    return ScoreLoss(
        loss=losses.sum().to(scores.dtype),
        coefficients=coefficients.detach().to(scores.dtype),
        margins=margins.detach().to(scores.dtype),
    )


def label_loss(
    scores: Float[Tensor, " trajectories"],
    labels: Float[Tensor, " trajectories"],
    has_label: Bool[Tensor, " trajectories"],
) -> ScoreLoss:
    """Cross-entropy of the trajectory scores, as logits, with success labels.

    Implements the mean of BCE(σ(S), y) of spec §4.7.

    Args:
        scores: Score S of each trajectory; carries gradient.
        labels: 1 for success, 0 for failure; in between for a share.
        has_label: True where a trajectory counts.

    Returns:
        Loss, coefficients, and margins of the trajectories that count. Without any, the loss and all
        gradients are exactly 0.
    """
    exact, targets = torch.where(has_label, scores.double(), 0.0), labels.double()
    weights = has_label.double() / has_label.sum().clamp_min(1)
    losses, slopes = _logistic(exact, targets, weights)
    return ScoreLoss(
        loss=losses.sum().to(scores.dtype),
        coefficients=slopes.detach().to(scores.dtype),
        margins=(exact * (2 * targets - 1))[has_label].detach().to(scores.dtype),
    )


def _logistic(
    logits: Float[Tensor, " examples"],
    targets: Float[Tensor, " examples"],
    weights: Float[Tensor, " examples"],
) -> tuple[Float[Tensor, " examples"], Float[Tensor, " examples"]]:
    """Weighted cross-entropy of each example, and its derivative by the logit."""
    losses = -targets * F.logsigmoid(logits) - (1 - targets) * F.logsigmoid(-logits)
    slopes = (1 - targets) * logits.sigmoid() - targets * (-logits).sigmoid()
    return losses * weights, slopes * weights


def two_pass_surrogate(
    step_values: Float[Tensor, " rows"],
    trajectory_index: Int[Tensor, " rows"],
    weights: Float[Tensor, " rows"],
    coefficients: Float[Tensor, " trajectories"],
) -> Float[Tensor, ""]:
    """Build the loss of one micro-batch whose gradient is its exact share of the pair loss.

    Implements the second pass of spec §3.3: Σ c_i · (part of S_i that lies in these rows). Summed
    over any split of the rows, its gradient equals that of ``pair_loss`` on all of them.

    Args:
        step_values: Step values of these rows; carries gradient.
        trajectory_index: Trajectory of each of these rows, numbered as in the whole batch.
        weights: These rows' part of ``score_weights`` of the whole batch.
        coefficients: From ``pair_loss`` on the whole batch.

    Returns:
        Scalar; only its gradient has a meaning.
    """
    terms = torch.where(weights > 0, step_values, 0.0) * weights * coefficients[trajectory_index]
    return terms.sum().to(step_values.dtype)


def pair_accuracy(margins: Float[Tensor, " pairs"], weights: Float[Tensor, " pairs"]) -> Float[Tensor, ""]:
    """Weighted share of pairs that the scores rank right; a tie counts one half.

    Args:
        margins: Score of the preferred minus score of the rejected.
        weights: Weight of each pair; need not sum to 1.

    Returns:
        Share in [0, 1]; NaN without pairs, since there is nothing to be right about.
    """
    right = (margins > 0).double() + 0.5 * (margins == 0).double()
    return (right * weights).sum() / weights.sum()
