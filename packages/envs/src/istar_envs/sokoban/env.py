"""The Sokoban environments, ``istar/Sokoban-v0`` (cell codes) and ``istar/VisualSokoban-v0`` (pictures).

Rules, levels, rewards, drawing and language have their own modules; here they become Gymnasium
environments. Nothing is generated, drawn or searched before it is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from istar_envs.errors import EnvError, ResetNeeded, suggest
from istar_envs.sokoban.board import ACTION_NAMES, State, to_text
from istar_envs.sokoban.cells import CHARS
from istar_envs.sokoban.expert import expert_action
from istar_envs.sokoban.game import Game, StepResult
from istar_envs.sokoban.language import SokobanLanguage
from istar_envs.sokoban.levels import Level
from istar_envs.sokoban.outlook import NO_NUMBER
from istar_envs.sokoban.render import Renderer
from istar_envs.sokoban.rewards import Rewards
from istar_envs.sokoban.sources import LevelSource, level_source
from istar_envs.sokoban.window import Window

Observation = NDArray[np.uint8]

_NUM_ACTIONS: Final = len(ACTION_NAMES)
_LEVEL_SEEDS: Final = 2**62


@dataclass(frozen=True, slots=True)
class SokobanSnapshot:
    """Everything that decides how an episode goes on; made by ``clone_state``.

    Attributes:
        level: The level being played.
        seed: Seed it was drawn with, or −1.
        state: Boxes and player.
        steps: Steps taken.
        is_finished: Whether the episode has ended.
        random_state: State of the environment's own generator, which draws the next levels.
    """

    level: Level
    seed: int
    state: State
    steps: int
    is_finished: bool
    random_state: dict[str, Any]


class SokobanEnv(gym.Env[Observation, Any]):
    """Sokoban on a symbolic board.

    Observation: uint8[height, width] of cell codes: 0 wall, 1 floor, 2 target, 3 box on target,
    4 box, 5 player, 6 player on target. Actions: 0 up, 1 down, 2 left, 3 right. An episode terminates
    when every target holds a box and is truncated after ``max_steps`` steps, blocked and invalid ones
    included. ``docs/envs/sokoban.md`` lists the rewards and every key of ``info``.

    Args:
        levels: Preset name, path of an XSB or Boxoban file, or a ``LevelSource``.
        split: ``train``, ``dev`` or ``test``.
        min_moves: Shortest optimal solution to serve; None for no bound.
        max_moves: Longest optimal solution to serve; None for no bound.
        max_steps: Steps before truncation; None takes the source's own limit.
        rewards: What each event of a step pays; None takes the defaults of ``Rewards``.
        tile_size: Pixels per cell side in pictures, at least 4.
        coordinates: Draw row and column numbers on the border of pictures.
        render_mode: ``rgb_array``, ``ansi``, ``human`` or None.

    Attributes:
        language: How a language model plays this environment.
        height: Rows of the board.
        width: Columns of the board.
        max_steps: Steps before truncation.
        source: Where the levels come from.

    Raises:
        EnvError: If an argument names nothing that exists or is out of range.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi", "human"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        levels: str | Path | LevelSource = "istar-6x6-1",
        split: str = "train",
        *,
        min_moves: int | None = None,
        max_moves: int | None = None,
        max_steps: int | None = None,
        rewards: Rewards | None = None,
        tile_size: int = 28,
        coordinates: bool = False,
        render_mode: str | None = None,
    ) -> None:
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise EnvError(
                f"no render_mode {render_mode!r} (Sokoban, option render_mode).{suggest(render_mode, modes)}"
            )
        if max_steps is not None and max_steps < 1:
            raise EnvError(f"max_steps must be at least 1, got {max_steps} (Sokoban, option max_steps).")
        if isinstance(levels, str | Path):
            levels = level_source(levels, split, min_moves=min_moves, max_moves=max_moves)
        elif (min_moves, max_moves) != (None, None):
            raise EnvError("min_moves and max_moves need levels by name; a LevelSource has its own bounds.")
        self.source: LevelSource = levels
        self.height, self.width = self.source.height, self.source.width
        self.max_steps = self.source.max_steps if max_steps is None else max_steps
        self.rewards = Rewards() if rewards is None else rewards
        self.renderer = Renderer(tile_size, coordinates=coordinates)
        self.render_mode = render_mode
        self.action_space = gym.spaces.Discrete(_NUM_ACTIONS)
        self.observation_space = self._make_observation_space()
        self.language = self._make_language()
        self._game: Game | None = None
        self._window: Window | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Restarts the environment's own generator; equal seeds give equal levels.
            options: ``{"level_id": str}`` (or ``task_id``, its name in every world) plays that level,
                ``{"level": Level}`` a given one. Without them the next level is drawn.

        Returns:
            Observation and ``info``.

        Raises:
            EnvError: If an option or level id is unknown, or the level does not fit the board.
        """
        super().reset(seed=seed)
        self._game = self._new_game(*self._choose_level(options or {}))
        if self.render_mode == "human":
            self.render()
        return self._observe(), self._game.info()

    def step(self, action: int | np.integer[Any]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Walk one cell, pushing a box if one is in the way and the cell behind it is free.

        Args:
            action: 0 up, 1 down, 2 left, 3 right.

        Returns:
            Observation, reward, terminated (solved), truncated (out of steps) and ``info``.

        Raises:
            ResetNeeded: Before the first reset and after the end of an episode.
            EnvError: If the action is not in the action space.
        """
        if not (action.__class__ is int and 0 <= action < _NUM_ACTIONS):
            action = self._checked(action)
        return self._answer(self._running().step(action))

    def invalid_step(self, reason: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Spend one step on an unreadable action: nothing moves, ``info`` says why.

        Args:
            reason: Why the action could not be read; becomes ``info["invalid_reason"]``.

        Raises:
            ResetNeeded: Before the first reset and after the end of an episode.
        """
        return self._answer(self._running().invalid_step(reason))

    def clone_state(self) -> SokobanSnapshot:
        """Return the exact state of the episode, for ``restore_state`` to use any number of times.

        Raises:
            ResetNeeded: Before the first reset.
        """
        game = self._running()
        random_state = dict(self.np_random.bit_generator.state)
        return SokobanSnapshot(
            game.level, game.seed, game.state, game.steps, game.is_finished, random_state=random_state
        )

    def restore_state(self, snapshot: SokobanSnapshot) -> tuple[Observation, dict[str, Any]]:
        """Go on from a snapshot of this or an equally configured environment.

        Returns:
            Observation and ``info`` of that state, with nothing moved and nothing earned.

        Raises:
            EnvError: If the snapshot's level does not fit this board.
        """
        if self._game is None or self._game.level is not snapshot.level:
            self._game = self._new_game(snapshot.level, snapshot.seed)
        self._game.seed = snapshot.seed
        self._game.resume(snapshot.state, steps=snapshot.steps, is_finished=snapshot.is_finished)
        self.np_random.bit_generator.state = snapshot.random_state
        return self._observe(), self._game.info()

    def task_ids(self) -> Sequence[str] | None:
        """Return the ids for ``reset(options={"task_id": …})``, in order; None if the split is endless."""
        return self.source.ids()

    def expert_action(self) -> int:
        """Return the best next action; see ``expert.expert_action``."""
        return expert_action(self)

    @property
    def level(self) -> Level:
        """The level being played; raises ResetNeeded before the first reset."""
        return self._running().level

    @property
    def board_state(self) -> State:
        """Boxes and player now; raises ResetNeeded before the first reset."""
        return self._running().state

    def render(self) -> Any:
        """Show the board: uint8[height·tile, width·tile, 3], XSB text or a window, by ``render_mode``.

        Raises:
            ResetNeeded: Before the first reset.
            EnvError: In mode ``human``, if no window can be opened.
        """
        game = self._running()
        if self.render_mode == "ansi":
            return to_text(game.level.layout, game.state)
        if self.render_mode == "rgb_array":
            return self._draw()
        if self.render_mode == "human":
            if self._window is None:
                self._window = Window(title="istar Sokoban")
            self._window.show(self._draw())
        return None

    def close(self) -> None:
        """Close the window, if there is one; calling it again does nothing."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_window": None}

    def _make_observation_space(self) -> gym.Space[Any]:
        return gym.spaces.Box(0, len(CHARS) - 1, (self.height, self.width), np.uint8)

    def _make_language(self) -> SokobanLanguage:
        return SokobanLanguage()

    def _observe(self) -> Observation:
        codes = bytearray(self._running().codes)
        return np.frombuffer(codes, np.uint8).reshape(self.height, self.width)

    def _draw(self) -> NDArray[np.uint8]:
        return self.renderer.draw(self._running().codes, self.width)

    def _answer(self, result: StepResult) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, info = result
        if self.render_mode == "human":
            self.render()
        return self._observe(), reward, terminated, truncated, info

    def _running(self) -> Game:
        if self._game is None:
            raise ResetNeeded("the environment was not reset yet (Sokoban). Call reset() first.")
        return self._game

    def _checked(self, action: Any) -> int:
        if not self.action_space.contains(action):
            raise EnvError(
                f"action {action!r} is outside Discrete(4) (Sokoban, step). "
                "Use 0 up, 1 down, 2 left, 3 right; for an unreadable reply call invalid_step()."
            )
        return int(action)

    def _choose_level(self, options: dict[str, Any]) -> tuple[Level, int]:
        known = ("level", "level_id", "task_id")
        for name in options:
            if name not in known:
                raise EnvError(f"unknown option {name!r} (Sokoban, reset).{suggest(name, known)}")
        if "level" in options:
            return options["level"], NO_NUMBER
        for name in ("level_id", "task_id"):
            if name in options:
                return self.source.get(options[name]), NO_NUMBER
        seed = int(self.np_random.integers(_LEVEL_SEEDS))
        return self.source.draw(seed), seed

    def _new_game(self, level: Level, seed: int) -> Game:
        layout = level.layout
        if layout.height > self.height or layout.width > self.width:
            raise EnvError(
                f"level {level.id} is {layout.height}×{layout.width} cells, but this environment's board is "
                f"{self.height}×{self.width} (Sokoban, reset). Make an environment with levels of that size."
            )
        return Game(
            level,
            height=self.height,
            width=self.width,
            max_steps=self.max_steps,
            rewards=self.rewards,
            seed=seed,
        )


class VisualSokobanEnv(SokobanEnv):
    """Sokoban in pictures: as ``SokobanEnv``, but the observation is what is drawn.

    Observation: uint8[height·tile_size, width·tile_size, 3], RGB. Everything else is the same.
    """

    def _make_observation_space(self) -> gym.Space[Any]:
        size = self.renderer.tile_size
        return gym.spaces.Box(0, 255, (self.height * size, self.width * size, 3), np.uint8)

    def _make_language(self) -> SokobanLanguage:
        return SokobanLanguage(visual=True, coordinates=self.renderer.coordinates)

    def _observe(self) -> Observation:
        return self._draw()
