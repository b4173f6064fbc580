"""Records of episodes: JSON there and back, honest outcomes, pictures by their hash."""

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from istar_envs.episode import (
    Episode,
    ImageStore,
    Outcome,
    RecentImages,
    Transition,
    read_episodes,
    valid_text,
    write_episodes,
)
from istar_envs.errors import ConfigError

STEP = Transition(
    observation="#@#\n",
    reply="<action>up</action>",
    action="up",
    reward=-0.1,
    valid=True,
    state_key="3:#@#",
    info={"score": 0.5, "success": False, "nested": {"a": [1, None]}},
)
INVALID = Transition(
    observation="",
    reply="é\u2028\0",
    action=None,
    reward=-1.0,
    valid=False,
    state_key="k",
    invalid_reason="why",
)
EPISODE = Episode(
    env_id="istar/Sokoban-v0",
    task_id="level#7",
    task="Push.",
    transitions=(STEP, INVALID),
    success=False,
    score=0.25,
    end="truncated",
    final_observation="#@#",
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
transitions = st.builds(
    Transition,
    observation=texts,
    reply=texts,
    action=st.none() | texts,
    reward=st.floats(allow_nan=False),
    valid=st.booleans(),
    state_key=texts,
    invalid_reason=st.none() | texts,
    image=st.none() | texts,
    info=st.dictionaries(texts, st.none() | st.booleans() | st.integers(-(2**40), 2**40) | texts, max_size=3),
)
episodes = st.builds(
    Episode,
    env_id=texts,
    task_id=texts,
    task=texts,
    transitions=st.lists(transitions, max_size=3).map(tuple),
    success=st.booleans(),
    score=st.floats(0, 1),
    end=st.sampled_from(["terminated", "truncated", "failed"]),
    final_observation=texts,
    error=st.none() | texts,
)


@pytest.mark.property
@settings(max_examples=100, deadline=None)
@given(episodes)
def test_an_episode_survives_json(episode):
    line = episode.to_json()
    assert "\n" not in line
    assert Episode.from_json(line) == episode
    assert Episode.from_json(line.encode()) == episode


def test_half_of_a_surrogate_pair_is_written_as_the_replacement_character(tmp_path):
    episode = replace(EPISODE, task="\ud800 and \udc00", transitions=(replace(STEP, reply="a\ud83d"),))
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, [episode])
    (back,) = read_episodes(path)
    assert back.task == "\ufffd and \ufffd"
    assert back.transitions[0].reply == "a\ufffd"


def test_valid_text_stays_as_it_is_and_split_pairs_are_joined():
    for text in ("", "up", "é😀\0\u2028", "\ufffd"):
        assert valid_text(text) == text
    assert valid_text("\ud83d\ude00") == "😀"


def test_a_return_is_the_sum_of_rewards():
    assert EPISODE.episode_return == pytest.approx(-1.1)
    assert replace(EPISODE, transitions=()).episode_return == 0


def test_files_are_appended_to_and_read_back(tmp_path):
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, [EPISODE])
    write_episodes(path, [replace(EPISODE, task_id="other"), EPISODE])
    assert [e.task_id for e in read_episodes(path)] == ["level#7", "other", "level#7"]
    path.write_text("\n" + path.read_text() + "\n\n")
    assert len(list(read_episodes(path))) == 3


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read episodes: .*gone\.jsonl \(No such file"):
        list(read_episodes(tmp_path / "gone.jsonl"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "line: Invalid JSON"),
        (b"[]", "line: "),
        (b"\xff\xfe", "line: Invalid JSON"),
        (b'"\xed\xa0\x80"', "line: Invalid JSON"),
        (EPISODE.to_json().replace('"success":false', '"success":"perhaps"').encode(), r"success: "),
        (
            json.dumps({k: v for k, v in EPISODE.to_dict().items() if k != "task"}).encode(),
            "task: Field required",
        ),
        (EPISODE.to_json().replace('"reward":-0.1', '"reward":"x"').encode(), r"transitions\.0\.reward: "),
        (EPISODE.to_json().replace("truncated", "lost").encode(), "end: "),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, reason):
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(EPISODE.to_json().encode() + b"\n" + line + b"\n")
    with pytest.raises(ConfigError, match=rf"episodes\.jsonl, line 2: not an episode: {reason}"):
        list(read_episodes(path))


def test_a_single_line_that_is_no_episode_raises_what_pydantic_says():
    with pytest.raises(ValidationError):
        Episode.from_json("{}")


@pytest.mark.parametrize(
    "options",
    [
        {"status": "ok"},
        {"status": "ok", "score": 1.0},
        {"status": "ok", "success": True},
        {"status": "invalid", "score": 0.0},
        {"status": "timeout", "success": False},
        {"status": "refused", "score": 0.0, "success": False},
    ],
)
def test_there_is_a_number_if_and_only_if_there_is_a_verdict(options):
    with pytest.raises(ValueError, match="give both with status 'ok' and neither otherwise"):
        Outcome(source="v/1", **options)


def test_outcomes_with_and_without_a_verdict_are_accepted():
    assert Outcome("ok", "v/1", score=0.0, success=False).score == 0.0
    assert Outcome("unavailable", "v/1", detail="down").score is None


def test_equal_pictures_are_stored_once(tmp_path):
    store = ImageStore(tmp_path / "images")
    one, again, other = store.put(b"png"), store.put(b"png"), store.put(b"another")
    assert one == again != other
    assert store.get(one) == b"png"
    assert sorted(p.name for p in (tmp_path / "images").iterdir()) == sorted([f"{one}.png", f"{other}.png"])


def test_a_picture_that_was_never_stored_is_named(tmp_path):
    with pytest.raises(KeyError, match="abc"):
        ImageStore(tmp_path / "images").get("abc")


def test_images_in_memory_are_found_by_their_hash_and_the_oldest_go_first():
    recent = RecentImages(most=2)
    keys = [recent.put(png) for png in (b"two", b"one", b"two")]
    assert keys[1] == hashlib.sha256(b"one").hexdigest()
    assert [recent.get(key) for key in keys] == [b"two", b"one", b"two"]
    newest = recent.put(b"three")
    assert [recent.get(key) for key in (keys[0], newest)] == [b"two", b"three"]
    with pytest.raises(KeyError):
        recent.get(keys[1])
