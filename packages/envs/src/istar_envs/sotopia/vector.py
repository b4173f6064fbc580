"""Many episodes of ``istar/Sotopia-v0`` stepped together.

Rows play what single environments with the same seeds play. What is waited for is waited for once: the
partner's calls of all rows run together, and so do the scorer's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from istar_envs.errors import EnvError, ResetNeeded, suggest
from istar_envs.sotopia.env import SotopiaEnv
from istar_envs.sotopia.game import Game, StepResult, conclude, let_partner_act
from istar_envs.vector_infos import stack_infos

Texts = tuple[str, ...]
Infos = dict[str, Any]


class SotopiaVectorEnv(VectorEnv[Texts, Any, NDArray[Any]]):
    """Many episodes of ``istar/Sotopia-v0``; what ``gymnasium.make_vec`` makes.

    An ended episode is replaced at its next step (Gymnasium's ``NEXT_STEP``): that step's action is
    ignored and its reward is 0. The infos hold every key of the single environment as an array with its
    ``_key`` mask. A partner or scorer that fails ends the row it fails in and no other.

    Args:
        num_envs: Number of episodes.
        options: Arguments of the single environment.

    Raises:
        EnvError: If an argument is out of range.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["ansi"],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(self, num_envs: int = 1, **options: Any) -> None:
        if num_envs < 1:
            raise EnvError(f"num_envs must be at least 1, got {num_envs} (vectorised Sotopia).")
        self._single = single = SotopiaEnv(**options)
        self.num_envs = num_envs
        self.render_mode = single.render_mode
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self._generators: list[np.random.Generator] = []
        self._games: list[Game] = []

    def task_ids(self) -> Sequence[str]:
        """Return the task ids of the split, as for the single environment."""
        return self._single.task_ids()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Texts, Infos]:
        """Start an episode in every row.

        Args:
            seed: Row ``i`` draws its tasks as a single environment reset with ``seed + i``, or with the
                ``i``-th of a list.
            options: ``{"task_ids": [...]}`` plays these tasks first, one for each row.

        Raises:
            EnvError: If an option or task id is unknown, or a list has the wrong length.
        """
        self._seed(seed)
        self._games = [self._single.new_game(task_id) for task_id in self._first_tasks(options or {})]
        self._settle()
        observations, infos = zip(*(game.start() for game in self._games), strict=True)
        return observations, stack_infos(infos)

    def step(
        self, actions: Sequence[str] | NDArray[Any]
    ) -> tuple[Texts, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Take one action in every row.

        Args:
            actions: ``num_envs`` texts.

        Returns:
            Observations, float64 rewards, bool terminations, bool truncations (each of length
            ``num_envs``) and infos.

        Raises:
            ResetNeeded: Before the first reset.
            EnvError: If there are more or fewer actions than rows, or one is no text.
        """
        if not self._games:
            raise ResetNeeded("step() before reset() (vectorised Sotopia). Call reset() first.")
        if len(actions) != self.num_envs:
            raise EnvError(f"{len(actions)} actions for {self.num_envs} rows (vectorised Sotopia, step).")
        has_ended = [game.is_done for game in self._games]
        for row, action in enumerate(actions):
            if has_ended[row]:
                self._games[row] = self._single.new_game(self._single.draw(self._generators[row]))
            else:
                self._single.submit(self._games[row], action)
        self._settle()
        answers = [
            _first(game) if is_new else game.answer()
            for game, is_new in zip(self._games, has_ended, strict=True)
        ]
        observations, rewards, terminated, truncated, infos = zip(*answers, strict=True)
        ends = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        return observations, np.array(rewards, np.float64), *ends, stack_infos(infos)

    def render(self) -> Texts | None:
        """Return every dialogue as its seat perceives it with ``render_mode="ansi"``, else None."""
        return None if self.render_mode is None else tuple(game.transcript() for game in self._games)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the connections of a partner that was described by a mapping."""
        self._single.close()

    def _seed(self, seed: int | Sequence[int | None] | None) -> None:
        """Restart the generators of rows with a seed; a row without one keeps its own."""
        seeds: Sequence[int | None]
        if seed is None:
            seeds = [None] * self.num_envs
        else:
            seeds = [seed + row for row in range(self.num_envs)] if isinstance(seed, int) else seed
        if len(seeds) != self.num_envs:
            raise EnvError(f"{len(seeds)} seeds for {self.num_envs} rows (vectorised Sotopia, reset).")
        if not self._generators:
            self._generators = [seeding.np_random()[0] for _ in seeds]
        for row, new in enumerate(seeds):
            if new is not None:
                self._generators[row] = seeding.np_random(new)[0]

    def _first_tasks(self, options: Mapping[str, Any]) -> Sequence[str]:
        for name in options:
            if name != "task_ids":
                raise EnvError(
                    f"unknown option {name!r} (vectorised Sotopia, reset).{suggest(name, ['task_ids'])}"
                )
        drawn = [self._single.draw(generator) for generator in self._generators]
        tasks: Sequence[str] = options.get("task_ids", drawn)
        if len(tasks) != self.num_envs:
            raise EnvError(f"{len(tasks)} task_ids for {self.num_envs} rows (vectorised Sotopia, reset).")
        return tasks

    def _settle(self) -> None:
        """Let the partner act wherever it is to, and find the verdicts of what has just ended."""
        let_partner_act(self._games, self._single.partner)
        conclude(self._games, self._single.scorer)


def _first(game: Game) -> StepResult:
    """Return what the step that starts a new episode returns."""
    observation, info = game.start()
    return observation, 0.0, False, False, info
