"""What judging may cost: tokens and money, counted as they are spent, with a limit that holds.

Before each attempt the most that it can cost is set aside; afterwards that is replaced by what the
endpoint counted. An attempt whose cost nobody can tell (it timed out, the connection broke) stays
counted in full.
"""

import threading
from dataclasses import dataclass

from istar_envs.chat import NO_USAGE, ChatBudget, Usage
from istar_envs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent so far.

    Attributes:
        calls: Attempts that were settled.
        usage: Tokens as counted by the endpoint, and in full for attempts that it did not count.
        unknown_calls: Attempts among ``calls`` whose cost nobody could tell.
        cost: Money, in the unit of the prices.
    """

    calls: int = 0
    usage: Usage = NO_USAGE
    unknown_calls: int = 0
    cost: float = 0.0


class Budget:
    """A meter with hard limits; safe to share by threads (a ``Meter`` of ``istar_envs.chat``).

    Spending stays within the limits as long as the endpoint counts no more tokens than the request
    has bytes, and obeys ``max_tokens``.

    Args:
        max_tokens: Most tokens, prompts and replies together; None for no limit.
        max_cost: Most money; None for no limit.
        prompt_price: Price of a million prompt tokens.
        completion_price: Price of a million reply tokens.

    Raises:
        ConfigError: If a number is negative, or there is a limit on money without prices.
    """

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        prompt_price: float = 0.0,
        completion_price: float = 0.0,
    ) -> None:
        if min(max_tokens or 0, max_cost or 0, prompt_price, completion_price) < 0:
            raise ConfigError("budget: limits and prices must not be negative.")
        if max_cost is not None and not prompt_price + completion_price > 0:
            raise ConfigError(
                f"budget: max_cost = {max_cost} without prices limits nothing. "
                "Set prompt_price and completion_price, the prices of a million tokens."
            )
        self.max_tokens, self.max_cost = max_tokens, max_cost
        self.prompt_price, self.completion_price = prompt_price, completion_price
        self._spent = Spent()
        self._reserved: dict[int, Usage] = {}
        self._next = 0
        self._lock = threading.Lock()

    @property
    def spent(self) -> Spent:
        """What was spent so far, without what is set aside."""
        return self._spent

    def cost_of(self, usage: Usage) -> float:
        """Return the price of some tokens."""
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        return (prompt * self.prompt_price + completion * self.completion_price) / 1e6

    def reserve(self, prompt_tokens: int, completion_tokens: int) -> int | None:
        """Set aside the most that an attempt can cost.

        Returns:
            A ticket for ``settle``; None if it may fit once other attempts are settled.

        Raises:
            ChatBudget: If it does not fit whatever the others will have cost.
        """
        asked = Usage(prompt_tokens, completion_tokens)
        with self._lock:
            if not self._fits(self._spent.usage + asked):
                raise ChatBudget(
                    f"the budget is spent: {self._describe()}; the next call may take "
                    f"{prompt_tokens + completion_tokens} tokens. Raise the limit to go on."
                )
            if not self._fits(sum(self._reserved.values(), self._spent.usage + asked)):
                return None
            self._next += 1
            self._reserved[self._next] = asked
            return self._next

    def settle(self, ticket: int, usage: Usage | None) -> None:
        """Replace what was set aside by what was used; None keeps all of it as spent."""
        with self._lock:
            asked = self._reserved.pop(ticket)
            total = self._spent.usage + (asked if usage is None else usage)
            self._spent = Spent(
                calls=self._spent.calls + 1,
                usage=total,
                unknown_calls=self._spent.unknown_calls + (usage is None),
                cost=self.cost_of(total),
            )

    def _fits(self, usage: Usage) -> bool:
        tokens = usage.prompt_tokens + usage.completion_tokens
        within_tokens = self.max_tokens is None or tokens <= self.max_tokens
        return within_tokens and (self.max_cost is None or self.cost_of(usage) <= self.max_cost)

    def _describe(self) -> str:
        used = self._spent.usage.prompt_tokens + self._spent.usage.completion_tokens
        tokens = f"{used} tokens" + ("" if self.max_tokens is None else f" of {self.max_tokens}")
        money = "" if self.max_cost is None else f", cost {self._spent.cost:.4g} of {self.max_cost:g}"
        return tokens + money
