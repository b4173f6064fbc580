"""What the site remembers of a visitor: a signed cookie, and nothing on the server.

The cookie holds numbers and short ids only, so it stays far below the 4,096 bytes that browsers keep.
Nobody can write one, but a visitor can keep an old one and put it back; the log shows such a visit's
actions again.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from istar_envs.webshop.session import PageKind, State
from istar_envs.webshop.shop import Shop

SESSION_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What a session may be called."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One visitor and one purchase.

    Attributes:
        goal: Index of the goal.
        session: Name of the session; the completion code is made from it.
        log: Random id that tells visits of equal names apart.
        steps: Actions so far.
        kind: The page shown last.
        query: Digest of its query.
        number: Its results page.
        asin: Its product, or "".
        chosen: (group, value) positions of the chosen options of that product.
    """

    goal: int
    session: str
    log: str = field(default_factory=lambda: secrets.token_hex(8))
    steps: int = 0
    kind: str = PageKind.SEARCH.value
    query: str = ""
    number: int = 1
    asin: str = ""
    chosen: tuple[tuple[int, int], ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether the purchase was made."""
        return self.kind == PageKind.DONE.value

    @property
    def code(self) -> str:
        """Completion code: the first ten hexadecimal digits of the session's SHA-1, upper case."""
        return hashlib.sha1(self.session.encode(), usedforsecurity=False).hexdigest()[:10].upper()

    def state(self, shop: Shop, query: str = "") -> State:
        """Return where the visit stands.

        Args:
            shop: The shop visited.
            query: A query that may be the last one; a visit knows only the digest of its own.
        """
        groups = shop.item(self.asin).groups if self.chosen else ()
        return State(
            PageKind(self.kind),
            query if _digest(query) == self.query else "",
            self.number,
            self.asin,
            tuple((groups[group].name, groups[group].choices[choice].value) for group, choice in self.chosen),
        )

    def move(self, shop: Shop, state: State, *, steps: int) -> "Visit":
        """Return the visit after so many actions that led to a state."""
        return replace(
            self,
            steps=self.steps + steps,
            kind=state.kind.value,
            query=_digest(state.query),
            number=state.number,
            asin=state.asin,
            chosen=_positions(shop, state),
        )

    def to_cookie(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_cookie(cls, data: Mapping[str, Any]) -> "Visit":
        """Read what ``to_cookie`` wrote."""
        return cls(**{**data, "chosen": tuple((group, choice) for group, choice in data["chosen"])})


def _digest(query: str) -> str:
    return hashlib.blake2b(query.encode(), digest_size=8).hexdigest() if query else ""


def _positions(shop: Shop, state: State) -> tuple[tuple[int, int], ...]:
    """Find each chosen option; equal names or values count once, at their first place."""
    places: dict[tuple[str, str], tuple[int, int]] = {}
    if state.chosen:
        for group_number, group in enumerate(shop.item(state.asin).groups):
            for choice_number, choice in enumerate(group.choices):
                places.setdefault((group.name, choice.value), (group_number, choice_number))
    return tuple(places[choice] for choice in state.chosen)
