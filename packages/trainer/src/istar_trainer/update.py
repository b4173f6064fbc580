"""One batch into the policy: epochs over minibatches of whole groups."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from istar_envs.seeding import CounterRng
from istar_trainer.batch import StepBatch
from istar_trainer.config import LearnerConfig
from istar_trainer.config_algorithms import KlConfig, LossConfig
from istar_trainer.learner import Learner
from istar_trainer.losses import (
    RatioStats,
    aggregate,
    aggregation_weights,
    clipped_policy_loss,
    kl_penalty,
    policy_log_ratios,
    ratio_stats,
)
from istar_trainer.mismatch import accepted, importance_weights, mismatch_metrics
from istar_trainer.model import Forward


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """What the policy loss reads.

    Attributes:
        batch: Rows.
        old_logprobs: Logprobs under the snapshot that sampled, no gradient.
        advantages: A of each token.
        weights: 1 for rows that count, 0 for padding rows and trajectories without a verdict.
        ref_logprobs: Logprobs under the frozen start policy; None if no penalty asks for them.
    """

    batch: StepBatch
    old_logprobs: Float[Tensor, "rows seq"]
    advantages: Float[Tensor, "rows seq"]
    weights: Float[Tensor, " rows"]
    ref_logprobs: Float[Tensor, "rows seq"] | None = None


def token_rewards(
    kl: KlConfig | None,
    batch: StepBatch,
    old_logprobs: Float[Tensor, "rows seq"],
    ref_logprobs: Float[Tensor, "rows seq"] | None,
) -> Float[Tensor, "rows seq"]:
    """What tokens earn besides the outcome: −coef · KL estimate if the penalty is in the reward, else 0."""
    if kl is None or kl.place != "reward" or ref_logprobs is None:
        return torch.zeros_like(old_logprobs)
    penalty = kl_penalty(old_logprobs, ref_logprobs, batch.response_mask, estimator=kl.estimator)
    return -kl.coef * penalty


def update_policy(
    learner: Learner,
    data: PolicyBatch,
    loss: LossConfig,
    config: LearnerConfig,
    *,
    seed: int,
    lr_share: float = 1.0,
) -> dict[str, float]:
    """Take ``epochs`` × ``minibatches`` optimizer steps on the clipped loss.

    Args:
        learner: The policy.
        data: Rows with old logprobs and advantages.
        loss: Ratio form, aggregation, clip range, penalty on leaving the start policy, entropy bonus,
            correction for a sampler that disagrees.
        config: Epochs and minibatches.
        seed: Seed of the dealing of groups.
        lr_share: Share of the learning rate to use.

    Returns:
        Metrics ``policy/…``, ``ratio/…`` and ``mismatch/…``; the ratio's are means over minibatches, its
        maximum is the largest, and ``first_minibatch…`` must show no deviation, as nothing has moved yet.
    """
    learner.scale_lr(lr_share)
    token_factors, mismatch = correct_for_sampler(data, loss)
    losses: list[float] = []
    norms: list[float] = []
    stats: list[RatioStats] = []
    for epoch in range(config.epochs):
        for chosen in deal(data.batch.group_index, config.minibatches, seed=seed + epoch):
            value, found = _accumulate(learner, data, loss, data.weights * chosen, token_factors)
            losses.append(value)
            stats.append(found)
            norms.append(learner.step())
    first = stats[0]
    return {
        "policy/loss": sum(losses) / len(losses),
        "policy/grad_norm": sum(norms) / len(norms),
        "policy/lr": config.lr * lr_share,
        "policy/approx_kl": stats[-1].approx_kl,
        "ratio/mean": sum(s.mean for s in stats) / len(stats),
        "ratio/max": max(s.max for s in stats),
        "ratio/clip_low_frac": sum(s.clip_low_frac for s in stats) / len(stats),
        "ratio/clip_high_frac": sum(s.clip_high_frac for s in stats) / len(stats),
        "ratio/first_minibatch_max_dev": first.max_deviation,
        "ratio/first_minibatch_clip_frac": first.clip_low_frac + first.clip_high_frac,
        **mismatch,
    }


def correct_for_sampler(
    data: PolicyBatch, loss: LossConfig
) -> tuple[Float[Tensor, "rows seq"], dict[str, float]]:
    """Compare the sampler's logprobs with π_old's, and say what each token's loss is multiplied by.

    Args:
        data: Rows with old logprobs.
        loss: Clip range and correction.

    Returns:
        Factors, 0 at rejected tokens and outside the mask, 1 at all others without a correction; and metrics
        ``mismatch/…`` over the rows that count.
    """
    batch, config = data.batch, loss.correction
    logprobs = (data.old_logprobs, batch.sampler_logprobs)
    counted = batch.response_mask & (data.weights > 0)[:, None]
    metrics = mismatch_metrics(*logprobs, counted, clip_low=loss.clip_low, clip_high=loss.clip_high)
    kept, factors = batch.response_mask, batch.response_mask.float()
    if config is not None and config.weight is not None:
        factors = importance_weights(*logprobs, kept, form=config.weight, cap=config.weight_cap)
        metrics["mismatch/weight_mean"] = _mean(factors[counted])
        metrics["mismatch/capped_frac"] = _mean(factors[counted] >= config.weight_cap)
    if config is not None and config.reject is not None:
        low, high = config.reject_low, config.reject_high
        kept = accepted(*logprobs, kept, form=config.reject, low=low, high=high)
        metrics["mismatch/rejected_frac"] = 1.0 - _mean(kept[counted])
    return torch.where(kept, factors, 0.0), metrics


def deal(group_index: Int[Tensor, " rows"], num_parts: int, *, seed: int) -> Iterator[Bool[Tensor, " rows"]]:
    """Deal whole groups into parts at random.

    Groups stay whole because their trajectories share states, which are then computed once, and
    because their advantages balance each other.

    Args:
        group_index: Group of each row.
        num_parts: Parts; at most one per group.
        seed: Seed of the shuffle, which depends on group numbers and not on row order.

    Yields:
        Which rows belong to each part.
    """
    rng = CounterRng(seed)
    order = sorted((rng.next_u64(), index) for index in sorted(set(group_index.tolist())))
    shuffled = torch.tensor([index for _, index in order])
    for part in shuffled.tensor_split(min(num_parts, len(shuffled))):
        yield torch.isin(group_index, part)


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if values.numel() else 0.0


def _accumulate(
    learner: Learner,
    data: PolicyBatch,
    loss: LossConfig,
    row_weights: Float[Tensor, " rows"],
    token_factors: Float[Tensor, "rows seq"],
) -> tuple[float, RatioStats]:
    batch = data.batch
    token_weights = aggregation_weights(
        token_factors > 0,
        batch.trajectory_index,
        row_weights,
        mode=loss.aggregation,
        constant=float(loss.constant_length) if loss.aggregation == "constant" else None,
    )
    log_ratios = torch.zeros(batch.input_ids.shape)
    kl = loss.kl if loss.kl is not None and loss.kl.place == "loss" else None

    def share(out: Forward, rows: Int[Tensor, " some"]) -> Float[Tensor, ""]:
        logprobs, mask = out.logprobs(), batch.response_mask[rows]
        ratios = policy_log_ratios(logprobs, data.old_logprobs[rows], mask, form=loss.ratio)
        log_ratios[rows] = ratios.detach()
        token_losses = clipped_policy_loss(
            ratios,
            data.advantages[rows],
            clip_low=loss.clip_low,
            clip_high=loss.clip_high,
            dual_clip=loss.dual_clip,
        )
        token_losses = token_losses * token_factors[rows]
        if kl is not None and data.ref_logprobs is not None:
            penalty = kl_penalty(logprobs, data.ref_logprobs[rows], mask, estimator=kl.estimator)
            token_losses = token_losses + kl.coef * penalty
        if loss.entropy_coef:
            token_losses = token_losses - loss.entropy_coef * out.entropy()
        return aggregate(token_losses, token_weights[rows])

    value = learner.backward(batch, share, (row_weights > 0).nonzero().squeeze(1))
    found = ratio_stats(
        learner.complete(log_ratios),
        data.advantages,
        token_weights > 0,
        clip_low=loss.clip_low,
        clip_high=loss.clip_high,
    )
    return value, found
