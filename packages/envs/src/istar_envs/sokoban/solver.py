"""Optimal solvers for single levels: fewest moves and fewest pushes.

Levels small enough for a table are solved in moves by walking down it (``retrograde``). Everything
else is A* with one lower bound: the cheapest assignment of boxes to targets, each box pushed alone
on the empty board. Positions with a box on a dead square or in a frozen group are cut off.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from istar_envs.errors import EnvError
from istar_envs.sokoban.bits import cells_of, shifted
from istar_envs.sokoban.board import Layout, State, move
from istar_envs.sokoban.deadlocks import dead_squares, floor_of, is_frozen_deadlock, pull_layers
from istar_envs.sokoban.retrograde import distances

MAX_NODES: Final = 1_000_000
"""Positions expanded before a search is given up, unless another limit is asked for."""
_MOST_MATCHED = 10
"""Boxes up to which the exact assignment is computed; beyond, each box takes its nearest target."""
_FAR: Final = 1 << 30

_Node = tuple[int, int]
"""Bit field of boxes, and the player: his cell, or the field of cells he can walk to."""
_Step = tuple[int, int]
"""Cell before an action and its code: of the player for moves, of the box for pushes."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution with the fewest pushes.

    Attributes:
        actions: Action codes, walking included; each walk between two pushes is a shortest one.
        num_pushes: Number of pushes among them.
        num_nodes: Positions that the search expanded.
    """

    actions: list[int]
    num_pushes: int
    num_nodes: int


def solve_moves(layout: Layout, start: State, *, max_nodes: int = MAX_NODES) -> list[int] | None:
    """Find a solution with the fewest moves.

    Args:
        layout: Walls and targets.
        start: Boxes and player; as many boxes as targets.
        max_nodes: Positions to expand at most; levels with a table need none.

    Returns:
        Action codes, empty if the level is solved already; None if it has no solution.

    Raises:
        EnvError: If the search reached ``max_nodes``.
        ValueError: If the numbers of boxes and targets differ.
    """
    table = distances(layout, start.boxes.bit_count())
    if table is None:
        dead = dead_squares(layout)
        found = _search(
            layout, (start.boxes, start.player), lambda node: _moves_from(layout, node, dead), max_nodes
        )
        return None if found is None else [action for _, action in found[0]]
    left = table.moves_left(start)
    if left is None:
        return None
    actions: list[int] = []
    state = start
    while left:
        left -= 1
        options = ((action, move(layout, state, action)) for action in range(4))
        action, state = next(option for option in options if table.moves_left(option[1]) == left)
        actions.append(action)
    return actions


def solve_pushes(layout: Layout, start: State, *, max_nodes: int = MAX_NODES) -> Solution | None:
    """Find a solution with the fewest pushes.

    Args:
        layout: Walls and targets.
        start: Boxes and player; as many boxes as targets.
        max_nodes: Positions to expand at most.

    Returns:
        The solution, without actions if the level is solved already; None if it has none.

    Raises:
        EnvError: If the search reached ``max_nodes``.
        ValueError: If the numbers of boxes and targets differ.
    """
    found = _search_pushes(layout, start, max_nodes)
    if found is None:
        return None
    pushes, num_nodes = found
    actions: list[int] = []
    boxes, player = start.boxes, start.player
    for cell, action in pushes:
        offset = layout.offsets[action]
        actions += _walk(layout, floor_of(layout) & ~boxes, player, cell - offset)
        actions.append(action)
        boxes ^= 1 << cell | 1 << cell + offset
        player = cell
    return Solution(actions, len(pushes), num_nodes)


def fewest_pushes(layout: Layout, start: State, *, max_nodes: int = MAX_NODES) -> int | None:
    """Return the number of pushes of ``solve_pushes`` without its walks; None if there is no solution."""
    found = _search_pushes(layout, start, max_nodes)
    return None if found is None else len(found[0])


def _search_pushes(layout: Layout, start: State, max_nodes: int) -> tuple[list[_Step], int] | None:
    """Search the pushes of a solution; see ``_search`` for what is returned."""
    floor, dead = floor_of(layout), dead_squares(layout)
    root = (start.boxes, _region(1 << start.player, floor & ~start.boxes, layout.width))
    return _search(layout, root, lambda node: _pushes_from(layout, node, floor, dead), max_nodes)


def _search(
    layout: Layout,
    root: _Node,
    successors: Callable[[_Node], Iterable[tuple[_Node, _Step]]],
    max_nodes: int,
) -> tuple[list[_Step], int] | None:
    """Search the cheapest way to cover all targets by A*, every step costing one.

    Among positions of equal promise the latest found comes first. The bound is consistent, so the
    promise of the positions taken never falls and a solution taken is optimal.

    Returns:
        The steps and the number of positions expanded, or None if there is no way.
    """
    num_boxes, num_targets = root[0].bit_count(), layout.targets.bit_count()
    if num_boxes != num_targets:
        raise ValueError(f"{num_boxes} boxes for {num_targets} targets: the numbers must agree")
    estimate = _lower_bound(layout)
    best: dict[_Node, tuple[int, _Node, _Step]] = {root: (0, root, (0, 0))}
    queues = {estimate(root[0]): [(0, root)]}
    num_nodes = 0
    while (promise := min(queues, default=_FAR)) < _FAR:
        queue = queues[promise]
        while queue:
            cost, node = queue.pop()
            if best[node][0] < cost:
                continue
            if node[0] == layout.targets:
                return _trace(best, node), num_nodes
            num_nodes += 1
            if num_nodes > max_nodes:
                raise EnvError(
                    f"no solution found in {max_nodes} positions. Raise max_nodes or take a smaller level."
                )
            for successor, step in successors(node):
                known = best.get(successor)
                if known is None or known[0] > cost + 1:
                    best[successor] = (cost + 1, node, step)
                    queues.setdefault(cost + 1 + estimate(successor[0]), []).append((cost + 1, successor))
        del queues[promise]
    return None


def _trace(best: dict[_Node, tuple[int, _Node, _Step]], node: _Node) -> list[_Step]:
    """Return the steps that led to a node."""
    steps = []
    while best[node][0]:
        _, node, step = best[node]
        steps.append(step)
    return steps[::-1]


def _lower_bound(layout: Layout) -> Callable[[int], int]:
    """Return the function from boxes to the fewest pushes they could need, ``_FAR`` or more if stuck."""
    pulls: list[dict[int, int]] = [{} for _ in range(layout.height * layout.width)]
    targets = list(cells_of(layout.targets))
    for index, target in enumerate(targets):
        for distance, layer in enumerate(pull_layers(layout, 1 << target)):
            for cell in cells_of(layer):
                pulls[cell][1 << index] = distance

    def nearest(boxes: int) -> int:
        return sum(min(pulls[box].values(), default=_FAR) for box in cells_of(boxes))

    @cache
    def matched(boxes: int, free: int) -> int:
        if not boxes:
            return 0
        low = boxes & -boxes
        rest = boxes ^ low
        options = pulls[low.bit_length() - 1].items()
        return min((cost + matched(rest, free ^ bit) for bit, cost in options if free & bit), default=_FAR)

    everything = (1 << len(targets)) - 1
    return nearest if len(targets) > _MOST_MATCHED else lambda boxes: matched(boxes, everything)


def _pushes_from(layout: Layout, node: _Node, floor: int, dead: int) -> Iterator[tuple[_Node, _Step]]:
    """Yield the positions one push away that are not plainly lost."""
    boxes, region = node
    free = floor & ~boxes
    live = free & ~dead
    for action, offset in enumerate(layout.offsets):
        for cell in cells_of(boxes & shifted(region, offset) & shifted(live, -offset)):
            pushed = boxes ^ (1 << cell | 1 << cell + offset)
            if not is_frozen_deadlock(layout, pushed, cell + offset, dead):
                yield (pushed, _region(1 << cell, floor & ~pushed, layout.width)), (cell, action)


def _moves_from(layout: Layout, node: _Node, dead: int) -> Iterator[tuple[_Node, _Step]]:
    """Yield the positions one move away that are not plainly lost."""
    state = State(*node)
    for action, offset in enumerate(layout.offsets):
        after = move(layout, state, action)
        if after is state:
            continue
        if after.boxes != state.boxes:
            box = after.player + offset
            if dead >> box & 1 or is_frozen_deadlock(layout, after.boxes, box, dead):
                continue
        yield (after.boxes, after.player), (state.player, action)


def _region(cells: int, free: int, width: int) -> int:
    """Return all free cells that hang together with some of them."""
    grown = 0
    while cells != grown:
        grown = cells
        cells |= _neighbours(cells, width) & free
    return cells


def _neighbours(cells: int, width: int) -> int:
    """Return the cells next to some cells."""
    return cells << 1 | cells >> 1 | cells << width | cells >> width


def _walk(layout: Layout, free: int, start: int, goal: int) -> list[int]:
    """Return the actions of a shortest walk over free cells; there is one."""
    layers = [1 << goal]
    while not layers[-1] >> start & 1:
        layers.append(_neighbours(layers[-1], layout.width) & free)
    actions: list[int] = []
    cell = start
    for layer in reversed(layers[:-1]):
        action = next(action for action, offset in enumerate(layout.offsets) if layer >> cell + offset & 1)
        actions.append(action)
        cell += layout.offsets[action]
    return actions
