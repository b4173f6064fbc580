"""The browser environment ``istar/WebShopBrowser-v0``: the shop's web site in a real Chromium.

Rules, goals, rewards and ``info`` are those of the text environment, which runs along; the pages are
read from the browser, and the purchase is checked to pay the same there.
"""

import secrets
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from istar_envs.actions import shorten
from istar_envs.errors import EnvError, require_known
from istar_envs.webshop.env import WebShopEnv
from istar_envs.webshop.language import WebShopLanguage
from istar_envs.webshop.pages import build_page
from istar_envs.webshop.products import Goal, GoalKind, ScoringName
from istar_envs.webshop.render import SEPARATOR, to_text
from istar_envs.webshop.session import Action, State
from istar_envs.webshop.site.html import visible_text
from istar_envs.webshop.ways import action_between, way_to

if TYPE_CHECKING:
    from istar_envs.webshop.chromium import Chromium
    from istar_envs.webshop.site.local import LocalSite

BROWSER_OBSERVATIONS: Final = ("text", "html", "screenshot")
"""What a page can be observed as."""


class BrowserLanguage(WebShopLanguage):
    """Speaks WebShop with a language model that may see pages instead of reading them."""

    def text(self, observation: Any, info: dict[str, Any]) -> str:
        """Return a page as text; "" if it is a picture."""
        return "" if isinstance(observation, np.ndarray) else super().text(observation, info)

    def image(self, observation: Any, info: dict[str, Any]) -> NDArray[np.uint8] | None:  # type: ignore[override]
        """Return the picture of a page, uint8[height, width, 3], or None."""
        return observation if isinstance(observation, np.ndarray) else None


class WebShopBrowserEnv(WebShopEnv):
    """The shop of ``WebShopEnv`` as a person meets it: typed into and clicked in Chromium.

    Observation: the page's visible text, its HTML, or a screenshot uint8[height, width, 3]. Actions,
    rewards, ends and ``info`` are those of ``WebShopEnv``. Browser and site start at the first reset;
    copies of an environment start their own and walk to where the original stood.

    Args:
        catalogue: As for ``WebShopEnv``, like all arguments that are not explained here.
        goals: Who wrote the goals.
        split: Split that goals are drawn from.
        split_scheme: Scheme of that split.
        scoring: ``compat`` or ``strict``.
        search: Search backend.
        observation: ``text``, ``html`` or ``screenshot``.
        max_steps: Steps before truncation.
        page_size: Products per page of results.
        show_attributes: Give products an Attributes page.
        sampling: How goals are drawn.
        price_seed: Seed of caps and hidden prices.
        tagger: Noun tagger of ``compat`` scores.
        base_url: Address of a running site of the same shop; None starts one in this process.
        binary: Path of the browser; None looks on the PATH.
        width: Of the page and the screenshot, in pixels.
        height: Of the page and the screenshot, in pixels.
        render_mode: ``ansi``, ``rgb_array`` or None.

    Raises:
        MissingAsset: If selenium, Chromium or chromedriver is not installed.
        EnvError: If an argument names nothing that exists or is out of range.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 2}  # noqa: RUF012

    def __init__(
        self,
        catalogue: str | Path = "generated",
        *,
        goals: GoalKind = "synthetic",
        split: str = "train",
        split_scheme: str = "webshop-original",
        scoring: ScoringName = "compat",
        search: str = "bm25",
        observation: Literal["text", "html", "screenshot"] = "text",
        max_steps: int = 10,
        page_size: int = 10,
        show_attributes: bool = False,
        sampling: Literal["uniform", "weighted"] = "uniform",
        price_seed: int = 0,
        tagger: str = "auto",
        base_url: str | None = None,
        binary: str | None = None,
        width: int = 1280,
        height: int = 1280,
        render_mode: str | None = None,
    ) -> None:
        from istar_envs.webshop.chromium import BINARIES, find

        require_known("observation", observation, BROWSER_OBSERVATIONS, "WebShopBrowser")
        if render_mode is not None:
            require_known("render_mode", render_mode, self.metadata["render_modes"], "WebShopBrowser")
        find("browser", (binary,) if binary else BINARIES)
        super().__init__(
            catalogue,
            goals=goals,
            split=split,
            split_scheme=split_scheme,
            scoring=scoring,
            search=search,
            max_steps=max_steps,
            page_size=page_size,
            show_attributes=show_attributes,
            sampling=sampling,
            price_seed=price_seed,
            tagger=tagger,
        )
        self.render_mode = render_mode
        self._seen = observation
        self._base_url = base_url
        self._binary = binary
        self._width, self._height = width, height
        if observation == "screenshot":
            self.observation_space = gym.spaces.Box(0, 255, (height, width, 3), np.uint8)  # type: ignore[assignment]
        self.language = BrowserLanguage()
        self._browser: Chromium | None = None
        self._site: LocalSite | None = None
        self._shown: State | None = None

    def render(self) -> Any:
        """Return the page as rich text or as a picture, by ``render_mode``.

        Raises:
            ResetNeeded: Before the first reset.
        """
        if self.render_mode != "rgb_array":
            return super().render()
        return self._page().picture()

    def close(self) -> None:
        """End the browser and the site; calling it again does nothing."""
        for opened in (self._browser, self._site):
            if opened is not None:
                opened.close()
        self._browser = self._site = self._shown = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_browser": None, "_site": None, "_shown": None}

    def _begin(self, goal: int) -> None:
        super()._begin(goal)
        self._shown = None

    def _observe(self) -> Any:
        page = self._page()
        if self._seen == "screenshot":
            return page.picture()
        return page.html() if self._seen == "html" else visible_text(page.html())

    def _page(self) -> "Chromium":
        """Return the browser, showing the page of the present state; a browser that fails is closed."""
        goal = self.goal
        target = replace(self._state, opened=frozenset())
        try:
            browser = self._opened()
            if self._shown != target:
                self._go(browser, goal, target)
        except EnvError:
            self.close()
            raise
        self._shown = target
        return browser

    def _go(self, browser: "Chromium", goal: Goal, target: State) -> None:
        """Act as the agent did; where no single action leads there, begin anew and walk the whole way."""
        step = None if self._shown is None else action_between(self.shop, self._shown, target)
        if step is None:
            browser.open(f"{self._url()}/start?goal={goal.index}")
        for action in way_to(self.shop, target) if step is None else (step,):
            _perform(browser, action)
        self._compare(browser, target)

    def _compare(self, browser: "Chromium", state: State) -> None:
        """Make sure that the site has come along: the same goals, pages and rewards."""
        wanted = to_text(build_page(self.shop, self.goal, state, self._score)).split(SEPARATOR)
        shown = visible_text(browser.html()).split(SEPARATOR)
        for here, there in zip_longest(shown, wanted, fillvalue=""):
            if here != there:
                raise EnvError(
                    f"the site at {self._url()} shows {shorten(here)} in place of {shorten(there)} "
                    "(WebShopBrowser). It must run, with this environment's catalogue, goals and scoring."
                )

    def _opened(self) -> "Chromium":
        if self._browser is None:
            from istar_envs.webshop.chromium import Chromium

            self._browser = Chromium(self._binary, width=self._width, height=self._height)
        return self._browser

    def _url(self) -> str:
        if self._base_url is not None:
            return self._base_url.rstrip("/")
        if self._site is None:
            from istar_envs.webshop.site.app import create_app
            from istar_envs.webshop.site.local import LocalSite

            goals = range(len(self.shop.goals))
            self._site = LocalSite(create_app(self.shop, goals, secret_key=secrets.token_bytes(32)))
        return self._site.url


def _perform(browser: "Chromium", action: Action) -> None:
    """Do with the page what an action says."""
    if action.verb == "search":
        browser.write("#search_input", action.argument)
        browser.click("[type=submit]")
    else:
        browser.click("[data-click]", action.argument)
