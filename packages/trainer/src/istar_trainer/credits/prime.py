"""PRIME (Cui et al. 2025): token rewards of a PRM that learns success labels by cross-entropy."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from istar_trainer.advantages import rloo_advantages
from istar_trainer.batch import StepBatch
from istar_trainer.config_credits import PrimeCredit as PrimeConfig
from istar_trainer.credits.base import BatchOutcomes, StepCredit, counted_rows
from istar_trainer.credits.online_prm import PrmCredit
from istar_trainer.gae import token_gae
from istar_trainer.masked import masked_mean
from istar_trainer.prm import Labels, Pairs
from istar_trainer.step_credit import reward_leave_one_out, whiten_tokens


class PrimeCredit(PrmCredit[PrimeConfig]):
    """Outcome and token rewards, each against the group's others, summed over later tokens.

    Args:
        online: The PRM and its iterations.
        config: Weights of the two parts.
    """

    reference = "frozen"

    def assign(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        pairs: Pairs,
    ) -> StepCredit:
        """Update the PRM on success labels and credit every token."""
        scored = self.online.run(batch, old_logprobs, outcomes, success_labels(outcomes))
        mask = batch.response_mask & counted_rows(batch, outcomes)[:, None]
        rewards = self.online.config.beta * scored.scores.log_ratios
        tokens = process_advantages(
            rewards,
            mask,
            batch,
            outcomes,
            outcome_coef=self._config.outcome_coef,
            process_coef=self._config.process_coef,
        )
        return StepCredit(
            tokens, scored.scores.rewards, masked_mean(tokens, mask), scored.metrics, replaces_outcome=True
        )


def success_labels(outcomes: BatchOutcomes) -> Labels:
    """Label each trajectory by its verdict's success, or by the environment's where none was recorded."""
    won = [bool(verdict.success) for verdict in outcomes.verdicts] or outcomes.successes.tolist()
    return Labels(torch.tensor(won).double(), outcomes.has_outcome)


def process_advantages(
    rewards: Float[Tensor, "rows seq"],
    reward_mask: Bool[Tensor, "rows seq"],
    batch: StepBatch,
    outcomes: BatchOutcomes,
    *,
    outcome_coef: float,
    process_coef: float,
) -> Float[Tensor, "rows seq"]:
    """Add the returns of process rewards to the leave-one-out outcome and whiten over all tokens.

    Args:
        rewards: Process rewards at tokens.
        reward_mask: True where a reward counts.
        batch: The steps.
        outcomes: Outcomes of the batch's trajectories.
        outcome_coef: Weight of the outcome part.
        process_coef: Weight of the process part.

    Returns:
        Advantage of each token, 0 where a trajectory has no verdict.
    """
    mask = batch.response_mask & counted_rows(batch, outcomes)[:, None]
    compared = reward_leave_one_out(rewards, reward_mask, batch.trajectory_index, outcomes.groups)
    process = token_gae(
        compared,
        torch.zeros_like(compared),
        mask,
        batch.trajectory_index,
        batch.step_index,
        gamma=1.0,
        lam=1.0,
    )
    outcome = rloo_advantages(outcomes.values, outcomes.groups, outcomes.has_outcome)
    returns = outcome_coef * outcome[batch.trajectory_index, None] + process_coef * process
    return whiten_tokens(returns, mask)
