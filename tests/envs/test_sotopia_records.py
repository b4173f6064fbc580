"""Records and the markup of data files, with hand-made texts."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from sotopia_world import ANN, BO

from istar_envs.sotopia.markup import WRAPPERS, parse_markup
from istar_envs.sotopia.records import AgeRange, Relationship, Scenario, Segment, Setting, plain
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, FriendsStakes, SchedulingStakes

STAKES = (
    BargainStakes("lamp", 20.0, 1, (14.0, 17.5), (20.0, 12.0)),
    DivisionStakes((("hat", 3), ("ball", 1)), ((1, 2), (2, 1))),
    FriendsStakes(((), ()), "Kim"),
    SchedulingStakes(("monday 9:00",), ((), ("monday 9:00",)), ((3,), (4,))),
)


def test_name_joins_first_and_last():
    assert ANN.name == "Ann Quill"


def test_relationships_have_the_published_numbers():
    assert [kind.value for kind in Relationship] == [0, 1, 2, 3, 4, 5]
    assert Relationship(4) is Relationship.ROMANTIC


@pytest.mark.parametrize("stakes", [None, *STAKES])
def test_settings_survive_json(stakes):
    ages = (AgeRange(18, 70), AgeRange(21, 30))
    scenario = Scenario(
        "S", "c", "s", plain("A & B <3"), (plain(""), ()), Relationship.FAMILY, ages, "cook", "v1", stakes
    )
    adapter = TypeAdapter(Setting)
    one = Setting(scenario, (ANN, BO), "T")
    assert adapter.validate_json(adapter.dump_json(one)) == one


def test_records_cannot_be_changed():
    with pytest.raises(AttributeError):
        ANN.age = 5


def test_wrappers_vanish_and_their_content_stays():
    text = "Win (<extra_info>Note: <strategy_hint>Hint: ask.</strategy_hint> It is late.</extra_info>)"
    assert parse_markup(text) == plain("Win (Note: Hint: ask. It is late.)")


def test_viewers_get_segments_of_their_own():
    text = 'a<p viewer="environment">b<extra_info>c</extra_info></p><p viewer="agent_2">d</p>\ne'
    assert parse_markup(text) == (
        Segment("a"),
        Segment("bc", "environment"),
        Segment("d", "agent_2"),
        Segment("\ne"),
    )


@pytest.mark.parametrize("text", ["Salt & Sons", "I <3 you", "a < b > c", "&amp; {x} %s $1", "x <", "<>", ""])
def test_characters_that_begin_no_tag_stand_for_themselves(text):
    assert "".join(piece.text for piece in parse_markup(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("say <b>hi</b>", r"unknown tag <b> at character 4"),
        ("<extra_inf>x</extra_inf>", r'Did you mean "extra_info"\?'),
        ("<p>x</p>", r'<p> at character 0 needs one attribute: viewer="…"'),
        ('<p viwer="environment">x</p>', "needs one attribute"),
        ('<p viewer="agent_3">x</p>', r"unknown viewer .*agent_"),
        ('<p viewer="agent_1">x<p viewer="agent_2">y</p></p>', "inside another <p>"),
        ("<extra_info>x", r"<extra_info> is never closed"),
        ("x</extra_info>", "no tag is open there"),
        ("<extra_info><strategy_hint>x</extra_info></strategy_hint>", "<strategy_hint> is open there"),
    ],
)
def test_broken_markup_says_what_and_where(text, message):
    with pytest.raises(ValueError, match=message):
        parse_markup(text)


def test_open_wrappers_may_close_at_the_end_but_hidden_text_may_not():
    assert parse_markup("a <extra_info>b", close_at_end=True) == plain("a b")
    with pytest.raises(ValueError, match="<p> is never closed"):
        parse_markup('a <p viewer="environment">b', close_at_end=True)


PLAIN = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=20)


@pytest.mark.property
@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(PLAIN, st.sampled_from([None, "environment", "agent_1", "agent_2"])), max_size=6))
def test_segments_read_back_from_markup(pieces):
    written = "".join(f'<p viewer="{viewer}">{text}</p>' if viewer else text for text, viewer in pieces)
    parsed = parse_markup(written)
    for viewer in {viewer for _, viewer in pieces}:
        expected = "".join(text for text, of in pieces if of == viewer)
        assert "".join(piece.text for piece in parsed if piece.viewer == viewer) == expected
    assert all(piece.text for piece in parsed)
    assert all(one.viewer != next_one.viewer for one, next_one in pairwise(parsed))


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(PLAIN, st.sampled_from(WRAPPERS), PLAIN)
def test_wrapped_text_stays_whole(before, wrapper, inside):
    parsed = parse_markup(f"{before}<{wrapper}>{inside}</{wrapper}>")
    assert "".join(piece.text for piece in parsed) == before + inside
