"""ITPO-norm: the outcome, split over a trajectory's turns by what the PRM prefers in them."""

import torch
from jaxtyping import Float
from torch import Tensor

from istar_trainer.batch import StepBatch
from istar_trainer.config_credits import ItpoCredit as ItpoConfig
from istar_trainer.credits.base import BatchOutcomes, StepCredit, counted_rows
from istar_trainer.credits.online_prm import PrmCredit
from istar_trainer.credits.prime import process_advantages
from istar_trainer.gae import last_token
from istar_trainer.prm import Pairs
from istar_trainer.step_credit import split_outcomes, turn_scores


class ItpoCredit(PrmCredit[ItpoConfig]):
    """Turn rewards that sum to the outcome, as returns next to the outcome itself.

    Args:
        online: The PRM and its iterations.
        config: Temperature of the split and weights of the two parts.
    """

    def assign(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        pairs: Pairs,
    ) -> StepCredit:
        """Update the PRM and credit every turn with its share of the outcome."""
        scored = self.online.run(batch, old_logprobs, outcomes, pairs)
        valid = counted_rows(batch, outcomes)
        scores = turn_scores(scored.scores.log_ratios, batch.response_mask, valid)
        rewards = split_outcomes(
            outcomes.values, scores, batch.trajectory_index, valid, temperature=self._config.temperature
        )
        ends = last_token(batch.response_mask) & valid[:, None]
        tokens = process_advantages(
            torch.where(ends, rewards[:, None], 0.0),
            ends,
            batch,
            outcomes,
            outcome_coef=self._config.outcome_coef,
            process_coef=self._config.process_coef,
        )
        return StepCredit(tokens, scored.scores.rewards, rewards, scored.metrics, replaces_outcome=True)
