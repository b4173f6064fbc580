from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sokoban_search import BOXOBAN, board, needs_boxoban, random_board, replay

from istar_envs.errors import LevelFormatError, MissingAsset
from istar_envs.sokoban.board import DOWN, LEFT, RIGHT, UP, Layout, State, is_solved, to_text
from istar_envs.sokoban.formats import (
    NamedBoard,
    parse_boxoban,
    parse_lurd,
    parse_xsb,
    read_levels,
    read_solution,
    write_boxoban,
    write_lurd,
    write_rle,
    write_xsb,
)

SMALL = "#####\n#@$.#\n#####"


def test_every_sign_of_xsb_is_read() -> None:
    layout, start = board("########\n#+$*- _#\n########")
    assert to_text(layout, start) == "########\n#+$*---#\n########"
    assert (layout.targets, start.boxes, start.player) == (1 << 9 | 1 << 11, 1 << 10 | 1 << 11, 9)


def test_rows_may_differ_in_length_and_begin_with_blanks() -> None:
    layout, start = board("  ####\n###  ####\n#     $.#\n#  #@####\n####-#\n   ###")
    assert to_text(layout, start).split("\n") == [
        "#########",
        "###--####",
        "#-----$.#",
        "#--#@####",
        "####-####",
        "#########",
    ]


def test_cells_that_the_player_cannot_reach_become_walls() -> None:
    layout, start = board("#########\n#@$.#--*#\n#########")
    assert to_text(layout, start) == "#########\n#@$.#####\n#########"


@pytest.mark.parametrize("text", ["5#|#@$.#|5#", "5#\n#@$.#\n5#", "#####|#@$.#|#####"])
def test_run_length_encoded_boards_are_read(text: str) -> None:
    assert board(text) == board(SMALL)


def test_one_line_boards_need_no_line_between_them() -> None:
    boards = parse_xsb("5#|#@$.#|5#\n6#|#@-$.#|6#\n")
    assert [item.layout.width for item in boards] == [5, 6]
    assert [item.line for item in boards] == [1, 2]


def test_titles_authors_and_comments_find_their_level() -> None:
    text = (
        f"My collection\nAuthor: Everyone\n\n; one\n{SMALL}\nTitle: First\nAuthor: Ann\n\n; two\n\n{SMALL}\n"
    )
    first, second = parse_xsb(text)
    assert (first.title, first.author, first.line) == ("First", "Ann", 5)
    assert (second.title, second.author, second.line) == ("two", "", 13)


def test_comment_blocks_are_passed_over_whatever_they_hold() -> None:
    boards = parse_xsb(f"{SMALL}\nComment:\n# not a board %\nComment-End:\n{SMALL}\n")
    assert len(boards) == 2


def test_windows_newlines_and_a_byte_order_mark_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "levels.xsb"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert [(item.layout, item.start) for item in read_levels(path)] == [board(SMALL)]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("hello\nworld", 1, "no level found"),
        ("", 1, "no level found"),
        ("#####\n#@$.#\n##x##", 3, "'x' in a board"),
        ("#####\n#-$.#\n#####", 1, "without a player"),
        ("######\n#@$.-#\n#--@-#\n######", 3, "a second player"),
        ("######\n#@$$.#\n######", 1, "2 boxes and 1 targets"),
        ("#####\n#@--#\n#####", 1, "0 boxes and 0 targets"),
        ("text\n\n#####\n#@$.\n#####", 4, "the player can leave the board"),
        ("#-###\n#@$.#\n#####", 1, "the player can leave the board"),
        ("#####\n#@$.#\n##-##", 3, "the player can leave the board"),
        ("####\n#@-#####\n#--$--.#\n###-####", 4, "the player can leave the board"),
        ("###\n#@--##\n#-$.-#\n######", 1, "the player can leave the board"),
        ("########\n#@$.#-$#\n########", 2, "a box or open target that the player cannot reach"),
        ("########\n#@$.##-#\n#####.-#\n########", 3, "a box or open target that the player cannot reach"),
        ("######\n#@$.-#\n------\n-@-#-#\n######", 2, "the player can leave the board"),
        ("#####\n#@$.#\n999#", 3, "a run of 999 tiles"),
        ("#####\n#@$.#\n0#", 3, "a run of 0 tiles"),
        ("#####\n#@$.#\n####5", 3, "'5' in a board"),
        (f"{SMALL}\nComment:\nopen", 4, "a comment without end"),
    ],
)
def test_broken_level_is_refused_with_its_line(text: str, line: int, reason: str) -> None:
    with pytest.raises(LevelFormatError) as caught:
        parse_xsb(text, "some.xsb")
    assert str(caught.value).startswith(f"some.xsb, line {line}: ")
    assert reason in str(caught.value)


def test_board_higher_than_the_limit_is_refused() -> None:
    with pytest.raises(LevelFormatError, match=r"a board of 300×3\. Boards are at most 256"):
        parse_xsb("\n".join(["#-#"] * 300))


def test_boxoban_numbers_are_checked() -> None:
    two = f"; 0\n{SMALL}\n\n; 1\n{SMALL}\n"
    assert [item.title for item in parse_boxoban(two)] == ["0", "1"]
    for text, line, reason in [
        (two.replace("; 1", "; 2"), 6, "'; 2' in place of '; 1'"),
        (two.replace("; 1", "; 0"), 6, "'; 0' in place of '; 1'"),
        (f"{two}; 2\n", 10, "'; 2' is not followed by exactly one level"),
        (f"; 0\n; 1\n{SMALL}\n", 1, "'; 0' is not followed by exactly one level"),
        (f"{two}\n{SMALL}\n", 11, "a level without a number"),
    ]:
        with pytest.raises(LevelFormatError) as caught:
            parse_boxoban(text, "levels.txt")
        assert str(caught.value).startswith(f"levels.txt, line {line}: {reason}")


def test_missing_and_undecodable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingAsset, match=r"nothing\.xsb: No such file"):
        read_levels(tmp_path / "nothing.xsb")
    bad = tmp_path / "bad.xsb"
    bad.write_bytes(b"#####\n#@$\xff#\n")
    with pytest.raises(LevelFormatError, match="line 2: not UTF-8"):
        read_levels(bad)


@pytest.mark.property
@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 9), st.integers(3, 9), st.integers(1, 4))
def test_written_levels_read_back_equal(seed: int, height: int, width: int, num_boxes: int) -> None:
    drawn = random_board(seed, height, width, num_boxes)
    if drawn is None:
        return
    item = NamedBoard(*drawn, title="A title", author="Somebody")
    assert parse_xsb(write_xsb([item, item])) == [item, item]
    assert [(read.layout, read.start) for read in parse_xsb(write_rle(*drawn))] == [drawn]
    assert [(read.layout, read.start) for read in parse_boxoban(write_boxoban([item]))] == [drawn]


@needs_boxoban
def test_boxoban_file_is_written_back_to_the_byte() -> None:
    assert write_boxoban(read_levels(BOXOBAN)).encode() == BOXOBAN.read_bytes()


def test_lurd_is_read_in_any_case_and_run_length_encoded() -> None:
    assert parse_lurd("lurD") == [LEFT, UP, RIGHT, DOWN]
    assert parse_lurd("2l 3R\nU") == [LEFT, LEFT, RIGHT, RIGHT, RIGHT, UP]
    assert parse_lurd("") == []


def test_lurd_writer_restores_capitals_for_pushes() -> None:
    layout, start = board("#######\n#.-$--#\n#-@---#\n#######")
    actions = parse_lurd("RRULL")
    assert write_lurd(layout, start, actions) == "rruLL"
    assert write_lurd(layout, start, actions, rle=True) == "2ru2L"
    assert is_solved(layout, replay(layout, start, actions))


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("lu\nlx", 2, "'x' in a solution"),
        ("lu3", 1, "'3' in a solution"),
        ("9999999l", 1, "more than 1000000 actions"),
    ],
)
def test_broken_solution_is_refused_with_its_line(text: str, line: int, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "solution.lurd"
    path.write_text(text)
    with pytest.raises(LevelFormatError) as caught:
        read_solution(path)
    assert f"line {line}: {reason}" in str(caught.value)


@pytest.mark.property
@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.booleans())
def test_written_solutions_read_back_equal(actions: list[int], rle: bool) -> None:
    layout, start = board("#######\n#.-$--#\n#-@---#\n#--$.-#\n#######")
    assert parse_lurd(write_lurd(layout, start, actions, rle=rle)) == actions


@pytest.mark.property
@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="#@+$*. -_|;0123\n:xTitle", max_size=80))
def test_any_text_is_read_or_refused_as_malformed(text: str) -> None:
    try:
        boards = parse_xsb(text)
    except LevelFormatError:
        return
    for item in boards:
        assert isinstance(item.layout, Layout)
        assert isinstance(item.start, State)
        assert item.layout.targets.bit_count() == item.start.boxes.bit_count()
