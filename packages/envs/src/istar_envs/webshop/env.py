"""The text environments ``istar/WebShop-v0`` (scored as published) and ``istar/WebShop-v1`` (corrected).

Rules, pages, goals, search and scores have their own modules; here they become a Gymnasium
environment. The catalogue is opened once per process and shared by all environments.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from istar_envs.errors import EnvError, ResetNeeded, require_known, suggest
from istar_envs.language import InvalidAction
from istar_envs.spaces import AnyText
from istar_envs.webshop.expert import oracle_action, rule_action
from istar_envs.webshop.language import WebShopLanguage
from istar_envs.webshop.opening import open_shop
from istar_envs.webshop.pages import build_page
from istar_envs.webshop.products import Goal, GoalKind, Score, ScoringName
from istar_envs.webshop.render import to_structured, to_text, to_text_rich, url_of
from istar_envs.webshop.session import PageKind, State, admissible, advance, parse_action, purchase_of
from istar_envs.webshop.spaces import PageFacts, ShopActions

Observation = str | dict[str, Any]
ObservationMode = Literal["text", "text_rich", "html", "url", "structured"]
OBSERVATIONS: Final[tuple[ObservationMode, ...]] = ("text", "text_rich", "html", "url", "structured")

_NOTHING: Final = Score(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, False, False, False)
_SAMPLED_ASINS: Final = 50


@dataclass(frozen=True, slots=True)
class WebShopSnapshot:
    """Everything that decides how an episode goes on; made by ``clone_state``.

    Attributes:
        goal: Index of the goal.
        state: Where the session is.
        steps: Steps taken.
        is_finished: Whether the episode has ended.
        score: Score of the purchase, or None before it.
        random_state: State of the environment's own generator, which draws the next goals.
    """

    goal: int
    state: State
    steps: int
    is_finished: bool
    score: Score | None
    random_state: dict[str, Any]


class WebShopEnv(gym.Env[Observation, str]):
    """A shop in which one purchase has to fit an instruction.

    Observation: the page as text (or as ``observation`` says). Action: text, ``search[words]`` or
    ``click[thing]``; anything else, and whatever the page does not offer, is an invalid step that
    changes nothing. The reward is 0 until the purchase, which terminates the episode and pays its
    score in [0, 1]. ``docs/envs/webshop.md`` explains pages, scores, splits and every key of ``info``.

    Args:
        catalogue: ``generated``, ``generated-N``, or the folder of a store or of the official files.
        goals: ``synthetic`` or ``human`` instructions.
        split: ``train``, ``dev`` or ``test``.
        split_scheme: ``webshop-original``, ``istar`` or ``strict`` (no product in two splits).
        scoring: ``compat`` (as published) or ``strict`` (its faults corrected).
        search: ``bm25``, or ``pyserini`` for Lucene itself.
        observation: ``text``, ``text_rich``, ``html``, ``url`` or ``structured``.
        max_steps: Steps before truncation, invalid ones included.
        page_size: Products per page of results.
        show_chosen: Say in ``text`` which options are chosen; the published environment does not.
        show_attributes: Give products an Attributes page.
        sampling: Draw goals ``uniform``ly or by their published weights (``weighted``).
        price_seed: Seed of price caps and, in ``compat``, of prices inside a range.
        tagger: Who finds the nouns of titles for ``compat`` scores: ``auto``, ``spacy`` or ``light``.
        render_mode: ``ansi`` or None.

    Attributes:
        language: How a language model plays this environment.
        shop: The shop, shared with every environment of equal options.
        max_steps: Steps before truncation.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012 (Gymnasium's own declaration)

    def __init__(
        self,
        catalogue: str | Path = "generated",
        *,
        goals: GoalKind = "synthetic",
        split: str = "train",
        split_scheme: str = "webshop-original",
        scoring: ScoringName = "compat",
        search: str = "bm25",
        observation: ObservationMode = "text",
        max_steps: int = 10,
        page_size: int = 10,
        show_chosen: bool = True,
        show_attributes: bool = False,
        sampling: Literal["uniform", "weighted"] = "uniform",
        price_seed: int = 0,
        tagger: str = "auto",
        render_mode: str | None = None,
    ) -> None:
        require_known("observation", observation, OBSERVATIONS, "WebShop")
        require_known("sampling", sampling, ("uniform", "weighted"), "WebShop")
        if render_mode is not None:
            require_known("render_mode", render_mode, ("ansi",), "WebShop")
        if max_steps < 1:
            raise EnvError(f"max_steps must be at least 1, got {max_steps} (WebShop, option max_steps).")
        self.shop = open_shop(
            catalogue,
            goals=goals,
            scoring=scoring,
            search=search,
            page_size=page_size,
            show_attributes=show_attributes,
            price_seed=price_seed,
            tagger=tagger,
        )
        self.max_steps = max_steps
        self.render_mode = render_mode
        self.language = WebShopLanguage()
        self._observation = observation
        self._show_chosen = show_chosen
        self._sampling = sampling
        self._split = (split_scheme, split)
        self._goals = self.shop.goals.split(split_scheme, split)
        asins = [self.shop.catalog.asin(row) for row in range(min(_SAMPLED_ASINS, len(self.shop.catalog)))]
        self.action_space = ShopActions([asin.lower() for asin in asins])
        self.observation_space = PageFacts() if observation == "structured" else AnyText()
        self._goal: Goal | None = None
        self._state = State()
        self._score: Score | None = None
        self._steps = 0
        self._is_finished = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode on the search page.

        Args:
            seed: Restarts the environment's own generator; equal seeds give equal goals.
            options: ``{"goal": int}`` plays the goal with that index, of any split; ``{"task_id": str}``
                the task with that id. Without them the next goal of the split is drawn.

        Returns:
            Observation and ``info``.

        Raises:
            EnvError: If an option, goal or task id is unknown.
        """
        super().reset(seed=seed)
        self._begin(self._choose_goal(options or {}))
        return self._observe(), self._info(None)

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Search or click.

        Args:
            action: ``search[words]`` or ``click[thing]``; any text is accepted.

        Returns:
            Observation, reward (the score of the purchase, else 0.0), terminated (bought),
            truncated (out of steps) and ``info``.

        Raises:
            ResetNeeded: Before the first reset and after the end of an episode.
            EnvError: If the action is no text.
        """
        goal = self._running()
        if not isinstance(action, str):
            raise EnvError(
                f"action {action!r} is no text (WebShop, step). Write search[words] or click[thing]; for an "
                "unreadable reply call invalid_step()."
            )
        parsed = parse_action(action)
        state = parsed if isinstance(parsed, InvalidAction) else advance(self.shop, self._state, parsed)
        if isinstance(state, InvalidAction):
            return self._finish_step(state.reason)
        self._state = state
        if state.kind is PageKind.DONE:
            self._score = self.shop.judge(purchase_of(self.shop, state), goal)
        return self._finish_step(None)

    def invalid_step(self, reason: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Spend one step on an unreadable action: nothing changes, ``info`` says why.

        Args:
            reason: Why the action could not be read; becomes ``info["invalid_reason"]``.

        Raises:
            ResetNeeded: Before the first reset and after the end of an episode.
        """
        self._running()
        return self._finish_step(reason)

    def clone_state(self) -> WebShopSnapshot:
        """Return the exact state of the episode, for ``restore_state`` to use any number of times.

        Raises:
            ResetNeeded: Before the first reset.
        """
        return WebShopSnapshot(
            self.goal.index,
            self._state,
            self._steps,
            self._is_finished,
            self._score,
            random_state=dict(self.np_random.bit_generator.state),
        )

    def restore_state(self, snapshot: WebShopSnapshot) -> tuple[Observation, dict[str, Any]]:
        """Go on from a snapshot of this or an equally configured environment.

        Returns:
            Observation and ``info`` of that state, with nothing done and nothing earned.
        """
        self._begin(snapshot.goal)
        self._state, self._steps = snapshot.state, snapshot.steps
        self._is_finished, self._score = snapshot.is_finished, snapshot.score
        self.np_random.bit_generator.state = snapshot.random_state
        return self._observe(), self._info(None)

    def task_ids(self) -> Sequence[str]:
        """Return the ids of the split for ``reset(options={"task_id": …})``, in goal order."""
        return _TaskIds(self._task_prefix(), self._goals)

    def expert_action(self) -> str:
        """Return the oracle's next action: it knows the product and its options.

        Raises:
            ResetNeeded: Before the first reset and after the end of an episode.
        """
        return oracle_action(self.shop, self._running(), self._state)

    def rule_action(self) -> str:
        """Return the rule shopper's next action: first hit, options that the instruction names.

        Raises:
            ResetNeeded: Before the first reset and after the end of an episode.
        """
        return rule_action(self.shop, self._running(), self._state)

    @property
    def goal(self) -> Goal:
        """What is wanted; raises ResetNeeded before the first reset."""
        if self._goal is None:
            raise ResetNeeded("the environment was not reset yet (WebShop). Call reset() first.")
        return self._goal

    @property
    def state(self) -> State:
        """Where the session is."""
        return self._state

    def render(self) -> str | None:
        """Return the page as rich text with ``render_mode="ansi"``, else None.

        Raises:
            ResetNeeded: Before the first reset.
        """
        if self.render_mode is None:
            return None
        return to_text_rich(build_page(self.shop, self.goal, self._state, self._score))

    def _begin(self, goal: int) -> None:
        self._goal = self.shop.goals.goal(goal)
        self._state = State()
        self._score, self._steps, self._is_finished = None, 0, False

    def _running(self) -> Goal:
        goal = self.goal
        if self._is_finished:
            raise ResetNeeded("the episode has ended (WebShop). Call reset() to start the next one.")
        return goal

    def _choose_goal(self, options: dict[str, Any]) -> int:
        known = ("goal", "task_id")
        for name in options:
            if name not in known:
                raise EnvError(f"unknown option {name!r} (WebShop, reset).{suggest(name, known)}")
        if "goal" in options:
            return self._checked_goal(options["goal"])
        if "task_id" in options:
            prefix, _, index = str(options["task_id"]).rpartition("/")
            if f"{prefix}/" != self._task_prefix() or not index.isdecimal():
                raise EnvError(
                    f"unknown task_id {options['task_id']!r} (WebShop, reset). This environment's ids are "
                    f"{self._task_prefix()}N with N from 0 to {len(self.shop.goals) - 1}."
                )
            return self._checked_goal(int(index))
        return self._draw_goal()

    def _draw_goal(self) -> int:
        if self._sampling == "uniform":
            return int(self._goals[self.np_random.integers(len(self._goals))])
        cumulative = self.shop.goals.cumulative_weights(*self._split)
        place = np.searchsorted(cumulative, self.np_random.random() * cumulative[-1], side="right")
        return int(self._goals[min(int(place), len(self._goals) - 1)])

    def _checked_goal(self, goal: Any) -> int:
        count = len(self.shop.goals)
        if isinstance(goal, bool) or not isinstance(goal, int | np.integer) or not 0 <= goal < count:
            raise EnvError(f"no goal {goal!r} (WebShop, reset). Goals are numbered from 0 to {count - 1}.")
        return int(goal)

    def _task_prefix(self) -> str:
        goals = self.shop.goals
        return f"{self.shop.catalog.name}/{goals.kind}/{goals.scoring}/{goals.seed}/"

    def _finish_step(self, reason: str | None) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        terminated = self._state.kind is PageKind.DONE
        truncated = not terminated and self._steps >= self.max_steps
        self._is_finished = terminated or truncated
        reward = self._score.total if self._score is not None else 0.0
        return self._observe(), reward, terminated, truncated, self._info(reason)

    def _observe(self) -> Observation:
        if self._observation == "url":
            return url_of(self._state)
        page = build_page(self.shop, self.goal, self._state, self._score)
        if self._observation == "text":
            return to_text(page, show_chosen=self._show_chosen)
        if self._observation == "text_rich":
            return to_text_rich(page)
        if self._observation == "structured":
            return to_structured(page)
        from istar_envs.webshop.site.html import to_html

        return to_html(page)

    def _info(self, reason: str | None) -> dict[str, Any]:
        goal, state = self.goal, self._state
        score = self._score or _NOTHING
        key = f"{goal.index}|{state.kind}|{state.query}|{state.number}|{state.asin}|{state.chosen}"
        return {
            "task": goal.text,
            "success": score.total == 1.0,
            "score": score.total,
            "valid": reason is None,
            "invalid_reason": reason,
            "admissible_actions": [] if self._is_finished else admissible(self.shop, state),
            "state_key": hashlib.blake2b(key.encode(), digest_size=12).hexdigest(),
            "task_id": f"{self._task_prefix()}{goal.index}",
            "goal": goal.index,
            "page": str(state.kind),
            "exact_product": score.exact_product,
            "r_type": score.r_type,
            "r_att": score.r_att,
            "r_option": score.r_option,
            "r_price": score.r_price,
        }


class _TaskIds(Sequence[str]):
    """Ids made when they are asked for: a large catalogue has millions."""

    def __init__(self, prefix: str, goals: NDArray[np.int32]) -> None:
        self._prefix = prefix
        self._goals = goals

    def __len__(self) -> int:
        return len(self._goals)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [f"{self._prefix}{goal}" for goal in self._goals[index]]
        return f"{self._prefix}{self._goals[index]}"
