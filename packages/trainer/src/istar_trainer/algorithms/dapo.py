"""DAPO (Yu et al. 2025; spec §4.5): GRPO whose outcomes are shaped by the length of the replies.

Clip-higher, token mean and dynamic sampling are values of its configuration.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from istar_trainer.algorithms.base import OutcomeAdvantages
from istar_trainer.algorithms.grpo import Grpo
from istar_trainer.batch import StepBatch
from istar_trainer.config_algorithms import DapoConfig
from istar_trainer.credits import BatchOutcomes
from istar_trainer.gae import last_token
from istar_trainer.losses import overlong_penalty


class Dapo(Grpo):
    """Outcomes, less a penalty for replies near the limit, standardized inside their group.

    Args:
        config: Penalty, divisor and loss options.
        max_response_tokens: Limit on a reply's tokens.
    """

    def __init__(self, config: DapoConfig, max_response_tokens: int) -> None:
        super().__init__(config)
        self._overlong = config.overlong
        self._max_response_tokens = max_response_tokens

    def advantages(
        self, batch: StepBatch, outcomes: BatchOutcomes, token_rewards: Float[Tensor, "rows seq"]
    ) -> OutcomeAdvantages:
        """Return A^E of each token, 0 without a verdict."""
        if self._overlong is None:
            return super().advantages(batch, outcomes, token_rewards)
        penalties = overlong_penalty(
            batch.response_mask.sum(dim=1),
            max_length=self._max_response_tokens,
            buffer=self._overlong.buffer,
            factor=self._overlong.factor,
        )
        at_ends = torch.where(last_token(batch.response_mask), penalties[:, None], 0.0)
        return super().advantages(batch, outcomes, token_rewards + at_ends.to(token_rewards.dtype))
