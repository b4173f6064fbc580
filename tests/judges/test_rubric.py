"""Rubrics as data: what ships, what derives, what is refused."""

import json

import pytest

from istar_envs.errors import ConfigError
from istar_judges.errors import VerdictUnreadable
from istar_judges.llm_judge import LlmJudge
from istar_judges.prompting import ask, load_prompt
from istar_judges.results import ScoreRule
from istar_judges.rubric import Band, Dimension, Rubric, load_rubric
from istar_judges.verdict import read_verdict, verdict_schema
from judged import ScriptedModel, make_dialogue

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
        ("sotopia-plus-v1", tuple(PUBLISHED), "together"),
        ("goal-plus-v1", ("goal",), "together"),
    ],
)
def test_every_mode_is_a_rubric_of_its_own(name, keys, calls):
    rubric = load_rubric(name)
    assert (rubric.keys, rubric.calls) == (keys, calls)


def test_j15_modes_are_told_apart_by_their_version():
    names = ("sotopia-v1", "goal-v1", "sotopia-each-v1", "goal-each-v1", "sotopia-plus-v1", "goal-plus-v1")
    assert len({load_rubric(name).version for name in names}) == 6
    assert load_rubric("goal-v1").version == "goal-v1#13211468"


def test_the_version_changes_with_a_single_word():
    one, other = (
        Rubric(name="r", calls="each", dimensions=(Dimension(key="k", low=0, high=1, question=q),))
        for q in ("How kind?", "How kind!")
    )
    assert one.version != other.version


def own_rubric(num: int) -> Rubric:
    """As many dimensions of different ranges as wanted; every other one has bands."""
    dimensions = tuple(
        Dimension(
            key=f"trait_{n}",
            low=-n,
            high=3,
            question=f"How much of trait {n}?",
            bands=(
                (Band(low=-n, high=0, meaning=f"little of {n}"), Band(low=1, high=3, meaning=f"much of {n}"))
                if n % 2
                else ()
            ),
        )
        for n in range(num)
    )
    return Rubric(name="own", calls="together", dimensions=dimensions)


@pytest.mark.parametrize("num", [1, 2, 3, 7, 20])
def test_any_number_of_dimensions_is_asked_for_and_read(num):
    rubric = own_rubric(num)
    asked = ask(load_prompt("judge-v1"), rubric, make_dialogue(), (0, 1))[1]["content"]
    assert all(f"- {d.key}, from {d.low} to 3: {d.question}" in asked for d in rubric.dimensions)
    assert asked.count("\n  ") == sum(len(d.bands) for d in rubric.dimensions)
    answer = {
        label: {d.key: {"reason": "", "score": d.low} for d in rubric.dimensions} for label in ("A", "B")
    }
    verdict = read_verdict(json.dumps(answer), rubric, ("A", "B"))
    assert {key: score.score for key, score in verdict["B"].items()} == {
        d.key: d.low for d in rubric.dimensions
    }
    answer["B"].pop(rubric.keys[-1])
    with pytest.raises(VerdictUnreadable, match=rubric.keys[-1]):
        read_verdict(json.dumps(answer), rubric, ("A", "B"))


@pytest.mark.parametrize("num", [1, 3, 7, 20])
def test_f15_a_judge_scores_any_number_of_dimensions(num):
    rubric = own_rubric(num)
    judge = LlmJudge(ScriptedModel(), rubric, rule=ScoreRule("overall", divisor=1.0, threshold=0.0))
    result = judge.judge_many([make_dialogue(goals=(0, 2))])[0]
    assert [set(scores) for scores in result.scores.values()] == [set(rubric.keys)] * 2
    assert judge.outcome(make_dialogue(), result).score == pytest.approx(-(num - 1) / 2)  # all lowest


# Plus: what each part of a range means


def test_plus_asks_the_same_questions_and_says_what_parts_of_the_range_mean():
    plain, plus = load_rubric("sotopia-v1"), load_rubric("sotopia-plus-v1")
    assert {d.key: (d.low, d.high) for d in plus.dimensions} == PUBLISHED
    assert [d.question for d in plus.dimensions] == [d.question for d in plain.dimensions]
    assert not any(d.bands for d in plain.dimensions)
    assert load_rubric("goal-plus-v1").dimensions == (plus.dimension("goal"),)


BANDS = {
    "believability": [(0, 3), (4, 6), (7, 8), (9, 10)],
    "relationship": [(-5, -3), (-2, 0), (1, 3), (4, 5)],
    "knowledge": [(0, 3), (4, 6), (7, 8), (9, 10)],
    "secret": [(-10, -7), (-6, -4), (-3, -1), (0, 0)],
    "social_rules": [(-10, -8), (-7, -5), (-4, -2), (-1, 0)],
    "financial_and_material_benefits": [(-5, -3), (-2, 0), (1, 3), (4, 5)],
    "goal": [(0, 3), (4, 6), (7, 8), (9, 10)],
}


def test_plus_has_the_published_bands():
    plus = load_rubric("sotopia-plus-v1")
    assert {d.key: [(b.low, b.high) for b in d.bands] for d in plus.dimensions} == BANDS


def test_bands_stand_under_the_question_of_their_dimension():
    prompt = load_prompt("judge-v1")
    asked = ask(prompt, load_rubric("sotopia-plus-v1"), make_dialogue(), (0, 1))[1]["content"]
    lines = asked.splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("- secret, from -10 to 0:"))
    assert [line.split(":")[0] for line in lines[place + 1 : place + 6]] == [
        "  -10 to -7",
        "  -6 to -4",
        "  -3 to -1",
        "  0",
        "- social_rules, from -10 to 0",
    ]


def test_a_word_of_a_band_changes_the_version():
    one, other = (
        Rubric(
            name="r",
            calls="each",
            dimensions=(
                Dimension(
                    key="k", low=0, high=1, question="q", bands=(Band(low=0, high=1, meaning=meaning),)
                ),
            ),
        )
        for meaning in ("so", "so so")
    )
    assert one.version != other.version


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


BAND = '{ low = 0, high = 9, meaning = "m" }'
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
        (f'base = "sotopia-v1"\n[bands]\ngaol = [{BAND}]', "bands of 'gaol'.*Did you mean \"goal\""),
        (f'base = "sotopia-v1"\nkeys = ["secret"]\n[bands]\ngoal = [{BAND}]', "bands of 'goal'.*secret"),
        (f'base = "goal-v1"\n[bands]\ngoal = [{BAND}]', "bands 0 to 9 must cover 0 to 10 in order"),
        (f'base = "goal-v1"\n[bands]\ngoal = [{BAND}, {BAND}]', "each score once"),
        ('base = "goal-v1"\n[bands]\ngoal = [{ low = 0, high = 10 }]', "meaning"),
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
