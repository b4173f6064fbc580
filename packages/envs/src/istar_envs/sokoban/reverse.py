"""Starts found by playing backwards from a solved position, scored as in earlier work.

Two rules (spec §2.1, §2.2): ``pulls`` counts pulls and lets the player leave a box behind him,
``swaps`` counts changes of the dragged box and always drags. The search is breadth first, so a
position's score belongs to a shortest line that leads to it, whatever the order of actions.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from istar_envs.seeding import CounterRng
from istar_envs.sokoban.board import Layout, State

Rule = Literal["swaps", "pulls"]
Position = tuple[int, ...]
"""Player cell, then the cell of each box; box i began on target i."""


def reverse_start(
    rng: CounterRng, layout: Layout, solved: Position, rule: Rule, *, depth: int, walk: bool
) -> State | None:
    """Draw one of the starts with the highest score.

    Args:
        rng: Source of randomness.
        layout: Walls and targets.
        solved: Player anywhere, each box on its target.
        rule: What is counted and whether boxes may be left behind.
        depth: Positions on the longest line of play, the first included.
        walk: Whether the player strolls over 1 to 3 free cells afterwards, with probability 0.5, or
            0.8 if a box is only one cell away from home.

    Returns:
        The start, or None if every position reached leaves a target covered.
    """
    best = 0
    starts: list[Position] = []
    for score, position in _scored(layout, solved, rule, depth):
        if score > best:
            best, starts = score, []
        if score == best:
            starts.append(position)
    if not starts:
        return None
    player, *boxes = starts[rng.below(len(starts))]
    if walk:
        near = _displacement(layout.width, boxes, solved[1:]) == 1
        player = _stroll(rng, layout, player, boxes, 0.8 if near else 0.5)
    return State(sum(1 << box for box in boxes), player)


def _scored(layout: Layout, solved: Position, rule: Rule, depth: int) -> Iterator[tuple[int, Position]]:
    """Yield (score, position) for positions first reached by a pull that leave all targets free.

    The score is the boxes' total city-block distance from their own targets, times the number of
    pulls or of changes of the dragged box on the way.
    """
    layer = {solved: (0, 0)}
    seen = {solved}
    for _ in range(depth - 1):
        following: dict[Position, tuple[int, int]] = {}
        for position, (count, last) in layer.items():
            for successor, dragged in _steps_back(layout, position, rule):
                if successor in seen:
                    continue
                seen.add(successor)
                if not dragged:
                    following[successor] = (count, last)
                    continue
                total = count + (rule == "pulls" or dragged != last)
                following[successor] = (total, dragged)
                if not any(layout.targets >> cell & 1 for cell in successor):
                    yield total * _displacement(layout.width, successor[1:], solved[1:]), successor
        if not following:
            return
        layer = following


def _steps_back(layout: Layout, position: Position, rule: Rule) -> Iterator[tuple[Position, int]]:
    """Yield each position one step back and the number of the box dragged there, 0 for none."""
    player, boxes = position[0], position[1:]
    for offset in layout.offsets:
        ahead, behind = player + offset, player - offset
        if layout.walls >> ahead & 1 or ahead in boxes:
            continue
        if behind in boxes:
            yield (ahead, *(player if box == behind else box for box in boxes)), 1 + boxes.index(behind)
            if rule == "swaps":
                continue
        yield (ahead, *boxes), 0


def _displacement(width: int, boxes: Sequence[int], targets: Sequence[int]) -> int:
    """Return the sum of the city-block distances of boxes from their own targets."""
    return sum(
        abs(box // width - target // width) + abs(box % width - target % width)
        for box, target in zip(boxes, targets, strict=True)
    )


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
