"""A partner that plays recorded actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from istar_envs.sotopia.dialogue import Action
from istar_envs.sotopia.partners.base import PartnerFailed, PartnerView


@dataclass(frozen=True)
class ReplayPartner:
    """Repeat what was recorded, action by action, whatever the other seat does.

    Attributes:
        recordings: Actions of the partner by task id, in order.
        name: Who was recorded.
    """

    recordings: Mapping[str, Sequence[Action]]
    name: str = "replay"

    def act(self, view: PartnerView) -> Action:
        """Return the recorded action for this turn.

        Raises:
            PartnerFailed: If nothing was recorded for the task, or not that much.
        """
        task = view.setting.pk
        recorded = self.recordings.get(task)
        position = sum(event.seat == view.seat for event in view.events)
        if recorded is None:
            raise PartnerFailed(
                f"{self.name}: no recording of task {task!r}; record it, or play another one."
            )
        if position >= len(recorded):
            raise PartnerFailed(
                f"{self.name}: the recording of task {task!r} has {len(recorded)} actions, but the dialogue "
                f"needs number {position + 1}. Play it against what it was recorded with."
            )
        return recorded[position]
