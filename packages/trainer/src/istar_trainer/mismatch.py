"""How far the sampler's probabilities are from the learner's, and how the policy loss is corrected for it.

A sampler of its own (bf16, other kernels, older weights) draws from π_s while the loss assumes π_old. The
ratio w = π_old / π_s of a token, or of its step, says how wrong that is. ``importance_weights`` multiplies
losses by w cut at a cap: truncated importance sampling (Ionides 2008; for samplers of language models Yao et
al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"). ``accepted`` leaves out
what lies outside a band: by token (IcePop, Ling Team 2025) or by step (Liu et al. 2025, "When speed kills
stability"). What is left out must leave the denominators of the loss too.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from istar_trainer.losses import RatioForm, policy_log_ratios


def importance_weights(
    old_logprobs: Float[Tensor, "rows seq"],
    sampler_logprobs: Float[Tensor, "rows seq"],
    response_mask: Bool[Tensor, "rows seq"],
    *,
    form: RatioForm,
    cap: float,
) -> Float[Tensor, "rows seq"]:
    """Weight min(w, cap) of each token's loss; no gradient.

    Args:
        old_logprobs: Logprobs of the drawn tokens under the learner's π_old, nats.
        sampler_logprobs: The same as the sampler reported them.
        response_mask: True at sampled tokens.
        form: Ratio of the token, or of its whole step (product or geometric mean).
        cap: Largest weight, above 0; bounds the variance at the price of a bias.

    Returns:
        Weights, 0 outside the mask.
    """
    log_ratios = policy_log_ratios(old_logprobs.detach(), sampler_logprobs, response_mask, form=form)
    return torch.where(response_mask, log_ratios.exp().clamp(max=cap), 0.0)


def accepted(
    old_logprobs: Float[Tensor, "rows seq"],
    sampler_logprobs: Float[Tensor, "rows seq"],
    response_mask: Bool[Tensor, "rows seq"],
    *,
    form: RatioForm,
    low: float,
    high: float,
) -> Bool[Tensor, "rows seq"]:
    """Say which tokens may be learnt from: those with low ≤ w ≤ high.

    Args:
        old_logprobs: Logprobs of the drawn tokens under the learner's π_old, nats.
        sampler_logprobs: The same as the sampler reported them.
        response_mask: True at sampled tokens.
        form: Ratio of the token; with the ratio of its step, steps are kept or left out whole.
        low: Smallest ratio.
        high: Largest ratio.

    Returns:
        True at accepted tokens, False outside the mask.
    """
    ratios = policy_log_ratios(old_logprobs.detach(), sampler_logprobs, response_mask, form=form).exp()
    return response_mask & (ratios >= low) & (ratios <= high)


def mismatch_metrics(
    old_logprobs: Float[Tensor, "rows seq"],
    sampler_logprobs: Float[Tensor, "rows seq"],
    mask: Bool[Tensor, "rows seq"],
    *,
    clip_low: float,
    clip_high: float,
) -> dict[str, float]:
    """Summarise the disagreement over the counted tokens.

    Args:
        old_logprobs: Logprobs of the drawn tokens under the learner's π_old, nats.
        sampler_logprobs: The same as the sampler reported them.
        mask: True at the tokens that count.
        clip_low: The loss clips policy ratios below 1 − this.
        clip_high: The loss clips policy ratios above 1 + this.

    Returns:
        Metrics ``mismatch/…``; all 0 if no token counts.
    """
    change = (old_logprobs.detach() - sampler_logprobs)[mask].double()
    if not len(change):
        change = torch.zeros(1, dtype=torch.float64)
    ratios = change.exp()
    beyond = (ratios < 1 - clip_low) | (ratios > 1 + clip_high)
    return {
        "mismatch/abs_mean": float(change.abs().mean()),
        "mismatch/abs_max": float(change.abs().max()),
        "mismatch/k3": float((torch.expm1(change) - change).mean()),
        "mismatch/beyond_clip_frac": float(beyond.double().mean()),
    }
