"""Plain searches that the fast solvers are checked against, and boards to check them on."""

from collections import deque

import pytest

from istar_envs.seeding import CounterRng
from istar_envs.sokoban.bits import cells_of, field_of
from istar_envs.sokoban.board import Layout, State, is_solved, move
from istar_envs.sokoban.formats import parse_xsb
from istar_envs.sokoban.generator import carve_room
from official_data import OFFICIAL_DATA

BOXOBAN = OFFICIAL_DATA / "boxoban" / "unfiltered_valid_000.txt"
needs_boxoban = pytest.mark.skipif(not BOXOBAN.exists(), reason=f"official Boxoban file not at {BOXOBAN}")


def board(text: str) -> tuple[Layout, State]:
    """Read one XSB board."""
    parsed = parse_xsb(text)[0]
    return parsed.layout, parsed.start


def random_board(seed: int, height: int, width: int, num_boxes: int) -> tuple[Layout, State] | None:
    """Place pieces in a carved room; None if it is too small.

    Even seeds put boxes anywhere, odd ones pull them away from targets at random, so that about half
    of the boards can be solved.
    """
    rng = CounterRng(seed)
    floor = carve_room(rng, height, width)
    cells = list(cells_of(floor))
    if len(cells) < num_boxes + 1:
        return None
    targets = [cells.pop(rng.below(len(cells))) for _ in range(num_boxes)]
    layout = Layout(height, width, (1 << height * width) - 1 & ~floor, field_of(targets))
    boxes, player = field_of(targets), cells[rng.below(len(cells))]
    if seed % 2 == 0:
        cells += targets
        boxes = field_of([cells.pop(rng.below(len(cells))) for _ in range(num_boxes)])
        player = cells[rng.below(len(cells))]
    for _ in range(40 * (seed % 2)):
        offset = layout.offsets[rng.below(4)]
        if (layout.walls | boxes) >> player + offset & 1:
            continue
        if boxes >> player - offset & 1:
            boxes ^= 1 << player - offset | 1 << player
        player += offset
    return layout, State(boxes, player)


def fewest(layout: Layout, start: State, *, count_pushes: bool) -> int | None:
    """Count the moves or pushes of a best solution by plain search over single moves."""
    cost = {start: 0}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if is_solved(layout, state):
            return cost[state]
        for action in range(4):
            after = move(layout, state, action)
            is_dear = not count_pushes or after.boxes != state.boxes
            if after not in cost or cost[after] > cost[state] + is_dear:
                cost[after] = cost[state] + is_dear
                (queue.append if is_dear else queue.appendleft)(after)
    return None


def replay(layout: Layout, start: State, actions: list[int]) -> State:
    """Play actions, each of which must move the player, and return the last state."""
    state = start
    for action in actions:
        after = move(layout, state, action)
        assert after is not state, "a blocked move in a solution"
        state = after
    return state
