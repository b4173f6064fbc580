"""A plain policy for which talk pays: give reasons, then take what is offered."""

from dataclasses import dataclass

from istar_envs.sotopia.dialogue import Action
from istar_envs.sotopia.families.moves import Move
from istar_envs.sotopia.families.outcome import read_table
from istar_envs.sotopia.partners.base import PartnerView
from istar_envs.sotopia.partners.friend_finder import find_friend
from istar_envs.sotopia.partners.mood import MAX_REASONS
from istar_envs.sotopia.partners.reasons import next_reason
from istar_envs.sotopia.partners.scripted import do, stakes_of
from istar_envs.sotopia.stakes import FriendsStakes

_PATIENCE = 99


@dataclass(frozen=True)
class PatientPartner:
    """Gives as many reasons as count with people, then accepts what is proposed, whatever it is worth.

    It proposes nothing, so that it can be imitated without reckoning. It looks for a common friend like
    everybody else.
    """

    name: str = "patient-1"

    def act(self, view: PartnerView) -> Action:
        """Give a reason, accept, or ask for a proposal.

        Raises:
            ConfigError: If the setting has no stakes.
        """
        stakes = stakes_of(view, self.name)
        if isinstance(stakes, FriendsStakes):
            return find_friend(view, stakes, _PATIENCE)
        num_acts = sum(event.seat == view.seat for event in view.events)
        reason = next_reason(stakes, view.seat, view.events, {}) if num_acts < MAX_REASONS else None
        if reason:
            return Action("speak", reason)
        if read_table(stakes, view.events).proposals[1 - view.seat]:
            return do(Move("accept"), stakes)
        return Action("speak", "What do you propose?")
