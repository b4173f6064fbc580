"""Inline markup of data files: who reads which part of a scenario's text.

For trusted files only. What people say in a dialogue is never parsed; there, markup is just characters.
"""

import re
from typing import Final

from istar_envs.errors import suggest
from istar_envs.sotopia.records import KNOWN_VIEWERS, Segment, Text

WRAPPERS: Final = ("extra_info", "strategy_hint", "clarification_hint")
"""Tags around remarks to the owner of a goal: dropped, their content is plain text."""

_PRIVATE: Final = "p"
_TAG: Final = re.compile(r"<(/?)([A-Za-z_]\w*)((?:\s[^<>]*)?)>")
_VIEWER: Final = re.compile(r'\s+viewer="([^"]*)"\s*')


def parse_markup(text: str, *, close_at_end: bool = False) -> Text:
    """Cut a text into segments by viewer and drop its tags.

    ``extra_info``, ``strategy_hint`` and ``clarification_hint`` are unwrapped; ``p`` with a ``viewer`` is
    for that viewer alone. A ``<`` or ``&`` that begins no tag stands for itself, so texts need not be XML.

    Args:
        text: Text of a scenario or goal, from a trusted file.
        close_at_end: Take a wrapper that is never closed as closed at the end of the text.

    Returns:
        Segments in reading order; neighbours differ in their viewer and none is empty.

    Raises:
        ValueError: If a tag or viewer is unknown, or tags do not match; says which and at what character.

    Example:
        >>> parse_markup('A party. <p viewer="environment">Both know Kim.</p>')
        (Segment(text='A party. ', viewer=None), Segment(text='Both know Kim.', viewer='environment'))
    """
    pieces: list[tuple[str | None, str]] = []
    open_tags: list[tuple[str, str | None]] = []
    end = 0
    for tag in _TAG.finditer(text):
        pieces.append((_viewer_now(open_tags), text[end : tag.start()]))
        end = tag.end()
        if tag[1]:
            _close(tag, open_tags)
        else:
            open_tags.append((tag[2], _opened_viewer(tag, open_tags)))
    pieces.append((_viewer_now(open_tags), text[end:]))
    unclosed = [name for name, _ in open_tags if name == _PRIVATE or not close_at_end]
    if unclosed:
        raise ValueError(f"tag <{unclosed[-1]}> is never closed; add </{unclosed[-1]}>")
    return _joined(pieces)


def _viewer_now(open_tags: list[tuple[str, str | None]]) -> str | None:
    return open_tags[-1][1] if open_tags else None


def _opened_viewer(tag: re.Match[str], open_tags: list[tuple[str, str | None]]) -> str | None:
    """Return who reads what follows an opening tag."""
    name, attributes = tag[2], tag[3]
    inherited = _viewer_now(open_tags)
    if name in WRAPPERS and not attributes.strip():
        return inherited
    if name != _PRIVATE:
        raise ValueError(f"unknown tag {tag[0]} at character {tag.start()}." + suggest(name, _known_tags()))
    if inherited is not None:
        raise ValueError(f"tag {tag[0]} at character {tag.start()} lies inside another <p>; close that first")
    viewer = _VIEWER.fullmatch(attributes)
    if viewer is None:
        raise ValueError(f'tag {tag[0]} at character {tag.start()} needs one attribute: viewer="…"')
    if viewer[1] not in KNOWN_VIEWERS:
        known = suggest(viewer[1], KNOWN_VIEWERS)
        raise ValueError(f"unknown viewer in {tag[0]} at character {tag.start()}.{known}")
    return viewer[1]


def _close(tag: re.Match[str], open_tags: list[tuple[str, str | None]]) -> None:
    if not open_tags or open_tags[-1][0] != tag[2] or tag[3].strip():
        inside = f"<{open_tags[-1][0]}> is open there" if open_tags else "no tag is open there"
        raise ValueError(f"closing tag {tag[0]} at character {tag.start()} closes nothing: {inside}")
    open_tags.pop()


def _known_tags() -> tuple[str, ...]:
    return (*WRAPPERS, _PRIVATE)


def _joined(pieces: list[tuple[str | None, str]]) -> Text:
    """Drop empty pieces and join neighbours of one viewer."""
    segments: list[Segment] = []
    for viewer, text in pieces:
        if segments and segments[-1].viewer == viewer:
            segments[-1] = Segment(segments[-1].text + text, viewer)
        elif text:
            segments.append(Segment(text, viewer))
    return tuple(segments)
