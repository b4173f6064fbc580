"""Random batches of logits, and the whole path from them to both losses, in float64."""

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from istar_trainer.advantages import (
    combine_advantages,
    grpo_advantages,
    normalize_step_rewards,
    spread_over_tokens,
    step_advantage_factors,
)
from istar_trainer.attribution import attribute_credit, center_step_rewards, step_centers, token_kl
from istar_trainer.implicit_reward import (
    ScoreLoss,
    pair_loss,
    pair_weights,
    score_weights,
    step_rewards,
    token_log_ratios,
    trajectory_scores,
)
from istar_trainer.losses import aggregate, aggregation_weights, clipped_policy_loss, policy_log_ratios

BETA = 0.05
TOLERANCE = 1e-9
VOCAB = 4


@dataclass(frozen=True)
class Options:
    score: str
    norm: str
    scope: str
    attribution: str
    ratio: str
    aggregation: str
    weighting: str


@dataclass(frozen=True)
class Batch:
    """Rows in any order; `trajectory` numbers them, `groups` and `outcomes` are per trajectory."""

    old_logits: Tensor  # [rows, seq, vocab], of the snapshot that sampled; also for the others
    prm_logits: Tensor
    logits: Tensor
    tokens: Tensor  # [rows, seq]
    mask: Tensor
    trajectory: Tensor  # [rows]
    step: Tensor
    valid: Tensor
    groups: Tensor  # [trajectories]
    outcomes: Tensor
    has_outcome: Tensor

    def rows(self, index: Tensor) -> "Batch":
        names = ("old_logits", "prm_logits", "logits", "tokens", "mask", "trajectory", "step", "valid")
        return replace(self, **{name: getattr(self, name)[index] for name in names})


@dataclass(frozen=True)
class Result:
    pair: ScoreLoss
    prm_gradient: Tensor
    advantages: Tensor
    policy_loss: Tensor
    policy_gradient: Tensor


def random_batch(seed: int) -> Batch:
    """Up to 3 groups of up to 4 trajectories of up to 4 steps of up to 3 tokens."""
    torch.manual_seed(seed)
    sizes = torch.randint(1, 5, (int(torch.randint(1, 4, ())),))
    groups = torch.arange(len(sizes)).repeat_interleave(sizes)
    lengths = torch.randint(1, 5, (len(groups),))
    trajectory = torch.arange(len(groups)).repeat_interleave(lengths)
    step = torch.cat([torch.arange(n) for n in lengths.tolist()])
    rows = len(trajectory)
    mask = torch.rand(rows, 3) < 0.6
    mask[:, 0] |= ~mask.any(-1)
    old = torch.randn(rows, 3, VOCAB, dtype=torch.float64)
    return Batch(
        old_logits=old,
        prm_logits=old + torch.randn_like(old),
        logits=old + 0.2 * torch.randn_like(old),
        tokens=torch.randint(VOCAB, (rows, 3)),
        mask=mask,
        trajectory=trajectory,
        step=step,
        valid=torch.ones(rows, dtype=torch.bool),
        groups=groups,
        outcomes=torch.randint(0, 3, (len(groups),)).double(),
        has_outcome=torch.rand(len(groups)) < 0.9,
    )


def chosen(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


def all_pairs(batch: Batch) -> tuple[Tensor, Tensor]:
    same_group = batch.groups[:, None] == batch.groups
    better = batch.outcomes[:, None] > batch.outcomes
    judged = batch.has_outcome[:, None] & batch.has_outcome
    preferred, rejected = (same_group & better & judged).nonzero().T
    return preferred, rejected


def step_values(batch: Batch, prm_logits: Tensor, options: Options) -> Tensor:
    old = chosen(batch.old_logits, batch.tokens)
    ratios = token_log_ratios(chosen(prm_logits, batch.tokens), old, batch.mask)
    rewards = step_rewards(ratios, batch.mask, beta=BETA)
    if options.score != "centered_sum":
        return rewards
    kl = token_kl(batch.old_logits, prm_logits)
    return center_step_rewards(rewards, step_centers(kl, batch.mask, beta=BETA))


def pairs_of(batch: Batch, prm_logits: Tensor, options: Options) -> tuple[ScoreLoss, Tensor]:
    num = len(batch.groups)
    weights = score_weights(
        batch.trajectory, batch.mask, batch.valid, num_trajectories=num, score=options.score
    )
    values = step_values(batch, prm_logits, options)
    scores = trajectory_scores(values, batch.trajectory, weights, num_trajectories=num)
    preferred, rejected = all_pairs(batch)
    by_pair = pair_weights(batch.groups[preferred], weighting=options.weighting)
    return pair_loss(scores, preferred, rejected, by_pair), weights


def advantages_of(batch: Batch, options: Options) -> Tensor:
    old = chosen(batch.old_logits, batch.tokens)
    ratios = token_log_ratios(chosen(batch.prm_logits, batch.tokens), old, batch.mask)
    rewards = step_rewards(ratios, batch.mask, beta=BETA)
    centers = step_centers(token_kl(batch.old_logits, batch.prm_logits), batch.mask, beta=BETA)
    counted = batch.valid & batch.has_outcome[batch.trajectory]
    credit = attribute_credit(
        rewards,
        centers,
        batch.trajectory,
        batch.step,
        counted,
        attribution=options.attribution,
        center="policy_kl",
        gamma=0.9,
    )
    row_groups = batch.groups[batch.trajectory]
    step_part = normalize_step_rewards(
        credit, row_groups, counted, scope=options.scope, norm=options.norm, std_floor=1e-9
    )
    factors = step_advantage_factors(
        batch.outcomes,
        batch.groups,
        batch.has_outcome,
        all_pairs(batch)[0],
        groups="with_pairs",
        degenerate_scale=0.5,
    )
    outcome_part = grpo_advantages(batch.outcomes, batch.groups, batch.has_outcome, std="unbiased")
    return combine_advantages(
        spread_over_tokens(outcome_part[batch.trajectory], batch.mask),
        spread_over_tokens(0.7 * step_part * factors[batch.trajectory], batch.mask),
    )


def token_losses(batch: Batch, logits: Tensor, advantages: Tensor, options: Options) -> Tensor:
    log_ratios = policy_log_ratios(
        chosen(logits, batch.tokens), chosen(batch.old_logits, batch.tokens), batch.mask, form=options.ratio
    )
    return clipped_policy_loss(log_ratios, advantages, clip_low=0.2, clip_high=0.28, dual_clip=3.0)


def batch_weights(batch: Batch, options: Options) -> Tensor:
    return aggregation_weights(
        batch.mask,
        batch.trajectory,
        batch.valid.double(),
        mode=options.aggregation,
        constant=7.0 if options.aggregation == "constant" else None,
    )


def evaluate(batch: Batch, options: Options) -> Result:
    prm_logits = batch.prm_logits.clone().requires_grad_()
    logits = batch.logits.clone().requires_grad_()
    pair, _ = pairs_of(batch, prm_logits, options)
    advantages = advantages_of(batch, options)
    loss = aggregate(token_losses(batch, logits, advantages, options), batch_weights(batch, options))
    return Result(
        pair=pair,
        prm_gradient=torch.autograd.grad(pair.loss, prm_logits)[0],
        advantages=advantages,
        policy_loss=loss.detach(),
        policy_gradient=torch.autograd.grad(loss, logits)[0],
    )


def assert_same(actual: Result, expected: Result, rows: Tensor) -> None:
    """Compare; row i of ``actual`` is row ``rows[i]`` of ``expected``."""
    for a, b in (
        (actual.pair.loss, expected.pair.loss),
        (actual.prm_gradient[: len(rows)], expected.prm_gradient[rows]),
        (actual.advantages[: len(rows)], expected.advantages[rows]),
        (actual.policy_loss, expected.policy_loss),
        (actual.policy_gradient[: len(rows)], expected.policy_gradient[rows]),
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)


batches = st.integers(0, 2**31).map(random_batch)
seeds = st.integers(0, 2**31)
options_of_all_kinds = st.builds(
    Options,
    score=st.sampled_from(["sum", "mean", "centered_sum", "token_norm"]),
    norm=st.sampled_from(["mean_std", "rloo", "maxabs", "none"]),
    scope=st.sampled_from(["group", "batch"]),
    attribution=st.sampled_from(["as_published", "shifted", "shifted_to_go"]),
    ratio=st.sampled_from(["token", "step_product", "step_geo"]),
    aggregation=st.sampled_from(["step_mean", "token_mean", "trajectory_mean", "constant"]),
    weighting=st.sampled_from(["group", "pair"]),
)
PUBLISHED = Options("sum", "mean_std", "group", "as_published", "token", "step_mean", "group")
