"""Read a JSON file of any size record by record, in constant memory.

Only the two shapes that the official files have: a list of values, or an object whose values are
wanted one by one. Values are plain Python objects; what they must hold is the caller's business.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

from istar_envs.errors import ConfigError, MissingAsset

CHUNK: Final = 1 << 20
"""Characters read at a time."""
LONGEST: Final = 1 << 25
"""Characters that one value may have; a value that does not end within them is broken."""

_BLANK: Final = re.compile(r"[ \t\n\r]*")
_AFTER: Final = frozenset(",:]} \t\n\r")
"""What shows that a value is whole: a number may go on in the next chunk."""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_FETCH: Final = 'The file is damaged or of another kind: fetch it again with "istar-envs fetch webshop".'


def read_list(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the values of a JSON list, each with its number counted from 1.

    Raises:
        MissingAsset: If the file is not there or cannot be read.
        ConfigError: If it is not one whole JSON list; the message names the record and the place.
    """
    with _opened(path) as file:
        window = _Window(file, path)
        for number in window.items("[", "]"):
            yield number, window.value(number)


def read_mapping(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a JSON object, each with its value, in the file's order.

    Raises:
        MissingAsset: If the file is not there or cannot be read.
        ConfigError: If it is not one whole JSON object; the message names the record and the place.
    """
    with _opened(path) as file:
        window = _Window(file, path)
        for number in window.items("{", "}"):
            key = window.value(number)
            if not isinstance(key, str):
                raise window.broken(number, "a key is not a text")
            if window.take() != ":":
                raise window.broken(number, 'there is no ":" after a key')
            window.peek()
            yield key, window.value(number)


def _opened(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8-sig")
    except OSError as error:
        raise MissingAsset(
            f"cannot read {path}: {error.strerror}. Correct the path, or fetch the data with "
            '"istar-envs fetch webshop".'
        ) from error


class _Window:
    """The part of a JSON file that is being read; it only moves forward."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._text = ""
        self._at = 0
        self._dropped = 0
        self._is_at_end = False
        self._decoder = json.JSONDecoder()

    def items(self, opening: str, closing: str) -> Iterator[int]:
        """Stop before each item in turn and yield its number; the caller reads the item."""
        if self.take() != opening:
            raise self.broken(0, f'it does not begin with "{opening}"')
        number = 0
        mark = "," if self.peek() != closing else self.take()
        while mark == ",":
            number += 1
            self.peek()
            yield number
            mark = self.take()
        if mark != closing:
            raise self.broken(number, f'there is no "," or "{closing}" after it')
        if self.peek():
            raise self.broken(number, f'something follows the closing "{closing}"')

    def peek(self) -> str:
        """Move to the next character that is not white and return it; "" at the end of the file."""
        while True:
            if match := _BLANK.match(self._text, self._at):
                self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if self._is_at_end:
                return ""
            self._read(CHUNK)

    def take(self) -> str:
        """Like ``peek``, and move past the character."""
        mark = self.peek()
        self._at += len(mark)
        return mark

    def value(self, number: int) -> Any:
        """Read the value that begins here, reading on until it is whole."""
        size = CHUNK
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except (json.JSONDecodeError, RecursionError) as error:
                if self._is_at_end or size > LONGEST:
                    raise self.broken(number, getattr(error, "msg", "nested too deeply")) from error
            else:
                if self._text[end : end + 1] in _AFTER or self._is_at_end or size > LONGEST:
                    break
            self._read(size)
            size *= 2
        start, self._at = self._at, end
        return _printable(value) if _SURROGATE.search(self._text, start, end) else value

    def broken(self, number: int, problem: str) -> ConfigError:
        """Return the error for a record that cannot be read; number 0 is the whole file."""
        record = f"record {number}, " if number else ""
        place = f"{record}character {self._dropped + self._at:,}"
        return ConfigError(f"{self._path}: {place}: no valid JSON ({problem}). {_FETCH}")

    def _read(self, size: int) -> None:
        try:
            more = self._file.read(size)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self._path}: the text is not UTF-8 ({error.reason}). {_FETCH}") from error
        except OSError as error:
            raise MissingAsset(f"{self._path} cannot be read: {error.strerror}. {_FETCH}") from error
        self._is_at_end = not more
        self._dropped += self._at
        self._text = self._text[self._at :] + more
        self._at = 0


def _printable(value: Any) -> Any:
    """Replace halves of characters, which no text encoding can write, by question marks."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
