"""Whether a game of Sokoban was really won: its moves are played again from the first board."""

import math
import re
from dataclasses import dataclass
from typing import Final

from istar_envs.episode import Episode, Outcome
from istar_envs.sokoban.board import ACTION_NAMES, Layout, State, is_solved, move
from istar_judges.base import Scale, require_scale
from istar_judges.errors import JudgeError

_Board = tuple[Layout, State]
_CELLS: Final = frozenset("#-_ .$*@+")


@dataclass(frozen=True, slots=True)
class SokobanVerifier:
    """Whether a game of Sokoban was really won.

    The moves are replayed from the first recorded board (what the agent saw or, where that was a
    picture, the key of the state). Every later board must be the one that the rules give, or there
    is no verdict. Success is read off the last position, whatever the record claims.

    Args:
        scale: What the score is; ``success`` needs no trust in the recorded rewards.

    Raises:
        ConfigError: If ``scale`` is unknown.
    """

    scale: Scale = "success"

    def __post_init__(self) -> None:
        """Refuse an unknown scale."""
        require_scale(self.scale, "Sokoban verifier")

    @property
    def name(self) -> str:
        """Name with version."""
        return "sokoban-verifier/1"

    @property
    def score_range(self) -> tuple[float, float]:
        """``(0, 1)``, or unbounded with ``scale="return"``."""
        return (0.0, 1.0) if self.scale == "success" else (-math.inf, math.inf)

    def __call__(self, episode: Episode) -> Outcome:
        """Judge one episode.

        Returns:
            An ``ok`` outcome, or ``invalid`` without a number if the episode failed, its record
            contradicts the rules or does not tell the last position.

        Raises:
            JudgeError: If the episode is one of another world.
        """
        if "sokoban" not in episode.env_id.lower():
            raise JudgeError(
                f"an episode of {episode.env_id} (task {episode.task_id}) came to the Sokoban verifier. "
                "Judge it with the verifier of its own world."
            )
        if episode.end == "failed":
            return self._no_verdict(f"the episode failed: {episode.error or 'no reason recorded'}")
        found = _replay(episode)
        if isinstance(found, str):
            return self._no_verdict(found)
        if found is None:
            return self._no_verdict("the last position cannot be told from the record")
        return self._verdict(episode, is_solved(*found))

    def _verdict(self, episode: Episode, solved: bool) -> Outcome:
        score = float(solved) if self.scale == "success" else episode.episode_return
        if not math.isfinite(score):
            return self._no_verdict(f"the recorded rewards sum to {score}")
        detail = "" if solved == episode.success else f"the record claims success={episode.success}"
        return Outcome("ok", self.name, score=score, success=solved, detail=detail)

    def _no_verdict(self, detail: str) -> Outcome:
        return Outcome("invalid", self.name, detail=detail)


def _replay(episode: Episode) -> _Board | str | None:
    """Play the recorded moves: the last position (None if unknown), or what contradicts the rules."""
    board: _Board | None = None
    for step, transition in enumerate(episode.transitions):
        seen = _read_board(transition.observation) or _read_key(transition.state_key)
        if board and seen and seen != board:
            return f"the board after step {step} is not what the rules give"
        board = _play(seen or board, transition.action)
    last = _read_board(episode.final_observation)
    if board and last and last != board:
        return "the last board is not what the rules give"
    return last or board


def _play(board: _Board | None, action: str | None) -> _Board | None:
    """Apply the moves of one step; the position is lost (None) if a move is not one of the four."""
    if board is None or action is None:
        return board
    layout, state = board
    for name in action.split("||"):
        if name not in ACTION_NAMES:
            return None
        state = move(layout, state, ACTION_NAMES.index(name))
    return layout, state


def _read_board(text: str) -> _Board | None:
    """Read what ``board.to_text`` writes: a rectangle closed by walls with one player, else None."""
    rows = text.split("\n")
    height, width = len(rows), len(rows[0])
    cells = "".join(rows)
    if any(len(row) != width for row in rows) or not _CELLS.issuperset(cells):
        return None
    if sum(map(cells.count, "@+")) != 1 or not any(map(cells.count, ".*+")):
        return None
    border = rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)
    if border.strip("#"):
        return None
    layout = Layout(height, width, walls=_bits(cells, "#"), targets=_bits(cells, ".*+"))
    return layout, State(boxes=_bits(cells, "$*"), player=max(cells.find("@"), cells.find("+")))


def _read_key(state_key: str) -> _Board | None:
    """Read the state key of a Sokoban environment: the width, a colon and the cells row by row."""
    width, _, cells = state_key.partition(":")
    if not re.fullmatch("[1-9][0-9]{0,3}", width):
        return None
    step = int(width)
    return _read_board("\n".join(cells[i : i + step] for i in range(0, len(cells), step)))


def _bits(cells: str, kinds: str) -> int:
    return sum(1 << index for index, cell in enumerate(cells) if cell in kinds)
