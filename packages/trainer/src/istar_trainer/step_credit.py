"""Step credit besides that of iStar: anchor states, split outcomes, token rewards.

Functions from tensors to tensors without gradient. A row that does not count (``valid`` or ``mask``
False) gets 0 and enters no mean; no result depends on the order of rows. Not here: the implicit
rewards themselves (``implicit_reward.py``) and sums over what follows (``attribution.py``, ``gae.py``).
"""

from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_trainer.advantages import OutcomeStd, grpo_advantages
from istar_trainer.masked import (
    group_count,
    group_max,
    group_mean,
    group_sum,
    masked_mean,
    masked_sum,
    sum_by_index,
    whiten_by_mean_and_std,
)


def exact_anchors(
    group_ids: Int[Tensor, " rows"], observation_ids: Int[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """Put the steps of a group that saw the same into one anchor (GiGPO, spec §4.6).

    Args:
        group_ids: Group of each row.
        observation_ids: Equal iff the states before the steps are equal.

    Returns:
        Anchor of each row, numbered from 0.
    """
    keys = torch.stack([group_ids, observation_ids], dim=1)
    anchors: Int[Tensor, " rows"] = torch.unique(keys, dim=0, return_inverse=True)[1]
    return anchors


def similar_anchors(
    texts: Sequence[str],
    group_ids: Int[Tensor, " rows"],
    step_ids: Int[Tensor, " rows"],
    *,
    threshold: float,
) -> Int[Tensor, " rows"]:
    """Put the steps of a group that saw nearly the same text into one anchor, first fit.

    The group's distinct texts are visited by the step they first appear in, then alphabetically; each
    joins the first anchor whose first text has a ``difflib`` ratio of ``threshold`` or more (spec §4.6).

    Args:
        texts: What was seen before each step.
        group_ids: Group of each row.
        step_ids: Position of each step inside its trajectory.
        threshold: Least ratio of matching characters, in (0, 1].

    Returns:
        Anchor of each row, numbered from 0.

    Raises:
        ValueError: If ``threshold`` is out of range.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be in (0, 1], got {threshold}")
    rows = list(zip(group_ids.tolist(), texts, strict=True))
    first_seen: dict[tuple[int, str], int] = {}
    for row, step in zip(rows, step_ids.tolist(), strict=True):
        first_seen[row] = min(step, first_seen.get(row, step))
    representatives: dict[int, dict[str, int]] = defaultdict(dict)
    anchors: dict[tuple[int, str], int] = {}
    num_anchors = 0
    for _, group, text in sorted((step, *row) for row, step in first_seen.items()):
        known = representatives[group]
        anchor = next((known[other] for other in known if _is_similar(other, text, threshold)), None)
        if anchor is None:
            anchor = known[text] = num_anchors
            num_anchors += 1
        anchors[group, text] = anchor
    return torch.tensor([anchors[row] for row in rows], device=group_ids.device)


def anchor_advantages(
    step_returns: Float[Tensor, " rows"],
    anchors: Int[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
    *,
    std: OutcomeStd,
) -> Float[Tensor, " rows"]:
    """Compare what followed from the same state: (R − mean) / std over the steps of an anchor.

    Implements A^S of spec §4.6.

    Args:
        step_returns: Discounted return R from each step on.
        anchors: From ``exact_anchors`` or ``similar_anchors``.
        valid: True where a row counts.
        std: Divisor as in ``grpo_advantages``; ``none`` is the published default.

    Returns:
        One value per row; 0 where nothing else was done in the same state.
    """
    compared = group_count(anchors, valid) > 1
    return torch.where(compared, grpo_advantages(step_returns, anchors, valid, std=std), 0.0)


def turn_scores(
    log_ratios: Float[Tensor, "rows seq"],
    response_mask: Bool[Tensor, "rows seq"],
    valid: Bool[Tensor, " rows"],
) -> Float[Tensor, " rows"]:
    """Score each turn by its mean token log-ratio, times the mean length of all turns (spec §4.9).

    Args:
        log_ratios: Token log-ratios ℓ in nats.
        response_mask: True where the policy sampled the token.
        valid: True where a row counts.

    Returns:
        Length-free score u of each row in nats, 0 for rows that do not count.
    """
    lengths = response_mask.sum(-1).double()
    mean_length = lengths[valid].mean() if valid.any() else lengths.new_zeros(())
    scores = masked_mean(log_ratios, response_mask)
    return torch.where(valid, scores * mean_length.to(scores.dtype), 0.0)


def split_outcomes(
    outcomes: Float[Tensor, " trajectories"],
    scores: Float[Tensor, " rows"],
    trajectory_index: Int[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
    *,
    temperature: float,
) -> Float[Tensor, " rows"]:
    """Split each outcome over the turns of its trajectory in the proportions of a softmax.

    Implements r_o·softmax(u / temperature) of ITPO-norm (spec §4.9).

    Args:
        outcomes: Outcome of each trajectory.
        scores: From ``turn_scores``.
        trajectory_index: Trajectory of each row.
        valid: True where a row counts.
        temperature: Above 0; the higher, the more even the split.

    Returns:
        Turn rewards, which sum to the outcome in every trajectory with rows that count.

    Raises:
        ValueError: If ``temperature`` is not above 0.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    exact = scores.double() / temperature
    top = group_max(exact, trajectory_index, valid)
    weights = torch.where(valid, (exact - torch.where(valid, top, 0.0)).exp(), 0.0)
    shares = weights / torch.where(valid, group_sum(weights, trajectory_index, valid), 1.0)
    return (outcomes[trajectory_index].double() * shares).to(scores.dtype)


def reward_leave_one_out(
    rewards: Float[Tensor, "rows seq"],
    mask: Bool[Tensor, "rows seq"],
    trajectory_index: Int[Tensor, " rows"],
    trajectory_groups: Int[Tensor, " trajectories"],
) -> Float[Tensor, "rows seq"]:
    """Compare rewards inside trajectories with the mean reward of the group's trajectories.

    Implements N/(N − 1)·(r − mean over the N trajectories of their own mean reward) of spec §4.7. The
    group of one keeps its rewards.

    Args:
        rewards: Rewards at tokens, or one a row.
        mask: True where a reward counts.
        trajectory_index: Trajectory of each row.
        trajectory_groups: Group of each trajectory.

    Returns:
        Rewards less their baseline, 0 where the mask is False.
    """
    size = len(trajectory_groups)
    counts = sum_by_index(mask.sum(-1).double(), trajectory_index, size)
    sums = sum_by_index(masked_sum(rewards.double(), mask), trajectory_index, size)
    present = counts > 0
    others = group_count(trajectory_groups, present) - 1
    baseline = group_mean(sums / counts.clamp_min(1), trajectory_groups, present)
    baseline = torch.where(others > 0, baseline, 0.0)[trajectory_index, None]
    factor = ((others + 1) / others.clamp_min(1)).double()[trajectory_index, None]
    return torch.where(mask, (rewards.double() - baseline) * factor, 0.0).to(rewards.dtype)


def normalize_tokens(
    values: Float[Tensor, "rows seq"],
    row_keys: Int[Tensor, " rows"],
    mask: Bool[Tensor, "rows seq"],
    *,
    std_floor: float,
) -> Float[Tensor, "rows seq"]:
    """Compare token values with all tokens of the rows that share a key: mean 0, deviation 1.

    Args:
        values: One value per token.
        row_keys: Rows that are compared, such as groups; one key for all compares the whole batch.
        mask: True where a token counts.
        std_floor: Deviation that a key's tokens must exceed; else they get 0.

    Returns:
        The whitened values, 0 where the mask is False.
    """
    keys = row_keys[:, None].expand(values.shape).flatten()
    flat = whiten_by_mean_and_std(values.flatten(), keys, mask.flatten(), std_floor=std_floor)
    return flat.view(values.shape)


def whiten_tokens(
    values: Float[Tensor, "rows seq"], mask: Bool[Tensor, "rows seq"]
) -> Float[Tensor, "rows seq"]:
    """Compare token values with all counted tokens of the batch; tokens that are all equal get 0."""
    one_key = torch.zeros(len(values), dtype=torch.int64)
    return normalize_tokens(values, one_key, mask, std_floor=0.0)


def _is_similar(left: str, right: str, threshold: float) -> bool:
    matcher = SequenceMatcher(None, left, right)
    bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
    return all(bound() >= threshold for bound in bounds)
