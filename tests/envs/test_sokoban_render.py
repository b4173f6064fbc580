import io
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from istar_envs.errors import EnvError
from istar_envs.sokoban.cells import CHARS, WALL
from istar_envs.sokoban.render import Renderer, image_of_text, png_bytes
from istar_envs.sokoban.sprites import number_mask, tile_table

boards = arrays(np.uint8, st.tuples(st.integers(1, 7), st.integers(1, 7)), elements=st.integers(0, 6))


def test_there_are_seven_tiles_of_the_asked_size_drawn_once() -> None:
    table = tile_table(16)
    assert (table.shape, table.dtype) == ((7, 16, 16, 3), np.uint8)
    assert tile_table(16) is table
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 0


@pytest.mark.parametrize("tile_size", [4, 7, 16, 28, 61])
def test_all_tiles_differ_clearly_at_every_size(tile_size: int) -> None:
    table = tile_table(tile_size).astype(float)
    for first, second in combinations(table, 2):
        assert np.abs(first - second).mean() > 8  # of 255, in the mean of all pixels and channels


def test_tiles_differ_in_lightness_alone_for_the_colour_blind() -> None:
    grey = tile_table(28) @ np.array([0.299, 0.587, 0.114])
    for first, second in combinations(grey, 2):
        assert np.abs(first - second).mean() > 4


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(codes=boards, tile_size=st.integers(4, 12))
def test_a_picture_shows_in_every_cell_the_tile_of_its_code(codes: np.ndarray, tile_size: int) -> None:
    height, width = codes.shape
    picture = Renderer(tile_size).draw(codes.tobytes(), width)
    assert picture.shape == (height * tile_size, width * tile_size, 3)
    for row, column in np.ndindex(height, width):
        cell = picture[row * tile_size : (row + 1) * tile_size, column * tile_size : (column + 1) * tile_size]
        assert np.array_equal(cell, tile_table(tile_size)[codes[row, column]])


def test_drawing_many_boards_equals_drawing_each() -> None:
    codes = np.arange(3 * 2 * 7, dtype=np.uint8).reshape(3, 2, 7) % 7
    for renderer in (Renderer(9), Renderer(9, coordinates=True)):
        many = renderer.draw_many(codes)
        assert many.shape == (3, 18, 63, 3)
        assert all(np.array_equal(many[i], renderer.draw(codes[i].tobytes(), 7)) for i in range(3))


def test_a_drawn_picture_may_be_changed_without_changing_the_next() -> None:
    renderer = Renderer(4)
    first = renderer.draw(bytes(4), 2)
    kept = first.copy()
    first[:] = 0
    assert np.array_equal(renderer.draw(bytes(4), 2), kept)


def test_coordinates_are_written_on_border_walls_only_and_keep_the_size() -> None:
    codes = np.full((12, 4), 1, np.uint8)
    codes[[0, -1]] = codes[:, [0, -1]] = WALL
    plain = Renderer(16).draw(codes.tobytes(), 4)
    marked = Renderer(16, coordinates=True).draw(codes.tobytes(), 4)
    changed = (plain != marked).any(axis=2).reshape(12, 16, 4, 16).any(axis=(1, 3))
    expected = np.zeros((12, 4), bool)
    expected[0, 1:] = expected[1:, 0] = True
    assert np.array_equal(changed, expected)


def test_numbers_are_legible_and_fit_the_tile() -> None:
    seven = number_mask(7, 9)
    rows = ["".join("#" if ink else "." for ink in row[3:6]) for row in seven[2:7]]
    assert rows == ["###", "..#", "..#", "..#", "..#"]
    masks = [number_mask(number, 28) for number in range(100)]
    assert all(mask.shape == (28, 28) and mask.any() for mask in masks)
    assert len({mask.tobytes() for mask in masks}) == 100


def test_a_board_in_text_is_drawn_with_all_its_floor_signs() -> None:
    picture = image_of_text(CHARS + " _", 8)
    tiles = picture.reshape(8, 9, 8, 3).transpose(1, 0, 2, 3)
    assert np.array_equal(tiles[:7], tile_table(8))
    assert np.array_equal(tiles[7], tiles[1])
    assert np.array_equal(tiles[8], tiles[1])


def test_short_rows_of_text_are_filled_with_walls() -> None:
    assert np.array_equal(image_of_text("\n###\n#\n", 4), image_of_text("###\n###", 4))


@pytest.mark.parametrize(
    ("text", "message"), [("##\n#x", "row 2, column 2: 'x'"), ("", "empty board"), ("\n\n", "empty board")]
)
def test_a_text_that_is_no_board_names_the_place(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        image_of_text(text)


def test_png_bytes_hold_the_same_pixels() -> None:
    picture = image_of_text("#@$.")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png_bytes(picture)))), picture)


def test_a_tile_too_small_to_draw_is_refused() -> None:
    with pytest.raises(EnvError, match="at least 4 pixels, got 2"):
        Renderer(2)
    with pytest.raises(ValueError, match="at least 4 pixels, got 3"):
        tile_table(3)
