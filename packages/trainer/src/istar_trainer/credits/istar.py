"""iStar: implicit step rewards of an online process reward model, as step advantages (Eq. 1–5).

``process_only`` is the same with the outcome left out of the advantage.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from istar_trainer.advantages import normalize_step_rewards, spread_over_tokens
from istar_trainer.attribution import attribute_credit
from istar_trainer.batch import StepBatch
from istar_trainer.config_credits import StepRewardCredit
from istar_trainer.credits.base import CreditParts
from istar_trainer.credits.implicit import ImplicitRewardCredit
from istar_trainer.credits.online_prm import OnlinePrm, Scored
from istar_trainer.prm import StepScores


class IstarCredit(ImplicitRewardCredit):
    """Implicit step rewards, attributed and compared with the other steps of the group.

    Args:
        online: The PRM and its iterations.
        config: Attribution, normalization, α and its warm-up.
    """

    def __init__(self, online: OnlinePrm, config: StepRewardCredit) -> None:
        super().__init__(online, config)
        self._config = config
        self._needs_centers = config.center != "none"

    @classmethod
    def build(cls, config: StepRewardCredit, parts: CreditParts) -> "IstarCredit":
        """Make the method with a process reward model of its own."""
        return cls(OnlinePrm.build(parts, with_centers=config.center != "none"), config)

    def attributed(self, scores: StepScores, batch: StepBatch) -> Float[Tensor, " rows"] | None:
        """Return what each step is credited with; None if the scores lack the centres it needs."""
        if self._needs_centers and scores.centers is None:
            return None
        return attribute_credit(
            scores.rewards,
            scores.centers,
            batch.trajectory_index,
            batch.step_index,
            batch.weights > 0,
            attribution=self._config.attribution,
            center=self._config.center,
            gamma=self._config.gamma,
        )

    def normalized(
        self,
        scored: Scored,
        attributed: Float[Tensor, " rows"],
        batch: StepBatch,
        valid: Bool[Tensor, " rows"],
    ) -> Float[Tensor, "rows seq"]:
        """Return A^S of each step at its tokens."""
        floor = self._config.floor_factor * scored.step_noise
        scored.metrics["adv/std_floor"] = floor
        advantages = normalize_step_rewards(
            attributed,
            batch.group_index,
            valid,
            scope=self._config.scope,
            norm=self._config.norm,
            std_floor=floor,
        )
        return spread_over_tokens(advantages.to(attributed.dtype), batch.response_mask)
