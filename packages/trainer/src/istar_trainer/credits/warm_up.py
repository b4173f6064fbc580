"""When the step advantage may speak: not before the reward model has shown itself on fresh data."""

import math

from istar_trainer.config_credits import WarmUp


class Gate:
    """Remembers the latest evidence and opens when all of it holds.

    Args:
        config: Thresholds; None is always open.
    """

    def __init__(self, config: WarmUp | None) -> None:
        self._config = config
        self._pair_acc: list[float] = []
        self._state_auc: list[float] = []
        self._iterations = 0

    @property
    def reads_states(self) -> bool:
        """Whether credit inside states is part of the evidence."""
        return self._config is not None and self._config.state_auc is not None

    def observe(self, pair_acc: float, state_auc: float) -> bool:
        """Take the evidence of one iteration and say whether the gate is open in it.

        Args:
            pair_acc: Prequential pair accuracy; NaN without pairs, which is no evidence.
            state_auc: Prequential AUC of credit inside states; NaN if nothing could be compared.
        """
        config, now = self._config, self._iterations
        self._iterations += 1
        if config is None:
            return True
        for memory, value in ((self._pair_acc, pair_acc), (self._state_auc, state_auc)):
            memory.extend([] if math.isnan(value) else [value])
            del memory[: -config.window]
        ranks = len(self._pair_acc) == config.window and min(self._pair_acc) > config.pair_acc
        return ranks and self._tells_actions_apart(config) and now >= config.start_at

    def _tells_actions_apart(self, config: WarmUp) -> bool:
        if config.state_auc is None:
            return True
        found = self._state_auc
        return len(found) == config.window and sum(found) / len(found) > config.state_auc

    def state(self) -> dict[str, list[float]]:
        """Return the memory for a checkpoint."""
        return {
            "pair_acc": list(self._pair_acc),
            "state_auc": list(self._state_auc),
            "iterations": [float(self._iterations)],
        }

    def load_state(self, state: dict[str, list[float]]) -> None:
        """Restore the memory."""
        self._pair_acc = list(state["pair_acc"])
        self._state_auc = list(state["state_auc"])
        self._iterations = int(state["iterations"][0])
