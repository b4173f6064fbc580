"""The best player: for demonstrations, upper bounds and tests.

Where a level's states can be tabulated the plan has the fewest moves; on larger levels it has the
fewest pushes, with shortest walks in between.
"""

from typing import Any

import gymnasium as gym

from istar_envs.errors import EnvError
from istar_envs.sokoban.board import Layout, State, is_solved, move
from istar_envs.sokoban.retrograde import distances
from istar_envs.sokoban.solver import solve_pushes


def expert_plan(layout: Layout, state: State) -> list[int] | None:
    """Plan a solution.

    Among equally short tabulated plans the one with the lowest action codes first is taken, so the
    result is always the same.

    Args:
        layout: Walls and targets.
        state: Boxes and player.

    Returns:
        Action codes, empty if the state is solved; None if it cannot be solved.
    """
    table = distances(layout, state.boxes.bit_count())
    if table is None:
        solution = solve_pushes(layout, state)
        return None if solution is None else list(solution.actions)
    left = table.moves_left(state)
    if left is None:
        return None
    plan = []
    for moves in reversed(range(left)):
        successors = [move(layout, state, action) for action in range(len(layout.offsets))]
        action = next(code for code, after in enumerate(successors) if table.moves_left(after) == moves)
        plan.append(action)
        state = successors[action]
    return plan


def expert_action(env: gym.Env[Any, Any]) -> int:
    """Return the first action of the expert's plan for the present state of a Sokoban environment.

    To follow one plan to the end, call ``expert_plan`` once instead.

    Raises:
        EnvError: If the level is solved already or cannot be solved any more.
        ResetNeeded: Before the first reset.
    """
    sokoban: Any = env.unwrapped
    plan = expert_plan(sokoban.level.layout, sokoban.board_state)
    if not plan:
        solved = is_solved(sokoban.level.layout, sokoban.board_state)
        problem = "is solved already" if solved else "cannot be solved any more"
        raise EnvError(f"no expert action: level {sokoban.level.id} {problem} (Sokoban). Call reset() first.")
    return plan[0]
