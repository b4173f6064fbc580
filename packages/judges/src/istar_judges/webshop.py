"""Whether a WebShop purchase really fits its goal: the shopping is done again and scored anew."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from istar_envs.episode import Episode, Outcome
from istar_envs.errors import EnvError
from istar_envs.language import InvalidAction
from istar_envs.webshop.opening import open_shop
from istar_envs.webshop.products import Score
from istar_envs.webshop.session import PageKind, State, advance, parse_action, purchase_of
from istar_envs.webshop.shop import Shop
from istar_judges.base import Scale, require_scale
from istar_judges.errors import JudgeError

_TASK_ID: Final = re.compile(
    r"(?P<catalogue>.+)/(?P<goals>\w+)/(?P<scoring>\w+)/(?P<seed>-?\d+)/(?P<goal>\d+)"
)
_NEXT_ACTION: Final = re.compile(r"(?<=\])\|\|(?=(?:search|click)\[)")


@dataclass(frozen=True, slots=True)
class WebShopVerifier:
    """Whether, and how well, the right thing was bought.

    The recorded actions are taken again in the shop that the task id names, and the purchase is
    scored there; nothing that the record claims about pages, rewards or success is believed.

    Args:
        scale: ``success`` (1.0 for a perfect purchase, else 0.0) or ``return`` (its score).
        catalogue: Where the task's catalogue is, if its name alone does not say it.
        page_size: Products per page of results that the agent saw.
        show_attributes: Whether products had an Attributes page.
        search: Search backend that the agent used.
        tagger: Noun tagger of ``compat`` scores.

    Raises:
        ConfigError: If ``scale`` is unknown.
    """

    scale: Scale = "success"
    catalogue: str | Path | None = None
    page_size: int = 10
    show_attributes: bool = False
    search: str = "bm25"
    tagger: str = "auto"

    def __post_init__(self) -> None:
        """Refuse an unknown scale."""
        require_scale(self.scale, "WebShop verifier")

    @property
    def name(self) -> str:
        """Name with version."""
        return "webshop-verifier/1"

    @property
    def score_range(self) -> tuple[float, float]:
        """``(0, 1)``."""
        return 0.0, 1.0

    @classmethod
    def of_env(cls, scale: Scale, options: Mapping[str, Any]) -> "WebShopVerifier":
        """Make the verifier of an environment with the given keyword arguments."""
        fields = ("catalogue", "page_size", "show_attributes", "search", "tagger")
        return cls(scale, **{name: options[name] for name in fields if name in options})

    def __call__(self, episode: Episode) -> Outcome:
        """Judge one episode.

        Returns:
            An ``ok`` outcome, or ``invalid`` without a number if the episode failed, its catalogue
            cannot be opened, or the shop refuses an action that the record says was taken.

        Raises:
            JudgeError: If the episode is one of another world.
        """
        task = _TASK_ID.fullmatch(episode.task_id)
        if "webshop" not in episode.env_id.lower() or task is None:
            raise JudgeError(
                f"an episode of {episode.env_id} (task {episode.task_id}) came to the WebShop verifier. "
                "Judge it with the verifier of its own world."
            )
        if episode.end == "failed":
            return self._no_verdict(f"the episode failed: {episode.error or 'no reason recorded'}")
        try:
            shop = self._open(task)
            found = _replay(shop, int(task["goal"]), episode)
        except EnvError as error:
            return self._no_verdict(f"the task cannot be played again: {error}")
        if isinstance(found, str):
            return self._no_verdict(found)
        return self._verdict(episode, found)

    def _open(self, task: re.Match[str]) -> Shop:
        return open_shop(
            task["catalogue"] if self.catalogue is None else self.catalogue,
            goals=task["goals"],
            scoring=task["scoring"],
            search=self.search,
            page_size=self.page_size,
            show_attributes=self.show_attributes,
            price_seed=int(task["seed"]),
            tagger=self.tagger,
        )

    def _verdict(self, episode: Episode, score: Score | None) -> Outcome:
        total = 0.0 if score is None else score.total
        success = total == 1.0
        notes = [] if success == episode.success else [f"the record claims success={episode.success}"]
        if score is None:
            notes.append("nothing was bought")
        value = float(success) if self.scale == "success" else total
        return Outcome("ok", self.name, score=value, success=success, detail="; ".join(notes))

    def _no_verdict(self, detail: str) -> Outcome:
        return Outcome("invalid", self.name, detail=detail)


def _replay(shop: Shop, goal_index: int, episode: Episode) -> Score | str | None:
    """Shop again: the purchase's score, None without a purchase, or what contradicts the shop."""
    if not goal_index < len(shop.goals):
        return f"the catalogue has only {len(shop.goals)} goals"
    state = State()
    for step, transition in enumerate(episode.transitions):
        for text in _NEXT_ACTION.split(transition.action) if transition.action is not None else ():
            action = parse_action(text)
            result = action if isinstance(action, InvalidAction) else advance(shop, state, action)
            if isinstance(result, InvalidAction):
                return f"the shop refuses the action of step {step + 1}: {result.reason}"
            state = result
    if state.kind is not PageKind.DONE:
        return None
    return shop.judge(purchase_of(shop, state), shop.goals.goal(goal_index))
