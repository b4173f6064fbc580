"""The seven tiles of Sokoban, drawn by formula at any size.

Shapes live in the unit square (x right, y down), are sampled finely and averaged per pixel, so edges
stay smooth at every tile size. Colours differ in lightness as well as in hue.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from istar_envs.sokoban.cells import (
    BOX,
    BOX_ON_TARGET,
    CHARS,
    FLOOR,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    WALL,
)

Shape = NDArray[np.bool_]
Color = tuple[int, int, int]

MIN_TILE_SIZE: Final = 4
_SAMPLES: Final = 8

_PAPER: Final = (238, 231, 216)
_PAPER_EDGE: Final = (219, 209, 188)
_BRICK: Final = (92, 99, 120)
_BRICK_LIGHT: Final = (118, 126, 149)
_MORTAR: Final = (52, 57, 72)
_RED: Final = (205, 50, 60)
_WOOD: Final = (186, 128, 66)
_WOOD_DARK: Final = (112, 68, 28)
_WOOD_LIGHT: Final = (216, 164, 98)
_GREEN: Final = (78, 168, 94)
_GREEN_DARK: Final = (28, 92, 50)
_GREEN_LIGHT: Final = (122, 204, 134)
_BLUE: Final = (52, 112, 216)
_BLUE_DARK: Final = (20, 48, 112)
_WHITE: Final = (255, 255, 255)


class _Canvas:
    """A square picture at several samples per pixel, painted shape by shape."""

    def __init__(self, size: int) -> None:
        side = size * _SAMPLES
        center = (np.arange(side) + 0.5) / side
        self.x, self.y = np.meshgrid(center, center)
        self._size = size
        self._rgb = np.zeros((side, side, 3), np.float64)

    def fill(self, shape: Shape, color: Color) -> None:
        """Paint where ``shape`` is True."""
        self._rgb[shape] = color

    def square(self, low: float, high: float) -> Shape:
        """Return the square [low, high]²."""
        return (self.x >= low) & (self.x <= high) & (self.y >= low) & (self.y <= high)

    def disc(self, x: float, y: float, radius: float) -> Shape:
        """Return a disc."""
        return (self.x - x) ** 2 + (self.y - y) ** 2 <= radius**2

    def ring(self, outer: float, inner: float) -> Shape:
        """Return a ring around the centre of the tile."""
        return self.disc(0.5, 0.5, outer) & ~self.disc(0.5, 0.5, inner)

    def stroke(self, start: tuple[float, float], end: tuple[float, float], width: float) -> Shape:
        """Return the points within ``width``/2 of a line from ``start`` to ``end``."""
        (x0, y0), (x1, y1) = start, end
        dx, dy = x1 - x0, y1 - y0
        along = ((self.x - x0) * dx + (self.y - y0) * dy) / (dx * dx + dy * dy)
        along = np.clip(along, 0.0, 1.0)
        return (self.x - x0 - along * dx) ** 2 + (self.y - y0 - along * dy) ** 2 <= (width / 2) ** 2

    def pixels(self) -> NDArray[np.uint8]:
        """Average the samples of each pixel."""
        size = self._size
        mean = self._rgb.reshape(size, _SAMPLES, size, _SAMPLES, 3).mean(axis=(1, 3))
        rounded: NDArray[np.uint8] = np.rint(mean).astype(np.uint8)
        return rounded


def _paint_wall(canvas: _Canvas) -> None:
    everywhere = canvas.square(0, 1)
    canvas.fill(everywhere, _MORTAR)
    for row in range(2):
        top, bottom = row / 2, row / 2 + 0.43
        in_row = (canvas.y >= top + 0.03) & (canvas.y <= bottom)
        joint = 0.5 if row == 0 else 0.0
        brick = in_row & (np.abs((canvas.x - joint + 0.5) % 1 - 0.5) >= 0.045)
        canvas.fill(brick, _BRICK)
        canvas.fill(brick & (canvas.y <= top + 0.12), _BRICK_LIGHT)


def _paint_floor(canvas: _Canvas) -> None:
    canvas.fill(canvas.square(0, 1), _PAPER_EDGE)
    canvas.fill(canvas.square(0.03, 0.97), _PAPER)


def _paint_target(canvas: _Canvas) -> None:
    _paint_floor(canvas)
    canvas.fill(canvas.ring(0.36, 0.24), _RED)
    canvas.fill(canvas.disc(0.5, 0.5, 0.11), _RED)


def _paint_crate(canvas: _Canvas, body: Color, dark: Color, light: Color) -> None:
    canvas.fill(canvas.square(0.06, 0.94), dark)
    canvas.fill(canvas.square(0.11, 0.89), light)
    canvas.fill(canvas.square(0.21, 0.79), dark)
    canvas.fill(canvas.square(0.25, 0.75), body)


def _paint_box(canvas: _Canvas) -> None:
    _paint_floor(canvas)
    _paint_crate(canvas, _WOOD, _WOOD_DARK, _WOOD_LIGHT)
    inside = canvas.square(0.25, 0.75)
    canvas.fill(inside & canvas.stroke((0.25, 0.75), (0.75, 0.25), 0.20), _WOOD_DARK)
    canvas.fill(inside & canvas.stroke((0.25, 0.75), (0.75, 0.25), 0.12), _WOOD_LIGHT)


def _paint_box_on_target(canvas: _Canvas) -> None:
    _paint_floor(canvas)
    _paint_crate(canvas, _GREEN, _GREEN_DARK, _GREEN_LIGHT)
    tick = canvas.stroke((0.33, 0.52), (0.45, 0.65), 0.13) | canvas.stroke((0.45, 0.65), (0.68, 0.36), 0.13)
    canvas.fill(tick, _WHITE)


def _paint_keeper(canvas: _Canvas) -> None:
    canvas.fill(canvas.disc(0.5, 0.5, 0.34), _BLUE_DARK)
    canvas.fill(canvas.disc(0.5, 0.5, 0.29), _BLUE)
    for x in (0.39, 0.61):
        canvas.fill(canvas.disc(x, 0.44, 0.095), _WHITE)
        canvas.fill(canvas.disc(x, 0.45, 0.05), _BLUE_DARK)
    canvas.fill(canvas.ring(0.21, 0.155) & (canvas.y > 0.59), _WHITE)


def _paint_player(canvas: _Canvas) -> None:
    _paint_floor(canvas)
    _paint_keeper(canvas)


def _paint_player_on_target(canvas: _Canvas) -> None:
    _paint_floor(canvas)
    canvas.fill(canvas.ring(0.48, 0.38), _RED)
    _paint_keeper(canvas)


_PAINTERS: Final = {
    WALL: _paint_wall,
    FLOOR: _paint_floor,
    TARGET: _paint_target,
    BOX_ON_TARGET: _paint_box_on_target,
    BOX: _paint_box,
    PLAYER: _paint_player,
    PLAYER_ON_TARGET: _paint_player_on_target,
}


@lru_cache(maxsize=16)
def tile_table(tile_size: int) -> NDArray[np.uint8]:
    """Return the tiles of one size, in order of their cell codes; drawn once, then kept.

    Args:
        tile_size: Pixels per side, at least 4.

    Returns:
        Read-only uint8[7, tile_size, tile_size, 3], RGB.

    Raises:
        ValueError: If the size is below 4.
    """
    if tile_size < MIN_TILE_SIZE:
        raise ValueError(f"tile_size must be at least {MIN_TILE_SIZE} pixels, got {tile_size}")
    tiles = []
    for code in range(len(CHARS)):
        canvas = _Canvas(tile_size)
        _PAINTERS[code](canvas)
        tiles.append(canvas.pixels())
    table = np.stack(tiles)
    table.setflags(write=False)
    return table


_DIGITS: Final = (
    "111101101101111", "010110010010111", "111001111100111", "111001111001111", "101101111001001",
    "111100111001111", "111100111101111", "111001001001001", "111101111101111", "111101111001111",
)  # fmt: skip
"""Rows of the digits 0–9, 3 pixels wide and 5 high, from top to bottom."""


def number_mask(number: int, tile_size: int) -> NDArray[np.bool_]:
    """Return a number written in the middle of a tile, as large as fits.

    Args:
        number: 0–99.
        tile_size: Pixels per side, at least 8.

    Returns:
        bool[tile_size, tile_size], True where ink goes.
    """
    glyphs = [np.array([int(c) for c in _DIGITS[int(d)]], bool).reshape(5, 3) for d in str(number)]
    gap = np.zeros((5, 1), bool)
    text = np.hstack([part for glyph in glyphs for part in (glyph, gap)][:-1])
    scale = max(1, min((tile_size - 2) // 7, (tile_size - 2) // 9))
    text = text.repeat(scale, axis=0).repeat(scale, axis=1)
    mask = np.zeros((tile_size, tile_size), bool)
    top, left = (tile_size - text.shape[0]) // 2, (tile_size - text.shape[1]) // 2
    mask[top : top + text.shape[0], left : left + text.shape[1]] = text
    return mask
