"""iStar as its code was released, for comparison only: the reward model never learns.

Its log-ratios were detached before the loss, so it stays at the start policy and its rewards pull back
towards that. The baseline of a step averages one step of each trajectory only (spec §2.2 and §2.4).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from istar_trainer.advantages import istar_official_step_advantages, spread_over_tokens
from istar_trainer.batch import StepBatch
from istar_trainer.config_credits import IstarOfficialCredit as OfficialConfig
from istar_trainer.credits.base import BatchOutcomes, CreditParts, Stateless, StepCredit, counted_rows
from istar_trainer.implicit_reward import step_rewards, token_log_ratios
from istar_trainer.learner import LanguageModel
from istar_trainer.prm import Pairs


class IstarOfficialCredit(Stateless):
    """Step rewards of the start policy, with the released normalization.

    Args:
        config: α.
        start: The start policy, which stands for the reward model.
        beta: Temperature of the implicit reward.
    """

    def __init__(self, config: OfficialConfig, start: LanguageModel, beta: float) -> None:
        super().__init__()
        self._config = config
        self._start = start
        self._beta = beta

    @classmethod
    def build(cls, config: OfficialConfig, parts: CreditParts) -> "IstarOfficialCredit":
        """Make the method with the frozen start policy."""
        return cls(config, parts.reference(), parts.prm.beta)

    def assign(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        pairs: Pairs,
    ) -> StepCredit:
        """Credit every step; the step that stands for its trajectory is its first."""
        ratios = token_log_ratios(self._start.logprobs(batch), old_logprobs, batch.response_mask)
        rewards = step_rewards(ratios, batch.response_mask, beta=self._beta)
        rows = counted_rows(batch, outcomes).nonzero().squeeze(1)
        rows = rows[batch.step_index[rows].argsort(stable=True)]
        advantages = torch.zeros_like(rewards)
        advantages[rows] = istar_official_step_advantages(
            rewards[rows], batch.trajectory_index[rows], batch.group_index[rows]
        )
        coef = self._config.step_adv_coef
        return StepCredit(
            spread_over_tokens(advantages * coef, batch.response_mask),
            rewards,
            rewards,
            {"adv/step_coef": coef},
        )
