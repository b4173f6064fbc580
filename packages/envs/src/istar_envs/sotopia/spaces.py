"""The space of what can be said and done: every text; ``sample`` writes actions that can be read."""

from typing import Any, Final

from istar_envs.sotopia.dialogue import Action
from istar_envs.sotopia.grammar import ProtocolName, write_action
from istar_envs.spaces import AnyText

_ACTIONS: Final = (
    Action("speak", "What do you think?"),
    Action("speak", "I would like that."),
    Action("nonverbal", "nods"),
    Action("action", "accept"),
    Action("action", "propose 100"),
    Action("none"),
)
_SPOKEN: Final = 2


class SpeechActions(AnyText):
    """Every string is an action, though few can be read; ``sample`` writes one that can.

    Args:
        protocol: Notation of actions; ``speech`` knows words only.
        seed: Seed of ``sample``.
    """

    def __init__(self, protocol: ProtocolName, seed: int | None = None) -> None:
        super().__init__(seed)
        self.protocol = protocol
        actions = _ACTIONS[:_SPOKEN] if protocol == "speech" else _ACTIONS
        self._texts = [write_action(action, protocol) for action in actions]

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return one of a few actions; ``pass`` and moves among them."""
        return self._texts[self.np_random.integers(len(self._texts))]
