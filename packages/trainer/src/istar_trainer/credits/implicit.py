"""What the methods share that add implicit rewards, normalized, to the outcome advantage."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from jaxtyping import Bool, Float
from torch import Tensor

from istar_trainer.advantages import step_advantage_factors
from istar_trainer.batch import StepBatch
from istar_trainer.config_credits import ImplicitCredit
from istar_trainer.credits.base import BatchOutcomes, StepCredit, counted_rows
from istar_trainer.credits.online_prm import OnlinePrm, Scored
from istar_trainer.credits.warm_up import Gate
from istar_trainer.learner import Learner
from istar_trainer.prm import Pairs, StepScores
from istar_trainer.state_credit import action_ids, state_auc


class ImplicitRewardCredit(ABC):
    """Implicit rewards of an online PRM, as advantages times α.

    Args:
        online: The PRM and its iterations.
        config: α, its warm-up, and who is credited.
    """

    def __init__(self, online: OnlinePrm, config: ImplicitCredit) -> None:
        self.online = online
        self.learners: Mapping[str, Learner] = online.learners
        self._settings = config
        self._gate = Gate(config.warm_up)

    @abstractmethod
    def attributed(self, scores: StepScores, batch: StepBatch) -> Float[Tensor, " rows"] | None:
        """Return what each step is credited with; None if the scores lack the centres it needs."""

    @abstractmethod
    def normalized(
        self,
        scored: Scored,
        attributed: Float[Tensor, " rows"],
        batch: StepBatch,
        valid: Bool[Tensor, " rows"],
    ) -> Float[Tensor, "rows seq"]:
        """Return A^S of each token before α."""

    def assign(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        pairs: Pairs,
    ) -> StepCredit:
        """Update the PRM and credit every step of the batch.

        Args:
            batch: Rows sampled by π_old.
            old_logprobs: Their logprobs under π_old; the policy must not have moved since.
            outcomes: Outcomes of the batch's trajectories.
            pairs: Preferences between them.

        Returns:
            Advantages and metrics.
        """
        scored = self.online.run(batch, old_logprobs, outcomes, pairs, fresh_centers=self._gate.reads_states)
        fresh_auc = self._fresh_state_auc(scored, batch, outcomes)
        is_open = self._gate.observe(scored.metrics.get("prm/pair_acc", float("nan")), fresh_auc)
        coefficient = self._settings.step_adv_coef if is_open else 0.0
        attributed = self.attributed(scored.scores, batch)
        assert attributed is not None
        factors = step_advantage_factors(
            outcomes.values,
            outcomes.groups,
            outcomes.has_outcome,
            pairs.preferred,
            groups=self._settings.groups,
            degenerate_scale=float(self._settings.on_degenerate_groups),
        )
        tokens = self.normalized(scored, attributed, batch, counted_rows(batch, outcomes)) * coefficient
        metrics = {**scored.metrics, "prm/fresh_state_auc": fresh_auc, "adv/step_coef": coefficient}
        return StepCredit(
            (tokens * factors[batch.trajectory_index, None]).to(tokens.dtype),
            scored.scores.rewards,
            attributed,
            metrics,
            replaces_outcome=self._settings.replaces_outcome,
        )

    def state(self) -> dict[str, list[float]]:
        """Return the warm-up's memory."""
        return self._gate.state()

    def load_state(self, state: dict[str, list[float]]) -> None:
        """Restore the warm-up's memory."""
        self._gate.load_state(state)

    def _fresh_state_auc(self, scored: Scored, batch: StepBatch, outcomes: BatchOutcomes) -> float:
        credit = self.attributed(scored.fresh, batch)
        if credit is None:
            return float("nan")
        actions = action_ids(batch.input_ids, batch.response_mask)
        won = outcomes.successes[batch.trajectory_index]
        return state_auc(credit, batch.observation_ids, actions, won, counted_rows(batch, outcomes))
