"""Both seats of an episode as a PettingZoo environment, for self-play and for two policies.

Needs the extra ``pettingzoo``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from gymnasium.utils import seeding

from istar_envs.errors import EnvError, ResetNeeded
from istar_envs.sotopia.env import SotopiaEnv
from istar_envs.sotopia.game import Game, conclude
from istar_envs.sotopia.spaces import SpeechActions
from istar_envs.spaces import AnyText

try:
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise EnvError(
        'SotopiaParallelEnv needs the package pettingzoo. Run: pip install "istar-envs[pettingzoo]"'
    ) from error

SEATS: Final = ("seat_0", "seat_1")
"""Names of the agents, by seat."""

_NOT_HERE: Final = ("partner", "seat")


class SotopiaParallelEnv(ParallelEnv[str, str, str]):  # type: ignore[misc]
    """A conversation whose both seats are played from outside.

    Observations, actions, rewards, ends and ``info`` of each seat are those of ``SotopiaEnv``, with two
    differences. A seat that is not to act, which has no ``info["admissible_actions"]`` then, does nothing
    whatever its action. And a text that cannot be read is seen by the other seat as doing nothing.

    Args:
        scenarios: As for ``SotopiaEnv``.
        options: The other arguments of ``SotopiaEnv``, except ``partner`` and ``seat``.

    Attributes:
        language: How a language model plays either seat.

    Raises:
        EnvError: If an argument is unknown or out of range.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "istar/Sotopia-v0", "render_modes": ["ansi"]}

    def __init__(self, scenarios: str | Path = "families", **options: Any) -> None:
        for name in _NOT_HERE:
            if name in options:
                raise EnvError(f"no option {name!r} (parallel Sotopia): both seats are played from outside.")
        self._single = SotopiaEnv(scenarios, seat=0, **options)
        self.language = self._single.language
        self.render_mode = self._single.render_mode
        self.possible_agents = list(SEATS)
        self.agents: list[str] = []
        protocol = self._single.options.protocol
        self._spaces = {agent: (AnyText(), SpeechActions(protocol)) for agent in SEATS}
        self._generator: np.random.Generator | None = None
        self._games: tuple[Game, Game] | None = None

    def task_ids(self) -> list[str]:
        """Return the ids of the split for ``reset(options={"task_id": …})``: scenario and people."""
        return [task_id.removesuffix("/seat0") for task_id in self._single.task_ids()]

    def observation_space(self, agent: str) -> AnyText:
        """Return the space of what a seat observes: any text."""
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> SpeechActions:
        """Return the space of what a seat may answer: any text."""
        return self._spaces[agent][1]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        """Start an episode.

        Args:
            seed: Restarts the environment's own generator; equal seeds give equal tasks.
            options: ``{"task_id": str}`` plays that task. Other options are ignored, as PettingZoo asks.

        Returns:
            Observation and ``info`` of each seat.

        Raises:
            EnvError: If the task id is unknown.
        """
        if seed is not None or self._generator is None:
            self._generator = seeding.np_random(seed)[0]
        drawn = self._single.draw(self._generator).removesuffix("/seat0")
        pk = str((options or {}).get("task_id", drawn))
        first = self._single.new_game(f"{pk}/seat0")
        second = Game(f"{pk}/seat1", first.encounter, 1, self._single.options)
        self._games = first, second
        self.agents = list(SEATS)
        started = {agent: game.start() for agent, game in zip(SEATS, self._games, strict=True)}
        observations = {agent: observation for agent, (observation, _) in started.items()}
        return observations, {agent: info for agent, (_, info) in started.items()}

    def step(
        self, actions: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Let the seats act whose turn it is.

        Args:
            actions: Text of each seat that is to act; texts of others are ignored.

        Returns:
            Observations, rewards, terminations, truncations and infos by seat.

        Raises:
            ResetNeeded: Before the first reset and after the end of an episode.
            EnvError: If the action of a seat that is to act is missing or no text.
        """
        if self._games is None or not self.agents:
            raise ResetNeeded("there is no running episode (parallel Sotopia). Call reset() first.")
        waiting = self._games[0].encounter.waiting
        texts = [_text_of(SEATS[seat], actions) if seat in waiting else None for seat in (0, 1)]
        for game, text in zip(self._games, texts, strict=True):
            if text is None:
                game.rest()
            else:
                game.act_or_pass(text)
        conclude(self._games, self._single.scorer)
        answers = {agent: game.answer() for agent, game in zip(SEATS, self._games, strict=True)}
        if self._games[0].is_done:
            self.agents = []
        return (
            {agent: answer[0] for agent, answer in answers.items()},
            {agent: answer[1] for agent, answer in answers.items()},
            {agent: answer[2] for agent, answer in answers.items()},
            {agent: answer[3] for agent, answer in answers.items()},
            {agent: answer[4] for agent, answer in answers.items()},
        )

    def render(self) -> str | None:
        """Return the whole dialogue as the first seat perceives it with ``render_mode="ansi"``, else None.

        Raises:
            ResetNeeded: Before the first reset.
        """
        if self._games is None:
            raise ResetNeeded("the environment was not reset yet (parallel Sotopia). Call reset() first.")
        return None if self.render_mode is None else self._games[0].transcript()


def _text_of(agent: str, actions: Mapping[str, str]) -> str:
    text = actions.get(agent)
    if not isinstance(text, str):
        raise EnvError(
            f"the action of {agent} is {text!r}, but it is to act (parallel Sotopia, step). Give a text."
        )
    return text
