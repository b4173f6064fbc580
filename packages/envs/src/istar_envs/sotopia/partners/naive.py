"""The plainest policy: wait for an offer and take it."""

from dataclasses import dataclass

from istar_envs.sotopia.dialogue import Action
from istar_envs.sotopia.families.moves import Move
from istar_envs.sotopia.families.outcome import read_table
from istar_envs.sotopia.partners.base import PartnerView
from istar_envs.sotopia.partners.scripted import do, stakes_of


@dataclass(frozen=True)
class NaivePartner:
    """Says hello until there is a proposal, and accepts it, whatever it is worth."""

    name: str = "naive-1"

    def act(self, view: PartnerView) -> Action:
        """Accept what is proposed, or greet.

        Raises:
            ConfigError: If the setting has no stakes.
        """
        stakes = stakes_of(view, self.name)
        if read_table(stakes, view.events).proposals[1 - view.seat]:
            return do(Move("accept"), stakes)
        return Action("speak", "Hello. What do you propose?")
