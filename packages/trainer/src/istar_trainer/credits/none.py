"""Outcome advantages only."""

import torch
from jaxtyping import Float
from torch import Tensor

from istar_trainer.batch import StepBatch
from istar_trainer.credits.base import BatchOutcomes, Stateless, StepCredit
from istar_trainer.prm import Pairs


class NoCredit(Stateless):
    """Gives every step nothing."""

    def assign(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        pairs: Pairs,
    ) -> StepCredit:
        """Give every step nothing."""
        nothing = torch.zeros(len(batch))
        return StepCredit(torch.zeros_like(old_logprobs), nothing, nothing)
