"""Token-level process rewards (ablation): every token is compared with all tokens of its group."""

from jaxtyping import Bool, Float
from torch import Tensor

from istar_trainer.batch import StepBatch
from istar_trainer.config_credits import TokenPrCredit as TokenPrConfig
from istar_trainer.credits.base import CreditParts
from istar_trainer.credits.implicit import ImplicitRewardCredit
from istar_trainer.credits.online_prm import OnlinePrm, Scored
from istar_trainer.prm import StepScores
from istar_trainer.step_credit import normalize_tokens


class TokenPrCredit(ImplicitRewardCredit):
    """Implicit token rewards of iStar's PRM, normalized over the tokens of a group."""

    @classmethod
    def build(cls, config: TokenPrConfig, parts: CreditParts) -> "TokenPrCredit":
        """Make the method with a process reward model of its own."""
        return cls(OnlinePrm.build(parts), config)

    def attributed(self, scores: StepScores, batch: StepBatch) -> Float[Tensor, " rows"]:
        """Return the sum of each step's token rewards."""
        return scores.rewards

    def normalized(
        self,
        scored: Scored,
        attributed: Float[Tensor, " rows"],
        batch: StepBatch,
        valid: Bool[Tensor, " rows"],
    ) -> Float[Tensor, "rows seq"]:
        """Return A^S of each token."""
        floor = self._settings.floor_factor * scored.token_noise
        scored.metrics["adv/std_floor"] = floor
        rewards = self.online.config.beta * scored.scores.log_ratios
        mask = batch.response_mask & valid[:, None]
        return normalize_tokens(rewards, batch.group_index, mask, std_floor=floor)
