"""HTTP answers read from bytes, however these are cut."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_envs.chat_http import HttpAnswer, Inbox, Oversized, read_http

ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "nothing": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nT: 1\r\n\r\n",
    "open end": b"HTTP/1.0 200 OK\r\n\r\nhello",
    "after continue": b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 429 No\r\nRetry-After: 3\r\nContent-Length: 1\r\n\r\nx",
}


def read(*pieces: bytes, max_body: int = 1000) -> tuple[HttpAnswer, bool]:
    """Read pieces as they come, then the end; return the answer and whether the connection may be kept."""
    inbox = Inbox()
    reading = read_http(inbox, max_body)
    try:
        next(reading)
        for piece in pieces:
            inbox.put(piece)
            next(reading)
        inbox.is_ended = True
        next(reading)
    except StopIteration as end:
        return end.value
    raise AssertionError("it asks for more after the end")


def test_a_head_is_read_with_names_in_lower_case():
    answer, is_reusable = read(ANSWERS["after continue"])
    assert answer == HttpAnswer(429, {"retry-after": "3", "content-length": "1"}, b"x")
    assert is_reusable


@pytest.mark.parametrize(
    ("raw", "is_reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 1\r\n\r\nx", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", False),
        (b"HTTP/1.1 200 OK\r\n\r\nx", False),
    ],
)
def test_a_connection_is_kept_only_if_both_sides_can_tell_where_the_answer_ends(raw, is_reusable):
    assert read(raw)[1] is is_reusable


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(1, 120), max_size=6))
def test_it_makes_no_difference_where_the_bytes_are_cut(kind, cuts):
    raw = ANSWERS[kind]
    places = [0, *sorted(cut for cut in set(cuts) if cut < len(raw)), len(raw)]
    pieces = [raw[start:end] for start, end in pairwise(places)]
    assert read(*pieces) == read(raw) == read(*(bytes([byte]) for byte in raw))


@pytest.mark.parametrize("kind", ["length", "chunks", "after continue"])
def test_an_answer_that_ends_early_is_no_answer(kind):
    for size in range(len(ANSWERS[kind])):
        with pytest.raises(EOFError, match="hung up"):
            read(ANSWERS[kind][:size])


def test_a_body_of_the_largest_size_is_read_and_a_larger_one_is_not():
    assert read(ANSWERS["length"], max_body=5)[0].body == b"hello"
    for kind in ("length", "chunks", "open end"):
        with pytest.raises(Oversized, match="are accepted"):
            read(ANSWERS[kind], max_body=4)


def test_a_line_without_an_end_is_given_up():
    with pytest.raises(ValueError, match="no end of line within 65536 bytes"):
        read(*[b"x" * 10_000] * 10)
