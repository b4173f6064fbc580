"""JSON of a wanted shape comes from a model whatever its weights."""

import json
from functools import wraps

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_trainer.constrained import Choice, JsonWriter, Words, outline
from istar_trainer.weights import load_model


def an_object(**properties):
    return {"type": "object", "properties": properties}


LEVEL = {"enum": [1, 10, 100]}
SCHEMA = an_object(reason={"type": "string"}, score=LEVEL, inner=an_object(sure={"type": "boolean"}))


@pytest.fixture(scope="module")
def loaded(tiny_folder):
    return load_model(tiny_folder)


@pytest.fixture(scope="module")
def write(loaded):
    writer = JsonWriter(*loaded, max_words=12)

    def write(schema, *, temperature=1.0, seed=0, max_tokens=400):
        return writer.write(
            [5, 6, 7], outline(schema), temperature=temperature, seed=seed, max_tokens=max_tokens
        )

    return write


def test_an_outline_holds_what_is_fixed_and_what_is_chosen():
    assert outline(SCHEMA) == (
        '{"reason": "',
        Words(),
        '", "score": ',
        Choice(("1", "10", "100")),
        ', "inner": {"sure": ',
        Choice(("true", "false")),
        "}}",
    )
    assert outline({"type": "integer", "minimum": 0, "maximum": 2}) == (Choice(("0", "1", "2")),)
    assert outline(an_object(kind={"const": "é"}, none=an_object())) == ('{"kind": "é", "none": {}}',)
    assert outline({"enum": ["a", "b", "a"]}) == ('"', Choice(('a"', 'b"')))
    assert outline({"enum": ["a", "a", None]}) == (Choice(('"a"', "null")),)


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "array"}, {"type": "number"}, {"type": "integer"}, {"enum": []}, {"type": "object"}, True],
)
def test_a_shape_that_cannot_be_forced_is_named_with_its_place(schema):
    with pytest.raises(ValueError, match=r"schema\.deep\.er: this kind of value cannot be forced"):
        outline(an_object(deep=an_object(er=schema)))


@pytest.mark.property
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), temperature=st.sampled_from([0.0, 0.7, 5.0]))
def test_whatever_a_random_model_says_is_valid(write, seed, temperature):
    written = write(SCHEMA, seed=seed, temperature=temperature)
    assert written.is_whole
    value = json.loads(written.text)
    assert list(value) == ["reason", "score", "inner"]
    assert value["score"] in (1, 10, 100)
    assert isinstance(value["inner"]["sure"], bool)


def test_the_same_seed_writes_the_same_and_other_seeds_write_other_things(write):
    texts = {write(SCHEMA, seed=seed).text for seed in range(4)}
    assert len(texts) == 4
    assert write(SCHEMA, seed=3) == write(SCHEMA, seed=3)
    assert write(SCHEMA, temperature=0.0, seed=1).text == write(SCHEMA, temperature=0.0, seed=2).text


def test_the_likeliest_option_is_taken_at_temperature_0(loaded, write):
    model, tokenizer = loaded
    ids = torch.tensor([[5, 6, 7]])
    words = ["a", "b", "c", "d"]
    places = [tokenizer(f'"{word}', add_special_tokens=False)["input_ids"] for word in words]
    with torch.no_grad():
        logits = model(input_ids=torch.cat([ids, torch.tensor([places[0][:1]])], dim=1)).logits[0, -1]
    best = max(range(4), key=lambda place: float(logits[places[place][1]]))
    assert json.loads(write({"enum": words}, temperature=0.0).text) == words[best]


def test_options_are_drawn_in_proportion_to_their_probability(loaded):
    model, tokenizer = loaded
    writer = JsonWriter(model, tokenizer, max_words=1)
    wanted = outline({"enum": ["a", "b"]})
    drawn = [
        writer.write([5, 6, 7], wanted, temperature=1.0, seed=seed, max_tokens=9).text for seed in range(150)
    ]
    a, b = (tokenizer(f'"{word}', add_special_tokens=False)["input_ids"] for word in "ab")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[5, 6, 7, a[0]]])).logits[0, -1]
    expected = float(logits[[a[1], b[1]]].softmax(dim=0)[0])
    assert drawn.count('"a"') / 150 == pytest.approx(expected, abs=0.12)  # 3 standard errors


def test_a_text_ends_where_the_model_ends_it_or_at_the_most_words(loaded, monkeypatch):
    model, tokenizer = loaded
    for max_words in (1, 5):
        writer = JsonWriter(model, tokenizer, max_words=max_words)
        wanted = outline({"type": "string"})
        written = [writer.write([5], wanted, temperature=1.0, seed=seed, max_tokens=99) for seed in range(5)]
        assert max(one.num_tokens for one in written) == max_words + len('""')
    monkeypatch.setattr(model, "forward", _sure_of(tokenizer.eos_token_id, model.forward))
    assert writer.write([5], wanted, temperature=0.0, seed=0, max_tokens=9).text == '""'


def test_a_token_that_would_break_the_text_is_never_taken(loaded, monkeypatch):
    model, tokenizer = loaded
    for text in ('x"y', "x\\", "x\n", ""):
        texts = [text if token == 40 else "a" for token in range(len(tokenizer))]
        with monkeypatch.context() as patch:
            patch.setattr(tokenizer, "batch_decode", lambda ids, texts=texts: texts)
            patch.setattr(model, "forward", _sure_of(40, model.forward))
            writer = JsonWriter(model, tokenizer, max_words=1)
            written = writer.write([5], outline({"type": "string"}), temperature=0.0, seed=0, max_tokens=9)
        assert tokenizer.decode([40]) not in written.text


def test_the_model_reads_what_it_has_written_and_nothing_twice(loaded, monkeypatch):
    model, tokenizer = loaded
    read = []

    @wraps(model.forward)
    def reading(*args, **options):
        read.extend(options["input_ids"][0].tolist())
        return forward(*args, **options)

    forward = model.forward
    monkeypatch.setattr(model, "forward", reading)
    schema = an_object(first=LEVEL, second=LEVEL, third={"enum": ["yes", "no"]}, last=LEVEL)
    writer = JsonWriter(model, tokenizer, max_words=1)
    text = writer.write([5, 6], outline(schema), temperature=1.0, seed=0, max_tokens=99).text
    assert text.startswith(tokenizer.decode(read[2:]))
    assert len(tokenizer.decode(read[2:])) > len(text) / 2


def _sure_of(token, forward):
    @wraps(forward)
    def sure(*args, **options):
        output = forward(*args, **options)
        output.logits[..., token] = 1e9
        return output

    return sure


def test_what_does_not_fit_into_the_tokens_is_cut_off_and_said_so(write):
    whole = write(SCHEMA)
    assert write(SCHEMA, max_tokens=whole.num_tokens) == whole
    for max_tokens in (1, 3, whole.num_tokens - 1):
        written = write(SCHEMA, max_tokens=max_tokens)
        assert not written.is_whole
        assert whole.text.startswith(written.text)
        assert written.text != whole.text
