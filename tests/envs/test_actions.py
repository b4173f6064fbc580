"""The grammar of replies: exact, tolerant of noise around it, linear in time, and never an exception."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from istar_envs.actions import Reply, format_reply, parse_reply, shorten
from istar_envs.language import InvalidAction
from istar_envs.sokoban.board import ACTION_NAMES
from istar_envs.sokoban.language import SokobanLanguage

LANGUAGE = SokobanLanguage()


def read(text: str, grammar: str = "action", **options) -> str | None:
    """The Sokoban move that a reply asks for, or None."""
    reply = parse_reply(text, grammar, **options)
    if isinstance(reply, InvalidAction):
        return None
    (word,) = reply.actions
    action = LANGUAGE.action(word, {})
    return None if isinstance(action, InvalidAction) else ACTION_NAMES[action]


def reason(text: str, grammar: str = "action", **options) -> str:
    reply = parse_reply(text, grammar, **options)
    assert isinstance(reply, InvalidAction)
    return reply.reason


@pytest.mark.parametrize(
    ("answer", "move"),
    [
        ("up", "up"),
        (" Left \n", "left"),
        ("RIGHT", "right"),
        ("d", "down"),
        ("north", "up"),
        ("setup", None),
        ("upright", None),
        ("left then up", None),
        ("do not go down", None),
        ("still", None),
        ("up.", None),
        ("up||down", None),
        ("0", None),
        ("", None),
        ("  ", None),
        ("ＵＰ", None),
    ],
)
def test_an_answer_is_a_whole_action_word_in_any_case(answer, move):
    assert read(f"<action>{answer}</action>") == move
    assert read(f"<think>hm</think><action>{answer}</action>", "think_action") == move


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("<action>up</action>", "up"),
        ("I go up. <action>up</action> Done.", "up"),
        ("<ACTION>up</Action>", "up"),
        ("<action>down</action><action>up</action>", "up"),
        ("<action>down</action> or rather <action>up</action> then", "up"),
        ("<action>down<action>up</action>", "up"),
        ("<action>up</action></action>", None),
        ("</action><action>up", None),
        ("</action>up<action>", None),
        ("<action>up", None),
        ("up</action>", None),
        ("up", None),
        ("", None),
        ("< action>up</ action>", None),
        ("<action >up</action>", None),
        ("<answer>up</answer>", None),
        ("<think><action>down</action></think><action>up</action>", "up"),
        ("<think>say <action>down</action></think>", None),
        ("<think>never closed <action>up</action>", None),
        ("<action>up</action><think>after</think>", "up"),
        ("<action>up<think>half</think></action>", "up"),
        ("a</think><action>up</action>", "up"),
    ],
)
def test_the_last_complete_block_outside_the_thoughts_counts(text, move):
    assert read(text) == move


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("<think>a wall</think><action>up</action>", "up"),
        ("  \n<think></think>\n<action>up</action>", "up"),
        ("<THINK>x</THINK><action>up</action>", "up"),
        ("<think>a</think>b<think>c</think><action>up</action>", "up"),
        ("<think>one <think> two</think><action>up</action>", "up"),
        ("<think>quoting <action>left</action></think><action>up</action>", "up"),
        ("<think>quoting </think> too early</think><action>up</action>", "up"),
        ("<action>up</action>", None),
        ("Sure. <think>a</think><action>up</action>", None),
        ("<action>up</action><think>a</think>", None),
        ("<think>a<action>up</action>", None),
        ("</think><action>up</action><think>", None),
    ],
)
def test_a_thought_must_come_first_where_it_is_asked_for(text, move):
    assert read(text, "think_action") == move


@pytest.mark.parametrize(
    ("text", "grammar", "words"),
    [
        ("up", "action", "no complete <action>…</action> block outside the thought"),
        ("<action></action>", "action", "empty"),
        ("<think>x", "action", "never closed"),
        ("<action>up</action>", "think_action", "must begin with a <think>…</think> block"),
    ],
)
def test_an_unreadable_reply_says_why(text, grammar, words):
    assert words in reason(text, grammar)


def test_several_actions_are_separated_exactly():
    def actions(text: str, count: int = 3) -> tuple[str, ...]:
        reply = parse_reply(text, "action", max_actions=count)
        assert isinstance(reply, Reply)
        return reply.actions

    assert actions("<action>up || left||up</action>") == ("up", "left", "up")
    assert actions("<action>up</action>") == ("up",)
    assert actions("<action>up | left</action>") == ("up | left",)
    assert "4 actions in one reply; at most 3" in reason("<action>a||b||c||d</action>", max_actions=3)
    for text in ("a||", "||a", "a||||b", "||"):
        assert "empty part" in reason(f"<action>{text}</action>", max_actions=5)
    assert actions("<action>a||b</action>", 1 + 1) == ("a", "b")


def test_thoughts_are_kept_without_their_tags():
    reply = parse_reply("<think>a\n</think> <think>b</think><action>up</action>", "think_action")
    assert reply == Reply(("up",), "a\n\nb")
    assert parse_reply("<action>up</action>", "action") == Reply(("up",), None)


@pytest.mark.parametrize("grammar", ["action", "think_action"])
@pytest.mark.parametrize(
    "piece",
    [
        "<action>",
        "</action>",
        "<think>",
        "</think>",
        "<action>up</action>",
        "<think></think>",
        "<",
        "é",
        "||",
    ],
)
def test_a_megabyte_is_read_in_linear_time(piece, grammar):
    text = piece * (1_000_000 // len(piece))
    start = time.process_time()
    parse_reply(text, grammar, max_actions=5)
    assert time.process_time() - start < 10.0  # about 0.02 s; quadratic time would be hours


tags = st.sampled_from(
    [
        "<action>",
        "</action>",
        "<think>",
        "</think>",
        "<ACTION>",
        "||",
        "up",
        " ",
        "\n",
        "<",
        ">",
        "/",
        "İ",
        "\0",
    ]
)
noise = st.text(st.characters(), max_size=20)  # lone surrogates included
replies = st.lists(tags | noise, max_size=30).map("".join)


@pytest.mark.property
@settings(max_examples=300, deadline=None)
@given(replies, st.sampled_from(["action", "think_action"]), st.integers(1, 4))
@example("İ<action>up</action>", "action", 1)
@example("\ud800<action>up</action>", "action", 1)
def test_any_text_is_read_without_an_exception(text, grammar, max_actions):
    reply = parse_reply(text, grammar, max_actions=max_actions)
    if isinstance(reply, Reply):
        assert 1 <= len(reply.actions) <= max_actions
        assert all(action and action == action.strip() for action in reply.actions)
        assert all(action in text for action in reply.actions)
        for action in reply.actions:
            LANGUAGE.action(action, {})
    else:
        assert reply.reason


@pytest.mark.property
@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_read_as_text_in_any_way_are_no_exception(data):
    for text in (
        data.decode("utf-8", "surrogateescape"),
        data.decode("latin-1"),
        data.decode("utf-8", "replace"),
    ):
        parse_reply(text, "think_action")


words = st.text(st.characters(exclude_characters="<>|"), min_size=1).map(str.strip).filter(bool)
thoughts = st.none() | st.text(st.characters(exclude_characters="<>"))


@pytest.mark.property
@settings(max_examples=200, deadline=None)
@given(st.lists(words, min_size=1, max_size=4).map(tuple), thoughts)
def test_what_is_written_is_read_back(actions, thought):
    text = format_reply(actions, thought)
    assert parse_reply(text, "action", max_actions=4) == Reply(actions, thought)
    if thought is not None:
        assert parse_reply(text, "think_action", max_actions=4) == Reply(actions, thought)


def test_long_and_unprintable_text_is_shown_short_and_escaped():
    assert shorten("up\n\x1b[31m") == repr("up\n\x1b[31m")
    assert shorten("a" * 100, limit=5) == "'aaaaa…'"
