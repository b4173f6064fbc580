"""The environment's own step rewards (ablation), normalized as iStar normalizes implicit ones."""

from jaxtyping import Float
from torch import Tensor

from istar_trainer.advantages import normalize_step_rewards, spread_over_tokens
from istar_trainer.batch import StepBatch
from istar_trainer.config_credits import EnvStepsCredit as EnvStepsConfig
from istar_trainer.credits.base import BatchOutcomes, Stateless, StepCredit, counted_rows
from istar_trainer.prm import Pairs


class EnvStepsCredit(Stateless):
    """Compares each step's environment reward with all steps of the group.

    Args:
        config: α.
    """

    def __init__(self, config: EnvStepsConfig) -> None:
        super().__init__()
        self._config = config

    def assign(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        pairs: Pairs,
    ) -> StepCredit:
        """Credit every step with its reward."""
        return normalized_credit(batch.env_rewards, batch, outcomes, coef=self._config.step_adv_coef)


def normalized_credit(
    step_rewards: Float[Tensor, " rows"], batch: StepBatch, outcomes: BatchOutcomes, *, coef: float
) -> StepCredit:
    """Turn known step rewards into step advantages: mean 0 and deviation 1 over the group's steps.

    Args:
        step_rewards: Exact reward of each step.
        batch: The steps.
        outcomes: Outcomes of the batch's trajectories.
        coef: α.
    """
    valid = counted_rows(batch, outcomes)
    advantages = normalize_step_rewards(
        step_rewards, batch.group_index, valid, scope="group", norm="mean_std", std_floor=0.0
    )
    tokens = spread_over_tokens(advantages * coef, batch.response_mask)
    return StepCredit(tokens, step_rewards, step_rewards, {"adv/step_coef": coef})
