"""Many Sokoban boards stepped together in one process, by array operations.

Boards are drawn from a bank of levels made once, so an automatic reset is a copy of memory. Step for
step the result equals that of single environments playing the same levels. Nothing is searched
unless asked for (``analysis``), and only the visual class draws.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from istar_envs.errors import EnvError, ResetNeeded
from istar_envs.seeding import derive_seed
from istar_envs.sokoban.board import ACTION_NAMES, State
from istar_envs.sokoban.cells import BOX, BOX_ON_TARGET, CHARS, FLOOR, TARGET, CellGrid
from istar_envs.sokoban.env import Observation, SokobanEnv, VisualSokobanEnv
from istar_envs.sokoban.game import TASK
from istar_envs.sokoban.outlook import NO_NUMBER, Outlook
from istar_envs.sokoban.sources import LevelSource

Infos = dict[str, Any]
StepArrays = tuple[Observation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Infos]

_PLAYER_MINUS_FIXED: Final = 4
_BOX_PLUS_FIXED: Final = 5
"""The code of a player is that of the bare cell plus 4, the code of a box 5 minus that of the bare cell."""
_IS_FREE: Final = np.isin(np.arange(len(CHARS)), (FLOOR, TARGET))
_IS_BOX: Final = np.isin(np.arange(len(CHARS)), (BOX, BOX_ON_TARGET))
_UNICODE: Final = np.array([ord(char) for char in CHARS], np.uint32)
_NO_ACTION: Final = len(ACTION_NAMES)
_ACTION_BITS: Final = 1 << np.arange(len(ACTION_NAMES))


def _objects(values: list[Any]) -> NDArray[np.object_]:
    """Return a read-only array of objects, whatever their type."""
    array = np.empty(len(values), object)
    for index, value in enumerate(values):
        array[index] = value
    array.setflags(write=False)
    return array


_NAMES_OF_SET: Final = _objects(
    [[name for code, name in enumerate(ACTION_NAMES) if mask >> code & 1] for mask in range(16)]
)
"""Names of the actions in each set of action bits."""
_NAMES_TAKEN: Final = _objects([*([name] for name in ACTION_NAMES), []])
"""Names of the actions of a step, by action code; the last entry is for a reset."""


class _Bank:
    """Levels as arrays.

    Attributes:
        levels: The levels.
        ids: object[levels].
        seeds: int64[levels], the seed each was drawn with, or −1.
        fixed: uint8[levels, cells], codes of wall, floor and target.
        start: uint8[levels, cells], codes at the start.
        player: int64[levels], cell of the player at the start.
        num_targets: int64[levels].
    """

    def __init__(self, source: LevelSource, num_levels: int) -> None:
        ids = source.ids()
        if ids is None:
            seeds = [derive_seed(0, "bank", index) for index in range(num_levels)]
            self.levels = [source.draw(seed) for seed in seeds]
        else:
            self.levels = [source.get(level_id) for level_id in ids[:num_levels]]
            seeds = [NO_NUMBER] * len(self.levels)
        grids = [CellGrid(level.layout, source.height, source.width) for level in self.levels]
        starts = [level.start for level in self.levels]
        self.ids = _objects([level.id for level in self.levels])
        self.seeds = np.array(seeds, np.int64)
        self.fixed = self._stack([grid.fixed for grid in grids])
        self.start = self._stack([bytes(g.codes(s)) for g, s in zip(grids, starts, strict=True)])
        self.player = np.array([g.places[s.player] for g, s in zip(grids, starts, strict=True)])
        self.num_targets = (self.fixed == TARGET).sum(axis=1)

    @staticmethod
    def _stack(rows: list[bytes]) -> NDArray[np.uint8]:
        return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)


class SokobanVectorEnv(VectorEnv[Observation, NDArray[np.int64], NDArray[Any]]):
    """Many boards of ``istar/Sokoban-v0``; what ``gymnasium.make_vec`` makes.

    An ended episode is replaced at its next step (Gymnasium's ``NEXT_STEP``): that step's action is
    ignored and its reward is 0. The infos hold every key of the single environment as an array with
    its ``_key`` mask; the lists of names in them are shared and must not be changed.

    Args:
        num_envs: Number of boards.
        levels: As for the single environment.
        split: As for the single environment.
        num_levels: Size of the bank of levels; a listed split gives its first ``num_levels`` levels.
        analysis: Also report ``optimal_left`` and ``deadlocked``, at the price of a table look-up per
            board and step.
        options: The other arguments of the single environment; render modes are ``rgb_array`` or None.

    Raises:
        EnvError: If an argument is out of range.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 4,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }
    _single_class: type[SokobanEnv] = SokobanEnv

    def __init__(
        self,
        num_envs: int = 1,
        levels: str | Path | LevelSource = "istar-6x6-1",
        split: str = "train",
        *,
        num_levels: int = 1024,
        analysis: bool = False,
        **options: Any,
    ) -> None:
        for name, value in (("num_envs", num_envs), ("num_levels", num_levels)):
            if value < 1:
                raise EnvError(f"{name} must be at least 1, got {value} (vectorised Sokoban).")
        self._single = single = self._single_class(levels, split, **options)
        self.render_mode = single.render_mode
        if self.render_mode not in (None, "rgb_array"):
            raise EnvError(
                f'no render_mode {self.render_mode!r} (vectorised Sokoban). Use "rgb_array" or None.'
            )
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = (
            single.observation_space,
            single.action_space,
        )
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self._num_levels = num_levels
        self._analysis = analysis
        self._bank: _Bank | None = None
        self._offsets = np.array([-single.width, single.width, -1, 1])
        self._rows = np.arange(num_envs)
        self._first_cell = self._rows * (single.height * single.width)
        self._all = np.ones(num_envs, np.bool_)
        self._all.setflags(write=False)
        self._tasks, self._no_reasons = _objects([TASK] * num_envs), _objects([None] * num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Infos]:
        """Start an episode on every board.

        The bank depends on the constructor's arguments alone; the seed decides which of its levels come.

        Args:
            seed: Restarts the generator that picks levels.
            options: None are known.

        Raises:
            EnvError: If any option is given.
        """
        if options:
            raise EnvError(
                f"unknown option {next(iter(options))!r} (vectorised Sokoban, reset). There are none."
            )
        super().reset(seed=seed)
        if self._bank is None:
            self._bank = _Bank(self._single.source, self._num_levels)
            self._outlooks = [Outlook(level) for level in self._bank.levels] if self._analysis else []
        shape = (self.num_envs, self._bank.fixed.shape[1])
        self._codes, self._fixed = np.empty(shape, np.uint8), np.empty(shape, np.uint8)
        self._level, self._player, self._num_targets, self._on_target, self._steps = (
            np.zeros(self.num_envs, np.int64) for _ in range(5)
        )
        self._has_ended = np.zeros(self.num_envs, np.bool_)
        self._deal(self._bank, self._rows)
        self._look_around()
        nothing = np.zeros(self.num_envs, np.bool_)
        return self._observe(), self._infos(
            moved=nothing, pushed=nothing, taken=np.full(self.num_envs, _NO_ACTION), parts=self._no_parts()
        )

    def step(self, actions: NDArray[np.int64]) -> StepArrays:
        """Take one action on every board.

        Args:
            actions: int64[num_envs], codes as for the single environment.

        Returns:
            Observations, float64 rewards, bool terminations, bool truncations (each of length
            ``num_envs``) and infos.

        Raises:
            ResetNeeded: Before the first reset.
            EnvError: If the actions have the wrong shape or a code is not 0–3.
        """
        if self._bank is None:
            raise ResetNeeded("step() before reset() (vectorised Sokoban). Call reset() first.")
        actions = self._checked(actions)
        is_live = ~self._has_ended
        pushed = self._can_push[self._rows, actions] & is_live
        moved = (self._can_walk[self._rows, actions] & is_live) | pushed
        change = self._move(self._offsets[actions], moved, pushed)
        self._steps += is_live
        terminated = (self._on_target == self._num_targets) & is_live
        truncated = (self._steps >= self._single.max_steps) & is_live & ~terminated
        parts = self._single.rewards.batch(change, terminated & (change > 0))
        replaced = np.flatnonzero(self._has_ended)
        if replaced.size:
            self._deal(self._bank, replaced)
            for part in parts.values():
                part[replaced] = 0.0
        self._has_ended = terminated | truncated
        self._look_around()
        taken = np.where(is_live, actions, _NO_ACTION)
        infos = self._infos(moved=moved, pushed=pushed, taken=taken, parts=parts)
        rewards = np.zeros(self.num_envs)
        for part in parts.values():
            rewards += part
        return self._observe(), rewards, terminated, truncated, infos

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Return a picture of every board, or None without a render mode.

        Raises:
            ResetNeeded: Before the first reset.
        """
        if self._bank is None:
            raise ResetNeeded("render() before reset() (vectorised Sokoban). Call reset() first.")
        return tuple(self._draw()) if self.render_mode == "rgb_array" else None

    def _checked(self, actions: Any) -> NDArray[np.int64]:
        array = np.asarray(actions)
        if array.shape != (self.num_envs,) or array.dtype.kind not in "iu":
            raise EnvError(
                f"actions must be {self.num_envs} integers, got {array.dtype}{list(array.shape)} "
                "(vectorised Sokoban, step)."
            )
        if array.min() < 0 or array.max() >= len(ACTION_NAMES):
            wrong = array[(array < 0) | (array >= len(ACTION_NAMES))][0]
            raise EnvError(
                f"action {wrong} is outside Discrete(4) (vectorised Sokoban). Use 0 up to 3 right."
            )
        return array

    def _deal(self, bank: _Bank, boards: NDArray[np.int64]) -> None:
        """Put a fresh level on some boards."""
        picked = self.np_random.integers(len(bank.levels), size=len(boards))
        self._level[boards] = picked
        self._codes[boards] = bank.start[picked]
        self._fixed[boards] = bank.fixed[picked]
        self._player[boards] = bank.player[picked]
        self._num_targets[boards] = bank.num_targets[picked]
        self._on_target[boards] = (bank.start[picked] == BOX_ON_TARGET).sum(axis=1)
        self._steps[boards] = 0

    def _look_around(self) -> None:
        """Find what each of the four actions would do on every board.

        The border is wall, so a cell behind it, which may lie on another board, decides nothing.
        """
        codes = self._codes.ravel()
        ahead = (self._first_cell + self._player)[:, None] + self._offsets
        behind = codes.take(ahead + self._offsets, mode="clip")
        in_front = codes.take(ahead)
        self._can_walk = _IS_FREE[in_front]
        self._can_push = _IS_BOX[in_front] & _IS_FREE[behind]

    def _move(
        self, offsets: NDArray[np.int64], moved: NDArray[np.bool_], pushed: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Move players and boxes; returns int64[num_envs], the change of boxes on targets."""
        codes, fixed = self._codes.ravel(), self._fixed.ravel()
        here = self._first_cell + self._player
        left = here[moved]
        codes[left] = fixed[left]
        entered = left + offsets[moved]
        codes[entered] = fixed[entered] + _PLAYER_MINUS_FIXED
        self._player += np.where(moved, offsets, 0)
        change = np.zeros(self.num_envs, np.int64)
        who = np.flatnonzero(pushed)
        box_from = here[who] + offsets[who]
        box_to = box_from + offsets[who]
        codes[box_to] = _BOX_PLUS_FIXED - fixed[box_to]
        change[who] = (fixed[box_to] == TARGET).astype(np.int64) - (fixed[box_from] == TARGET)
        self._on_target += change
        return change

    def _no_parts(self) -> dict[str, NDArray[np.float64]]:
        return {name: np.zeros(self.num_envs) for name in self._single.rewards.parts(0, solved=False)}

    def _infos(
        self,
        *,
        moved: NDArray[np.bool_],
        pushed: NDArray[np.bool_],
        taken: NDArray[np.int64],
        parts: dict[str, NDArray[np.float64]],
    ) -> Infos:
        bank = self._bank
        assert bank is not None
        ids = bank.ids[self._level]
        solved = self._on_target == self._num_targets
        facts: Infos = {
            "task": self._tasks,
            "success": solved,
            "score": self._on_target / self._num_targets,
            "valid": self._all,
            "invalid_reason": self._no_reasons,
            "admissible_actions": _NAMES_OF_SET[(self._can_walk | self._can_push) @ _ACTION_BITS],
            "state_key": self._state_keys(),
            "task_id": ids,
            "moved": moved,
            "pushed": pushed,
            "effective": moved,
            "num_boxes_on_target": self._on_target.copy(),
            "num_boxes": self._num_targets.copy(),
            "solved": solved,
            "steps": self._steps.copy(),
            "steps_left": self._single.max_steps - self._steps,
            "level_id": ids,
            "seed": bank.seeds[self._level],
            "reward_parts": self._masked(parts),
            "action_names": _NAMES_TAKEN[taken],
        }
        if self._analysis:
            facts |= self._analyse(bank)
        return self._masked(facts)

    def _masked(self, facts: Infos) -> Infos:
        """Add Gymnasium's mask of each key: every board has every key."""
        return {**facts, **{f"_{key}": self._all for key in facts}}

    def _state_keys(self) -> NDArray[np.str_]:
        prefix = f"{self._single.width}:"
        chars = np.empty((self.num_envs, len(prefix) + self._codes.shape[1]), np.uint32)
        chars[:, : len(prefix)] = [ord(char) for char in prefix]
        chars[:, len(prefix) :] = _UNICODE[self._codes]
        return chars.view(f"U{chars.shape[1]}").ravel()

    def _analyse(self, bank: _Bank) -> Infos:
        pairs = []
        for board, index in enumerate(self._level.tolist()):
            layout = bank.levels[index].layout
            rows = self._codes[board].reshape(self._single.height, -1)[: layout.height, : layout.width]
            cells = np.flatnonzero(_IS_BOX[rows]).tolist()
            row, column = divmod(int(self._player[board]), self._single.width)
            state = State(sum(1 << cell for cell in cells), row * layout.width + column)
            pairs.append(self._outlooks[index].of(state))
        return {
            "optimal_left": np.array([moves for moves, _ in pairs], np.int64),
            "deadlocked": np.array([is_dead for _, is_dead in pairs], np.bool_),
        }

    def _draw(self) -> NDArray[np.uint8]:
        return self._single.renderer.draw_many(
            self._codes.reshape(self.num_envs, self._single.height, self._single.width)
        )

    def _observe(self) -> Observation:
        return self._codes.reshape(self.observation_space.shape).copy()


class VisualSokobanVectorEnv(SokobanVectorEnv):
    """Many boards of ``istar/VisualSokoban-v0``: as ``SokobanVectorEnv``, but observed as pictures."""

    _single_class = VisualSokobanEnv

    def _observe(self) -> Observation:
        return self._draw()
