"""Several credit methods at once: A^S is the sum of theirs."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from istar_trainer.batch import StepBatch
from istar_trainer.credits.base import BatchOutcomes, Credit, StepCredit
from istar_trainer.learner import Learner
from istar_trainer.prm import Pairs


class SumCredit:
    """Adds the step advantages of other methods.

    Args:
        parts: The methods; what people look at, and a value that two of them log, is the first one's.
    """

    def __init__(self, parts: Sequence[Credit]) -> None:
        self.parts = tuple(parts)
        self.learners: Mapping[str, Learner] = {
            name: learner for part in parts for name, learner in part.learners.items()
        }

    def assign(
        self,
        batch: StepBatch,
        old_logprobs: Float[Tensor, "rows seq"],
        outcomes: BatchOutcomes,
        pairs: Pairs,
    ) -> StepCredit:
        """Let every method credit the batch."""
        found = [part.assign(batch, old_logprobs, outcomes, pairs) for part in self.parts]
        metrics = {name: value for credit in reversed(found) for name, value in credit.metrics.items()}
        advantages = torch.stack([credit.advantages for credit in found]).sum(dim=0)
        return StepCredit(advantages, found[0].step_rewards, found[0].attributed, metrics)

    def state(self) -> dict[str, list[float]]:
        """Return the state of every method, by its place."""
        return {
            f"{place}/{name}": values
            for place, part in enumerate(self.parts)
            for name, values in part.state().items()
        }

    def load_state(self, state: dict[str, list[float]]) -> None:
        """Restore the state of every method."""
        for place, part in enumerate(self.parts):
            prefix = f"{place}/"
            own = {name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)}
            part.load_state(own)
