"""Episodes for the tests of the judges, played by the rules of the board."""

from collections.abc import Callable, Sequence

import pytest

from istar_envs.episode import Episode, Transition
from istar_envs.sokoban.board import ACTION_NAMES, Layout, State, is_solved, move, to_text

LAYOUT = Layout(4, 6, walls=0b111111_100001_100001_111111, targets=1 << 9)
"""``######/#@$.-#/#----#/######`` without player and box: one move right solves the level."""
START = State(boxes=1 << 8, player=7)


def _play(
    moves: Sequence[str | None],
    *,
    task_id: str = "level-1",
    note: str = "",
    success: bool | None = None,
    pictures: bool = False,
) -> Episode:
    """Play moves from the start; None is an unreadable reply, ``a||b`` are two moves in one step."""
    state, transitions = START, []
    for names in moves:
        before, reward = state, -0.1
        for name in names.split("||") if names else []:
            state = move(LAYOUT, state, ACTION_NAMES.index(name))
        if is_solved(LAYOUT, state) and not is_solved(LAYOUT, before):
            reward += 11.0
        board = to_text(LAYOUT, before)
        transitions.append(
            Transition(
                observation="" if pictures else board,
                image="ab" * 32 if pictures else None,
                reply=f"{note}<action>{names}</action>" if names else f"{note}hm",
                action=names,
                reward=reward,
                valid=names is not None,
                invalid_reason=None if names else "no action block",
                state_key="6:" + board.replace("\n", ""),
            )
        )
    solved = is_solved(LAYOUT, state)
    return Episode(
        env_id="istar/VisualSokoban-v0" if pictures else "istar/Sokoban-v0",
        task_id=task_id,
        task="Push every box onto a target.",
        transitions=tuple(transitions),
        success=solved if success is None else success,
        score=float(solved),
        end="terminated" if solved else "truncated",
        final_observation="" if pictures else to_text(LAYOUT, state),
    )


@pytest.fixture(scope="session")
def play() -> Callable[..., Episode]:
    """Play a level that ``right`` solves and record it as an environment would."""
    return _play
