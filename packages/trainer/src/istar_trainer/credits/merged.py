"""Merged rewards (ablation): outcome and step reward in one number per step, compared once."""

from jaxtyping import Float
from torch import Tensor

from istar_trainer.advantages import normalize_step_rewards, spread_over_tokens
from istar_trainer.batch import StepBatch
from istar_trainer.config_credits import MergedCredit as MergedConfig
from istar_trainer.credits.base import BatchOutcomes, StepCredit, counted_rows
from istar_trainer.credits.online_prm import PrmCredit
from istar_trainer.prm import Pairs


class MergedCredit(PrmCredit[MergedConfig]):
    """Outcome plus weighted implicit step reward, compared with the other steps of the group.

    Args:
        online: The PRM and its iterations.
        config: Weight and normalization.
    """

    def assign(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        pairs: Pairs,
    ) -> StepCredit:
        """Update the PRM and give every step the advantage of its merged reward."""
        scored = self.online.run(batch, old_logprobs, outcomes, pairs)
        valid = counted_rows(batch, outcomes)
        floor = self._config.floor_factor * scored.step_noise
        scaled = normalize_step_rewards(
            scored.scores.rewards, batch.group_index, valid, scope="batch", norm="maxabs", std_floor=floor
        )
        merged = outcomes.values[batch.trajectory_index] + self._config.step_reward_coef * scaled
        advantages = normalize_step_rewards(
            merged, batch.group_index, valid, scope="group", norm=self._config.norm, std_floor=0.0
        )
        return StepCredit(
            spread_over_tokens(advantages, batch.response_mask),
            scored.scores.rewards,
            merged,
            {**scored.metrics, "adv/std_floor": floor, "adv/step_coef": self._config.step_reward_coef},
            replaces_outcome=True,
        )
