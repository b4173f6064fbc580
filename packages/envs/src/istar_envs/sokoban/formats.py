"""Read and write levels (XSB, Boxoban) and solutions (LURD).

Readers take everything the formats allow and report what breaks them by file and line. Cells that
the player can never reach become walls; boxes there must stand on targets and change nothing.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Final, NoReturn

from istar_envs.errors import LevelFormatError, MissingAsset
from istar_envs.sokoban.bits import cells_of
from istar_envs.sokoban.board import DOWN, LEFT, RIGHT, UP, Layout, State, move, to_text

MAX_SIDE: Final = 256
"""Largest height and width of a level that is read, in cells."""
MAX_ACTIONS: Final = 1_000_000
"""Longest solution that is read, in actions."""
_CODES: Final = {"u": UP, "d": DOWN, "l": LEFT, "r": RIGHT}
_LETTERS: Final = "udlr"
_ROW: Final = re.compile(r"[\s\d_-]*#")
"""Start of a board row: its first sign that is neither outside floor nor a count is a wall."""
_OPEN_ROW: Final = re.compile(r"[\d#@+$*. _|-]*[#@+$][\d#@+$*. _|-]*$")
"""Below a row also what lacks its wall is a row, so that the gap is reported and not passed over."""
_RUN: Final = re.compile(r"(\d*)(\D?)")
_FIELD: Final = re.compile(r"(title|author)\s*:\s*(.*)", re.IGNORECASE)
_NUMBERED: Final = re.compile(r";\s*(\d+)\s*$")

_Rows = list[tuple[int, str]]
"""Rows of one board, each with its line number."""


@dataclass(frozen=True, slots=True)
class NamedBoard:
    """One level of a file.

    Attributes:
        layout: Walls and targets.
        start: Boxes and player.
        title: Its title or else the comment above it, "" for neither.
        author: Its author, "" if not given.
        line: Line of the file that its first row is on, from 1; not compared.
    """

    layout: Layout
    start: State
    title: str = ""
    author: str = ""
    line: int = field(default=1, compare=False)


def read_levels(path: str | Path) -> list[NamedBoard]:
    """Read a level file: Boxoban if its first line is ``; 0``, else XSB.

    Raises:
        MissingAsset: If the file cannot be read.
        LevelFormatError: If it breaks its format; names the line.
    """
    text = _read(Path(path))
    first = _NUMBERED.match(text.lstrip().split("\n", 1)[0])
    return (parse_boxoban if first and int(first[1]) == 0 else parse_xsb)(text, str(path))


def parse_xsb(text: str, name: str = "<text>") -> list[NamedBoard]:
    """Read all levels of an XSB text.

    A board is a run of rows that begin with a wall (after blanks, ``-`` or ``_``); any other line
    ends it. Rows may differ in length and be run-length encoded; a line with ``|`` is a whole
    board. ``Title:`` and ``Author:`` belong to the board above, a ``;`` line to the one below, and
    ``Comment:`` … ``Comment-End:`` blocks are passed over.

    Args:
        text: Contents of the file.
        name: What errors call the text.

    Returns:
        The levels in order; at least one.

    Raises:
        LevelFormatError: If there is no level or one is malformed; names the line.
    """
    boards: list[NamedBoard] = []
    comment = ""
    for part in _parts(text, name):
        if isinstance(part, list):
            layout, start = _board(part, name)
            boards.append(NamedBoard(layout, start, comment, line=part[0][0]))
            comment = ""
        elif part.startswith(";"):
            comment = part[1:].strip()
        elif boards and (found := _FIELD.match(part)):
            value = found[2].strip()
            last = boards[-1]
            boards[-1] = (
                replace(last, title=value) if found[1].lower() == "title" else replace(last, author=value)
            )
    if not boards:
        _fail(name, 1, "no level found", "A level is a block of rows that begin with #")
    return boards


def parse_boxoban(text: str, name: str = "<text>") -> list[NamedBoard]:
    """Read all levels of a Boxoban text: as XSB, and every board stands under its number ``; N``.

    Boards may have any size and may hold ``*`` and ``+``.

    Raises:
        LevelFormatError: If a board is malformed or a number is missing, doubled or without a board.
    """
    boards = parse_xsb(text, name)
    heads = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.startswith(";")]
    for index, (number, line) in enumerate(heads):
        if not (found := _NUMBERED.match(line)) or int(found[1]) != index:
            _fail(
                name,
                number,
                f"{line.strip()!r} in place of '; {index}'",
                "Number the levels 0, 1, 2, … in order",
            )
        if index == len(boards) or boards[index].title != found[1]:
            _fail(
                name,
                number,
                f"'; {index}' is not followed by exactly one level",
                "Put one board below each number",
            )
    if len(boards) > len(heads):
        _fail(name, boards[len(heads)].line, "a level without a number", f"Put '; {len(heads)}' above it")
    return boards


def write_xsb(boards: Iterable[NamedBoard]) -> str:
    """Write levels as XSB text with title and author lines; ``parse_xsb`` reads them back."""
    parts = []
    for board in boards:
        lines = [to_text(board.layout, board.start)]
        lines += [
            f"{key}: {value}" for key, value in (("Title", board.title), ("Author", board.author)) if value
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def write_boxoban(boards: Iterable[NamedBoard]) -> str:
    """Write levels as Boxoban text, numbered from 0; titles and authors are left out."""
    return "".join(
        f"; {index}\n{to_text(board.layout, board.start, floor=' ')}\n\n"
        for index, board in enumerate(boards)
    )


def write_rle(layout: Layout, start: State) -> str:
    """Write a board as one line of run-length encoded XSB, rows separated by ``|``."""
    return _encode(to_text(layout, start).replace("\n", "|"))


def read_solution(path: str | Path) -> list[int]:
    """Read a LURD file.

    Raises:
        MissingAsset: If the file cannot be read.
        LevelFormatError: If it is not LURD; names the line.
    """
    return parse_lurd(_read(Path(path)), str(path))


def parse_lurd(text: str, name: str = "<text>") -> list[int]:
    """Read a solution in LURD, run-length encoded or not.

    Case tells pushes from moves but is often lost, so it is not looked at.

    Args:
        text: Letters ``l u r d`` in any case, with white space anywhere.
        name: What errors call the text.

    Returns:
        Action codes.

    Raises:
        LevelFormatError: If another sign occurs or the solution is longer than ``MAX_ACTIONS``.
    """
    actions: list[int] = []
    for number, line in enumerate(text.split("\n"), start=1):
        for count, letter in _runs("".join(line.split())):
            if letter.lower() not in _CODES:
                _fail(
                    name,
                    number,
                    f"{letter or count!r} in a solution",
                    "Use the letters l, u, r, d and counts",
                )
            if len(count) > 7 or len(actions) + int(count or 1) > MAX_ACTIONS:
                _fail(name, number, f"more than {MAX_ACTIONS} actions", "Shorten the solution")
            actions += [_CODES[letter.lower()]] * int(count or 1)
    return actions


def write_lurd(layout: Layout, start: State, actions: Sequence[int], *, rle: bool = False) -> str:
    """Write actions in LURD, capitals for pushes.

    Args:
        layout: Walls and targets.
        start: Where the actions begin.
        actions: Action codes.
        rle: Whether to shorten runs to a count and a letter.

    Returns:
        One letter per action.
    """
    letters = []
    state = start
    for action in actions:
        after = move(layout, state, action)
        letters.append(_LETTERS[action].upper() if after.boxes != state.boxes else _LETTERS[action])
        state = after
    return _encode("".join(letters)) if rle else "".join(letters)


def _parts(text: str, name: str) -> Iterator[_Rows | str]:
    """Split a level file into boards and the lines of text between them."""
    rows: _Rows = []
    comment_line = 0
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        lowered = line.strip().lower()
        if lowered == "comment:":
            comment_line = number
        is_row = not comment_line and (_ROW.match(line) or (rows and _OPEN_ROW.match(line)))
        if is_row and "|" not in line:
            rows.append((number, _decode(line, name, number)))
            continue
        if rows:
            yield rows
            rows = []
        if is_row:
            yield [(number, row) for row in _decode(line, name, number).split("|")]
        elif not comment_line:
            yield line
        elif lowered.startswith("comment-end"):
            comment_line = 0
    if comment_line:
        _fail(name, comment_line, "a comment without end", "Close it with a line 'Comment-End:'")


def _decode(line: str, name: str, number: int) -> str:
    """Expand the counts of a board line and refuse signs that are no tiles."""
    row = []
    for count, tile in _runs(line.rstrip()):
        if not tile or tile not in "#@+$*. -_|":
            _fail(name, number, f"{tile or count!r} in a board", "Tiles are # @ + $ * . space - _")
        if len(count) > 3 or not 0 < int(count or 1) <= MAX_SIDE:
            _fail(name, number, f"a run of {count} tiles", f"Boards are 1 to {MAX_SIDE} cells wide")
        row.append(tile * int(count or 1))
    return "".join(row)


def _runs(text: str) -> Iterator[tuple[str, str]]:
    """Yield each sign with the digits before it; digits at the end come with an empty sign."""
    for found in _RUN.finditer(text):
        if found[0]:
            yield found[1], found[2]


def _encode(text: str) -> str:
    """Shorten runs of a sign to a count and the sign."""
    runs = ((sign, len(list(run))) for sign, run in groupby(text))
    return "".join(f"{length}{sign}" if length > 1 else sign for sign, length in runs)


def _board(rows: _Rows, name: str) -> tuple[Layout, State]:
    """Build a board from its rows and check that it can be played."""
    height, width = len(rows), max(len(row) for _, row in rows)
    if max(height, width) > MAX_SIDE:
        _fail(
            name,
            rows[0][0],
            f"a board of {height}×{width}",
            f"Boards are at most {MAX_SIDE} cells high and wide",
        )
    text = "".join(row.ljust(width) for _, row in rows)

    def cells(tiles: str) -> int:
        return sum(1 << cell for cell, tile in enumerate(text) if tile in tiles)

    def refuse(cell: int, what: str, fix: str) -> NoReturn:
        _fail(name, rows[cell // width][0], what, fix)

    players = list(cells_of(cells("@+")))
    if not players:
        refuse(0, "a board without a player", "Mark the player's cell with @ (+ on a target)")
    if len(players) > 1:
        refuse(players[1], "a second player", "Keep one @ or +")
    everything = (1 << height * width) - 1
    region = _region(everything & ~cells("#"), players[0], width)
    for cell in cells_of(region):
        row, col = divmod(cell, width)
        if row in (0, height - 1) or col in (0, len(rows[row][1]) - 1) or col >= len(rows[row][1]):
            refuse(cell, "the player can leave the board", "Close the board with walls")
    for cell in cells_of(cells("$.") & ~region):
        refuse(cell, "a box or open target that the player cannot reach", "Remove it or open a way to it")
    boxes, targets = cells("$*") & region, cells(".*+") & region
    if not boxes or boxes.bit_count() != targets.bit_count():
        refuse(
            0,
            f"a board with {boxes.bit_count()} boxes and {targets.bit_count()} targets in reach",
            "Give at least one box and as many targets as boxes",
        )
    return Layout(height, width, everything & ~region, targets), State(boxes, players[0])


def _region(free: int, player: int, width: int) -> int:
    """Return the free cells that hang together with the player's."""
    region, grown = 0, 1 << player
    while grown:
        region |= grown
        grown = (grown << 1 | grown >> 1 | grown << width | grown >> width) & free & ~region
    return region


def _read(path: Path) -> str:
    """Return the text of a file with plain newlines."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MissingAsset(f"cannot read {path}: {error.strerror}. Check the path.") from error
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise LevelFormatError(f"{path}, line {line}: not UTF-8 text. Save the file as UTF-8.") from error


def _fail(name: str, line: int, what: str, fix: str) -> NoReturn:
    """Raise the error of a malformed file."""
    raise LevelFormatError(f"{name}, line {line}: {what}. {fix}.")
