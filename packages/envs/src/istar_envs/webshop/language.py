"""WebShop in words: the rules as told to a model, pages as text, and actions as they are written."""

import json
from typing import Any

from istar_envs.language import InvalidAction
from istar_envs.webshop.session import parse_action

_ROLE = (
    "You are shopping in a web shop for a customer. The instruction says what to buy: the kind of product, "
    "what it must be like, which options to choose and how much it may cost.\n"
    "On the search page, write search[words] to search. On every other page, write click[thing] to press a "
    "button, open the product with that id, or choose an option of the product; `thing` is its text as the "
    "page shows it. A chosen option stays chosen until you leave the product. When everything is chosen, "
    "click[buy now] buys the product and ends the task; only the purchase counts, and there is only one."
)


class WebShopLanguage:
    """Speaks WebShop with a language model.

    Attributes:
        role: Rules and how actions are written; never changes during play.
    """

    role = _ROLE

    def text(self, observation: str | dict[str, Any], info: dict[str, Any]) -> str:
        """Return a page as text; a structured page becomes JSON.

        Args:
            observation: The page, in whatever form the environment shows it.
            info: Facts of the step; not needed here.
        """
        if isinstance(observation, str):
            return observation
        return json.dumps(observation, ensure_ascii=False)

    def image(self, observation: Any, info: dict[str, Any]) -> None:
        """Return None: this shop is read, not seen."""

    def action(self, text: str, info: dict[str, Any]) -> str | InvalidAction:
        """Read one action; whether the page offers it is decided by the environment.

        Args:
            text: What the model wrote as its action.
            info: Facts of the step; not needed here.

        Returns:
            The action, or the reason why it is none. Never raises.
        """
        action = parse_action(text)
        return action if isinstance(action, InvalidAction) else str(action)

    def name(self, action: str) -> str:
        """Return an action as text, which it is."""
        return action
