"""What makes a position hopeless: dead squares and frozen boxes, found without search.

Both tests hold for layouts with as many targets as boxes; neither finds every lost position.
"""

from istar_envs.sokoban.board import Layout


def floor_of(layout: Layout) -> int:
    """Return the bit field of all cells that are not walls."""
    return (1 << layout.height * layout.width) - 1 & ~layout.walls


def pull_layers(layout: Layout, targets: int) -> list[int]:
    """Pull a lone box away from some targets, wherever the player may stand.

    Returns:
        Bit fields of the cells that are 0, 1, 2, … pulls away; together, all that can be reached.
    """
    floor, width = floor_of(layout), layout.width
    up, down = floor & floor << width, floor & floor >> width
    left, right = floor & floor << 1, floor & floor >> 1
    layers = []
    layer = found = targets
    while layer:
        layers.append(layer)
        pulled = layer >> width & up | layer << width & down | layer >> 1 & left | layer << 1 & right
        layer = pulled & ~found
        found |= layer
    return layers


def dead_squares(layout: Layout) -> int:
    """Return the bit field of floor cells from which a lone box reaches no target."""
    return floor_of(layout) & ~sum(pull_layers(layout, layout.targets))


def is_frozen_deadlock(layout: Layout, boxes: int, pushed_cell: int, dead: int) -> bool:
    """Whether a push has frozen a group of boxes for good with one of them off target.

    A box is blocked along an axis if a wall is on either side, if both sides are dead squares, or if
    a neighbour on that axis is frozen itself; blocked on both axes it is frozen. Boxes already under
    test count as walls.

    Args:
        layout: Walls and targets.
        boxes: Bit field of boxes after the push.
        pushed_cell: Cell of the box that was pushed.
        dead: ``dead_squares(layout)``.
    """
    return _frozen_group(pushed_cell, layout.walls, boxes, dead, layout.width) & ~layout.targets != 0


def _frozen_group(cell: int, solid: int, boxes: int, dead: int, width: int) -> int:
    """Return the boxes frozen together with the one on ``cell``, or 0 if that one can still move."""
    group = 1 << cell
    solid |= group
    for step in (1, width):
        sides = 1 << cell - step | 1 << cell + step
        if solid & sides or dead & sides == sides:
            continue
        for side in (cell - step, cell + step):
            held = _frozen_group(side, solid, boxes, dead, width) if boxes >> side & 1 else 0
            if held:
                group |= held
                break
        else:
            return 0
    return group
