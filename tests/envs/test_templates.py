"""Prompt templates are data: filled in one pass, checked when loaded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_envs.errors import ConfigError
from istar_envs.templates import content_of, fill, load_template

SHIPPED = ["act-v1", "bare-v1", "think-v1"]
PICTURE = np.zeros((2, 2, 3), np.uint8)
OWN = """
grammar = "action"
turn = "{role}|{task}|{step}|{admissible}|{history}|{observation}"
history_item = "[{number}:{observation}:{action}]"
opening = "{observation}"
continuation = "{observation}"
"""


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_template_loads_and_shows_the_observation(name):
    template = load_template(name)
    assert template.name == name
    for text in (template.turn, template.opening, template.continuation):
        assert "{observation}" in text
    assert (template.grammar == "think_action") == ("<think>" in template.turn)


@pytest.mark.parametrize("name", ["act-v1", "think-v1"])
def test_templates_with_instructions_name_the_tags_that_the_grammar_wants(name):
    template = load_template(name)
    for text in (template.turn, template.opening):
        assert "<action>" in text
        assert "{role}" in text
        assert "{task}" in text


def test_an_own_template_is_loaded_by_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    assert load_template(str(path)).turn.startswith("{role}|")


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(
        ConfigError, match=r"unknown prompt template 'thnik-v1'\. Did you mean \"think-v1\"\?"
    ):
        load_template("thnik-v1")
    with pytest.raises(ConfigError, match="unknown prompt template"):
        load_template("gone.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grammar = ", "cannot be read"),
        ('grammar = "action"', "cannot be read"),
        (OWN.replace('"action"', '"free"'), "cannot be read"),
        (OWN + 'colour = "red"\n', "cannot be read"),
        (OWN.replace("{task}", "{tusk}"), r"unknown placeholder\(s\) \['tusk'\]\. Known: .*'task'"),
    ],
)
def test_a_broken_template_is_named_with_the_reason(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        load_template(str(path))
    assert "mine.toml" in str(error.value)


def test_a_template_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"mine\.toml.*cannot be read"):
        load_template(str(path))


def test_text_and_pictures_are_filled_in_and_neighbouring_texts_joined():
    parts = fill(
        "see {observation}, do {action}{number}!",
        {"observation": ["a", PICTURE], "action": "b", "number": ""},
    )
    assert parts[0] == "see a"
    assert parts[1] is PICTURE
    assert parts[2] == ", do b!"
    assert len(parts) == 3


def test_a_placeholder_without_a_value_is_named():
    with pytest.raises(ConfigError, match=r"placeholder \{tusk\} has no value\. Did you mean \"task\"\?"):
        fill("{tusk}", {"task": "x"})


@pytest.mark.property
@settings(max_examples=100, deadline=None)
@given(st.text(), st.text())
def test_what_is_filled_in_is_never_filled_again(task, observation):
    text = fill("<{task}|{observation}>", {"task": task, "observation": observation})
    assert "".join(text) == f"<{task}|{observation}>"


def test_placeholders_in_data_stay_as_they_are():
    values = {"task": "{observation}", "observation": "{task} {role} {nothing}"}
    assert fill("{task}: {observation}", values) == ["{observation}: {task} {role} {nothing}"]


def test_braces_that_are_no_placeholder_stay():
    assert fill('{"a": {}} {Task} {{task}}', {"task": "x"}) == ['{"a": {}} {Task} {x}']


def test_content_is_plain_text_unless_there_is_a_picture():
    assert content_of(["a", "b"]) == "ab"
    assert content_of([]) == ""
    assert content_of(["a", PICTURE]) == [{"type": "text", "text": "a"}, {"type": "image", "image": PICTURE}]
