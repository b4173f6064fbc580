"""Starts found by playing backwards from a solved position, scored as in earlier work.

Two rules (spec §2.1, §2.2): ``pulls`` counts pulls and lets the player leave a box behind him,
``swaps`` counts changes of the dragged box and always drags. The search is breadth first, so a
position's score belongs to a shortest line that leads to it, whatever the order of actions.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from istar_envs.seeding import CounterRng
from istar_envs.sokoban.bits import cells_of
from istar_envs.sokoban.board import Layout, State
from istar_envs.sokoban.deadlocks import floor_of

Rule = Literal["swaps", "pulls"]
Position = tuple[int, ...]
"""Player cell, then the cell of each box; box i began on target i."""
Ways = dict[int, list[tuple[int, int]]]
"""Where the player can walk from each cell, and the cell he turns his back on then."""


def reverse_starts(
    rng: CounterRng, layout: Layout, solved: Position, rule: Rule, *, depth: int, walk: bool
) -> Iterator[State]:
    """Draw starts with the highest score, without end.

    Args:
        rng: Source of randomness.
        layout: Walls and targets.
        solved: Player anywhere, each box on its target.
        rule: What is counted and whether boxes may be left behind.
        depth: Positions on the longest line of play, the first included.
        walk: Whether the player strolls over 1 to 3 free cells afterwards, with probability 0.5, or
            0.8 if a box is only one cell away from home.

    Yields:
        Starts with all targets free; none at all if play reaches no such position.
    """
    best = 0
    starts: list[Position] = []
    for score, position in scored_positions(layout, solved, rule, depth):
        if score > best:
            best, starts = score, []
        if score == best:
            starts.append(position)
    while starts:
        player, *boxes = starts[rng.below(len(starts))]
        if walk:
            near = _displacement(layout.width, boxes, solved[1:]) == 1
            player = _stroll(rng, layout, player, boxes, 0.8 if near else 0.5)
        yield State(sum(1 << box for box in boxes), player)


def scored_positions(
    layout: Layout, solved: Position, rule: Rule, depth: int
) -> Iterator[tuple[int, Position]]:
    """Yield (score, position) for positions that a pull leads to first and that free all targets.

    The score is the boxes' total city-block distance from their own targets, times the most pulls or
    changes of the dragged box on any shortest line of play to the position.
    """
    layer = {solved: (0, 0)}
    seen = {solved}
    ways = _ways(layout)
    while layer and depth > 1:
        depth -= 1
        layer, pulled = _next_layer(ways, layer, seen, rule)
        seen.update(layer)
        for position in pulled:
            if not any(layout.targets >> cell & 1 for cell in position):
                yield layer[position][0] * _displacement(layout.width, position[1:], solved[1:]), position


def _ways(layout: Layout) -> Ways:
    """Tabulate the ways of a layout."""
    ways: Ways = {}
    for cell in cells_of(floor_of(layout)):
        sides = [(cell + offset, cell - offset) for offset in layout.offsets]
        ways[cell] = [side for side in sides if not layout.walls >> side[0] & 1]
    return ways


def _next_layer(
    ways: Ways, layer: dict[Position, tuple[int, int]], seen: set[Position], rule: Rule
) -> tuple[dict[Position, tuple[int, int]], list[Position]]:
    """Take one step back from all positions of a layer.

    A layer gives for each position the highest count of a line to it, and the set of boxes (as bits)
    that such lines dragged last.

    Returns:
        The next layer, and those of its positions that a pull led to.
    """
    following: dict[Position, tuple[int, int]] = {}
    pulled: dict[Position, None] = {}
    for position, (count, last) in layer.items():
        player, boxes = position[0], position[1:]
        for ahead, behind in ways[player]:
            if ahead in boxes:
                continue
            if behind in boxes:
                dragged = 1 << boxes.index(behind)
                successor = (ahead, *[player if box == behind else box for box in boxes])
                if successor not in seen:
                    pulled[successor] = None
                    _reach(following, successor, count + (rule == "pulls" or last != dragged), dragged)
                if rule == "swaps":
                    continue
            successor = (ahead, *boxes)
            if successor not in seen:
                _reach(following, successor, count, last)
    return following, list(pulled)


def _reach(layer: dict[Position, tuple[int, int]], position: Position, count: int, last: int) -> None:
    """Note that a line with a count, which dragged one of some boxes last, leads to a position."""
    known, others = layer.get(position, (-1, 0))
    if count >= known:
        layer[position] = (count, last | others if count == known else last)


def _displacement(width: int, boxes: Sequence[int], targets: Sequence[int]) -> int:
    """Return the sum of the city-block distances of boxes from their own targets."""
    total = 0
    for box, target in zip(boxes, targets, strict=True):
        total += abs(box // width - target // width) + abs(box % width - target % width)
    return total


def _stroll(rng: CounterRng, layout: Layout, player: int, boxes: Sequence[int], chance: float) -> int:
    """Walk over 1 to 3 free cells, none twice, with probability ``chance``; return the last cell."""
    if rng.random() >= chance:
        return player
    visited = [player]
    while len(visited) <= 3 and (len(visited) == 1 or rng.random() < 0.5):
        ahead = (visited[-1] + offset for offset in layout.offsets)
        free = [
            cell
            for cell in ahead
            if not layout.walls >> cell & 1 and cell not in boxes and cell not in visited
        ]
        if not free:
            break
        visited.append(free[rng.below(len(free))])
    return visited[-1]
