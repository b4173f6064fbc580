"""SOTOPIA in words: the rules as told to a model, and actions as they are written."""

from typing import Any, Final

from istar_envs.language import RECORDED_INFO, InvalidAction
from istar_envs.sotopia.grammar import ParseError, ProtocolName, parse_action

_ROLE: Final = (
    "You are one of two people in a conversation and have a private goal. Stay in character and try to reach "
    "the goal; the other person has a goal too, which you do not know. You act by turns.\n"
)
_PLAIN: Final = (
    "An action is one of: say: words / nonverbal: gesture / do: act / pass / leave. Leaving ends the "
    "conversation. Where there is something to agree on, only acts bind: do: propose TERMS offers, "
    "do: accept accepts the other's last offer, do: reject declines it."
)
_NOTATIONS: Final[dict[ProtocolName, str]] = {
    "plain": _PLAIN,
    "react": _PLAIN
    + " Think first, inside <think> and </think>; the action stands inside <action> and </action>.",
    "json": (
        'An action is one JSON object such as {"action_type": "speak", "argument": "words"}; the types are '
        "speak, non-verbal communication, action, none and leave. Where there is something to agree on, only "
        "an action binds: its argument is propose TERMS, accept or reject."
    ),
    "speech": "Write what you say and nothing else; to leave, write [leave].",
}


class SotopiaLanguage:
    """Speaks SOTOPIA with a language model.

    Args:
        protocol: How actions are written.

    Attributes:
        role: Rules and how actions are written; never changes during play.
        protocol: As given.
        recorded_info: The dialogue as a judge may read it is part of an episode's record.
    """

    recorded_info = (*RECORDED_INFO, "dialogue", "end_reason")

    def __init__(self, protocol: ProtocolName) -> None:
        self.protocol = protocol
        self.role = _ROLE + _NOTATIONS[protocol]

    def text(self, observation: str, info: dict[str, Any]) -> str:
        """Return what the seat perceives, which is text already."""
        return observation

    def image(self, observation: str, info: dict[str, Any]) -> None:
        """Return None: there is nothing to see."""

    def action(self, text: str, info: dict[str, Any]) -> str | InvalidAction:
        """Read one action.

        Args:
            text: What the model wrote as its action.
            info: Facts of the step; not needed here.

        Returns:
            The text, if it is an action, or the reason why it is none. Never raises.
        """
        action = parse_action(text, self.protocol)
        return InvalidAction(action.reason) if isinstance(action, ParseError) else text

    def name(self, action: str) -> str:
        """Return an action as text, which it is."""
        return action
