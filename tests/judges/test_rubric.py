"""Rubrics as data: what ships, what derives, what is refused."""

import json

import pytest

from istar_envs.errors import ConfigError
from istar_judges.prompting import ask, load_prompt
from istar_judges.rubric import Dimension, Rubric, load_rubric
from istar_judges.verdict import read_verdict, verdict_schema
from judged import make_dialogue

PUBLISHED = {
    "believability": (0, 10),
    "relationship": (-5, 5),
    "knowledge": (0, 10),
    "secret": (-10, 0),
    "social_rules": (-10, 0),
    "financial_and_material_benefits": (-5, 5),
    "goal": (0, 10),
}


def test_the_seven_dimensions_have_their_published_ranges():
    rubric = load_rubric("sotopia-v1")
    assert {d.key: (d.low, d.high) for d in rubric.dimensions} == PUBLISHED


@pytest.mark.parametrize(
    ("name", "keys", "calls"),
    [
        ("sotopia-v1", tuple(PUBLISHED), "together"),
        ("goal-v1", ("goal",), "together"),
        ("sotopia-each-v1", tuple(PUBLISHED), "each"),
        ("goal-each-v1", ("goal",), "each"),
    ],
)
def test_every_mode_is_a_rubric_of_its_own(name, keys, calls):
    rubric = load_rubric(name)
    assert (rubric.keys, rubric.calls) == (keys, calls)


def test_j15_modes_are_told_apart_by_their_version():
    names = ("sotopia-v1", "goal-v1", "sotopia-each-v1", "goal-each-v1")
    assert len({load_rubric(name).version for name in names}) == 4
    assert load_rubric("goal-v1").version == load_rubric("goal-v1").version


def test_the_version_changes_with_a_single_word():
    one, other = (
        Rubric(name="r", calls="each", dimensions=(Dimension(key="k", low=0, high=1, question=q),))
        for q in ("How kind?", "How kind!")
    )
    assert one.version != other.version


@pytest.mark.parametrize("num", [1, 3, 7])
def test_any_number_of_dimensions_is_asked_for_and_read(num):
    rubric = Rubric(name="own", calls="together", dimensions=load_rubric("sotopia-v1").dimensions[:num])
    asked = ask(load_prompt("judge-v1"), rubric, make_dialogue(), (0, 1))[1]["content"]
    assert all(f"- {key}, from " in asked for key in rubric.keys)
    answer = {
        label: {d.key: {"reason": "", "score": d.high} for d in rubric.dimensions} for label in ("A", "B")
    }
    verdict = read_verdict(json.dumps(answer), rubric, ("A", "B"))
    assert {key: score.score for key, score in verdict["B"].items()} == {
        d.key: d.high for d in rubric.dimensions
    }


def test_a_rubric_of_ones_own_is_read_from_a_file(tmp_path):
    path = tmp_path / "tone-v1.toml"
    path.write_text(
        'calls = "each"\n[[dimensions]]\nkey = "tone"\nlow = -2\nhigh = 2\nquestion = "How friendly?"\n'
    )
    rubric = load_rubric(str(path))
    assert (rubric.name, rubric.keys, rubric.dimension("tone").low) == ("tone-v1", ("tone",), -2)


def test_a_schema_lists_every_allowed_score_and_forbids_anything_else():
    schema = verdict_schema(load_rubric("goal-v1"), ("A", "B"))
    goal = schema["properties"]["A"]["properties"]["goal"]
    assert goal["properties"]["score"] == {"type": "integer", "enum": list(range(11))}
    assert list(goal["properties"]) == ["reason", "score"]
    for level in (schema, schema["properties"]["A"], goal):
        assert level["additionalProperties"] is False
        assert level["required"] == list(level["properties"])


GOOD = '[[dimensions]]\nkey = "k"\nlow = 0\nhigh = 1\nquestion = "q"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("calls = 3", "calls"),
        (f'calls = "some"\n{GOOD}', "calls"),
        ('calls = "each"', "dimensions"),
        (f'calls = "each"\nwho = 1\n{GOOD}', "who"),
        (f'calls = "each"\n{GOOD}{GOOD}', "keys repeat: k, k"),
        ('calls = "each"\n' + GOOD.replace("high = 1", "high = 0"), "low = 0 must be below high = 0"),
        ('calls = "each"\n' + GOOD.replace("high = 1", "high = 1.5"), "high"),
        ('calls = "each"\n' + GOOD.replace('"k"', '"K y"'), "key"),
        ('base = "sotopia-v1"\nkeys = ["gaol"]', "no dimension 'gaol'. Did you mean \"goal\""),
        ("calls = ", "cannot be read"),
    ],
)
def test_a_broken_rubric_is_refused_with_its_place(tmp_path, text, message):
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_rubric(str(path))


def test_an_unknown_rubric_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match='Did you mean "sotopia-v1"'):
        load_rubric("sotopia-v2")


def test_a_prompt_of_ones_own_may_not_name_an_unknown_placeholder(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('system = "s"\nuser = "{mark} {recrd}"\nreask = "{problem}"\n')
    with pytest.raises(ConfigError, match=r'\{recrd\}.*Did you mean "record"'):
        load_prompt(str(path))


def test_a_prompt_without_a_part_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('system = "s"\nuser = "u"\n')
    with pytest.raises(ConfigError, match="reask"):
        load_prompt(str(path))
