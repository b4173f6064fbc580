"""Answers of a judge are read exactly or not at all."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from istar_judges.errors import VerdictUnreadable
from istar_judges.rubric import load_rubric
from istar_judges.verdict import is_refusal, read_verdict

GOAL = load_rubric("goal-v1")
SEVEN = load_rubric("sotopia-v1")


def text_of(a: object = 7, b: object = 3) -> str:
    return json.dumps({k: {"goal": {"reason": f"why {k}", "score": s}} for k, s in (("A", a), ("B", b))})


def scores(text: str) -> dict[str, int]:
    return {label: seat["goal"].score for label, seat in read_verdict(text, GOAL, ("A", "B")).items()}


def test_scores_and_reasons_are_read():
    verdict = read_verdict(text_of(), GOAL, ("A", "B"))
    assert (verdict["A"]["goal"].score, verdict["A"]["goal"].reason) == (7, "why A")


def test_j1_scores_are_matched_by_key_whatever_the_order_of_the_answer():
    swapped = json.dumps(dict(reversed(json.loads(text_of()).items())))
    assert scores(swapped) == scores(text_of()) == {"A": 7, "B": 3}


@pytest.mark.parametrize(
    "around",
    ["{}", "```json\n{}\n```", "```\n{}```", "My verdict:\n{}\nThat is all.", "\ufeff \n{}\n\n"],
    ids=["bare", "fence", "tight fence", "prose", "blanks"],
)
def test_j2_what_stands_around_the_one_object_is_cut_away(around):
    assert scores(around.replace("{}", text_of())) == {"A": 7, "B": 3}


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (text_of(a=11), "range", "A.goal.score is 11; it must be from 0 to 10"),
        (text_of(b=-1), "range", "B.goal.score is -1"),
        (text_of(a=7.0), "type", "A.goal.score is 7.0; write a whole number"),
        (text_of(a=7.5), "type", "7.5"),
        (text_of(a="7"), "type", 'A.goal.score is "7"'),
        (text_of(a=True), "type", "true"),
        (text_of(a=None), "type", "null"),
        (text_of(a=[7]), "type", "[7]"),
        (text_of().replace("7", "NaN"), "type", "NaN"),
        (text_of().replace("7", "1e1"), "type", "10.0"),
        (text_of().replace("7", "7" * 5000), "bad_json", "not exactly one"),
        (text_of().replace('"why A"', "4"), "type", "A.goal.reason must be text"),
        (text_of().replace('"reason": "why A", ', ""), "missing", 'A.goal lacks the key "reason"'),
        (text_of().replace('"B"', '"C"'), "missing", 'the answer lacks the key "B"'),
        (text_of().replace('"score": 3', '"score": 3, "sure": 1'), "unknown", 'the unknown key "sure"'),
        (text_of()[:-1] + ', "C": {}}', "unknown", 'the unknown key "C"'),
        (text_of()[:-1] + ', "A": {}}', "duplicate", 'the key "A" is there more than once'),
        (text_of().replace('"score": 7', '"score": 2, "score": 7'), "duplicate", '"score"'),
        (text_of().replace('{"goal"', '[{"goal"', 1).replace("}}", "}}]", 1), "type", "A must be a JSON"),
        (text_of()[:40], "bad_json", "not complete"),
        (text_of()[:-1], "bad_json", "not exactly one"),
        (text_of() + text_of(), "bad_json", "not exactly one"),
        ("Between {us}: " + text_of(), "bad_json", "not exactly one"),
        ('{"a":' * 30_000 + "}", "bad_json", "nested too deeply"),
        ("7 and 3", "no_json", "no JSON object"),
        ("", "no_json", "no JSON object"),
        ("} {", "bad_json", "not complete"),
        ("{" + " " * 300_000 + "}", "oversized", "longer than 200000"),
    ],
)
def test_j3_what_is_not_exactly_the_verdict_is_refused_by_kind(text, kind, message):
    with pytest.raises(VerdictUnreadable) as caught:
        scores(text)
    assert (caught.value.kind, message in str(caught.value)) == (kind, True)


@pytest.mark.parametrize("dimension", SEVEN.dimensions, ids=lambda d: d.key)
@pytest.mark.parametrize("side", ["low", "high"])
def test_j3_the_ends_of_every_range_are_read_and_the_next_number_is_not(dimension, side):
    end = getattr(dimension, side)
    beyond = end + (1 if side == "high" else -1)
    whole = {d.key: {"reason": "", "score": d.low} for d in SEVEN.dimensions}

    def verdict(score: int) -> str:
        return json.dumps({"A": {**whole, dimension.key: {"reason": "", "score": score}}})

    assert read_verdict(verdict(end), SEVEN, ("A",))["A"][dimension.key].score == end
    with pytest.raises(VerdictUnreadable):
        read_verdict(verdict(beyond), SEVEN, ("A",))


@pytest.mark.property
@given(st.integers(0, 10), st.integers(0, 10), st.text(max_size=50))
def test_every_right_answer_is_read_to_the_same_numbers(a, b, reason):
    text = json.dumps({k: {"goal": {"reason": reason, "score": s}} for k, s in (("B", b), ("A", a))})
    assert scores(text) == {"A": a, "B": b}


@pytest.mark.property
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda v: (
            st.lists(v, max_size=3)
            | st.dictionaries(st.sampled_from(["A", "B", "goal", "score", "reason"]), v, max_size=3)
        ),
        max_leaves=10,
    )
)
def test_any_json_is_a_verdict_in_range_or_unreadable(value):
    try:
        found = scores(json.dumps(value))
    except VerdictUnreadable:
        return
    assert all(0 <= score <= 10 for score in found.values())


@pytest.mark.property
@given(st.text(max_size=200))
def test_any_text_is_a_verdict_or_unreadable(text):
    with pytest.raises(VerdictUnreadable):
        scores(text)


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("I'm sorry, but I can't rate people.", True),
        ("I’m unable to do that.", True),
        ("As an AI, I have no opinion.", True),
        ("I cannot assist with this request.", True),
        ("Both did rather well.", False),
        (text_of().replace("why A", "I can't say that A won"), False),
    ],
)
def test_a_refusal_in_words_is_told_from_a_verdict_that_quotes_one(text, refuses):
    assert is_refusal(text) is refuses


def test_a_hostile_answer_is_read_in_no_time():
    started = time.process_time()
    for text in ("{" * 199_999, '{"' * 99_999, "I'm" * 60_000, '"' * 199_999):
        with pytest.raises(VerdictUnreadable):
            scores(text)
        is_refusal(text)
    assert time.process_time() - started < 2
