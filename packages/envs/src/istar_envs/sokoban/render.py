"""Pictures of boards: uint8[height·tile, width·tile, 3] from cell codes or from XSB text.

The tiles come from ``sprites.py``. A board is put together from strips, one per row of cells, and
strips seen before are kept, so a frame is one copy of memory.
"""

import io
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from istar_envs.errors import EnvError
from istar_envs.sokoban.cells import CHARS, FLOOR, WALL
from istar_envs.sokoban.sprites import MIN_TILE_SIZE, number_mask, tile_table

Picture = NDArray[np.uint8]

MIN_TILE_SIZE_WITH_COORDINATES: Final = 9
_INK: Final = (255, 236, 170)
_NO_ROW: Final = -1
_CODE_OF_CHAR: Final = {**{char: code for code, char in enumerate(CHARS)}, " ": FLOOR, "_": FLOOR}


@lru_cache(maxsize=4096)
def _strip(codes: bytes, tile_size: int, row: int) -> bytes:
    """Return the pixels of one row of cells; with ``row`` ≥ 0 the numbers of the border are written."""
    tiles = tile_table(tile_size)[list(codes)]
    if row != _NO_ROW:
        numbers = range(1, len(codes)) if row == 0 else range(1)
        for column in numbers:
            if codes[column] == WALL:
                tiles[column][number_mask(row or column, tile_size)] = _INK
    return tiles.transpose(1, 0, 2, 3).tobytes()


class Renderer:
    """Draws boards at one tile size.

    Args:
        tile_size: Pixels per cell side, at least 4.
        coordinates: Write column numbers on the top border and row numbers on the left one; needs
            tiles of at least 9 pixels.

    Raises:
        EnvError: If the tile size is too small.
    """

    def __init__(self, tile_size: int, *, coordinates: bool = False) -> None:
        smallest = MIN_TILE_SIZE_WITH_COORDINATES if coordinates else MIN_TILE_SIZE
        if tile_size < smallest:
            raise EnvError(
                f"tile_size must be at least {smallest} pixels{' with coordinates' if coordinates else ''}, "
                f"got {tile_size} (Sokoban, option tile_size)."
            )
        self.tile_size = tile_size
        self.coordinates = coordinates

    def draw(self, codes: bytes | bytearray, width: int) -> Picture:
        """Draw one board.

        Args:
            codes: One cell code per cell, row by row.
            width: Cells per row.

        Returns:
            A new, writable uint8[height·tile, width·tile, 3], RGB.
        """
        codes = bytes(codes)
        pixels = np.frombuffer(bytearray(b"").join(self._strips(codes, width)), np.uint8)
        return pixels.reshape(len(codes) // width * self.tile_size, width * self.tile_size, 3)

    def draw_many(self, codes: NDArray[np.uint8]) -> Picture:
        """Draw many boards.

        Args:
            codes: uint8[boards, height, width] of cell codes.

        Returns:
            A new, writable uint8[boards, height·tile, width·tile, 3].
        """
        boards, height, width = codes.shape
        strips = [strip for board in codes for strip in self._strips(board.tobytes(), width)]
        pixels = np.frombuffer(bytearray(b"").join(strips), np.uint8)
        return pixels.reshape(boards, height * self.tile_size, width * self.tile_size, 3)

    def _strips(self, codes: bytes, width: int) -> list[bytes]:
        size, starts = self.tile_size, range(0, len(codes), width)
        if self.coordinates:
            return [_strip(codes[i : i + width], size, i // width) for i in starts]
        return [_strip(codes[i : i + width], size, _NO_ROW) for i in starts]


def image_of_text(text: str, tile_size: int = 28) -> Picture:
    r"""Draw a board given in XSB characters.

    Args:
        text: Rows of ``#-.$*@+`` separated by newlines; space and ``_`` are floor as well. Short rows
            are filled with walls.
        tile_size: Pixels per cell side, at least 4.

    Returns:
        uint8[rows·tile_size, columns·tile_size, 3], RGB.

    Raises:
        ValueError: If the text is empty or holds another character; names row and column.

    Example:
        >>> image_of_text("####\n#@$.", 8).shape
        (16, 32, 3)
    """
    rows = text.strip("\n").split("\n")
    width = max(map(len, rows))
    if width == 0:
        raise ValueError("cannot draw an empty board; give rows of the characters #-.$*@+")
    codes = bytearray()
    for number, row in enumerate(rows, start=1):
        for column, char in enumerate(row, start=1):
            if char not in _CODE_OF_CHAR:
                raise ValueError(f"row {number}, column {column}: {char!r} is none of the characters {CHARS}")
            codes.append(_CODE_OF_CHAR[char])
        codes.extend([WALL] * (width - len(row)))
    return Renderer(tile_size).draw(codes, width)


def png_bytes(image: Picture) -> bytes:
    """Encode a picture, uint8[height, width, 3] RGB, as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue()
