"""Dialogues with pictures that go on: a beginning is the same if its tokens and its pictures are."""

import gc
import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoImageProcessor

from builders import EOS, FLOAT32, VOCAB
from istar_trainer.pictures import Picture, PictureReader, PlacedPicture
from istar_trainer.sampler import Completion, LocalSampler, Request
from istar_trainer.tiny_vision import save_image_processor
from istar_trainer.weights import copy_weights
from vision_models import KINDS, make_vlm

PAD = VOCAB - 2
"""The placeholder of pictures."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> PictureReader:
    folder: Path = tmp_path_factory.mktemp("processor")
    save_image_processor(folder)
    return PictureReader(AutoImageProcessor.from_pretrained(folder), token="<|image_pad|>", token_id=PAD)


@pytest.fixture(params=KINDS)
def model(request) -> torch.nn.Module:
    return make_vlm(request.param)


def make_sampler(model, **options) -> LocalSampler:
    return LocalSampler(model, **{"eos_token_id": EOS, "max_new_tokens": 6, "kept_mib": 16, **options})


def noise(reader: PictureReader, seed: int, rows: int = 2, columns: int = 3) -> Picture:
    """A picture of so many tokens."""
    pixels = np.random.default_rng(seed).integers(0, 256, (28 * rows, 28 * columns, 3), np.uint8)
    return reader.read(pixels)


def say(said: Request, *parts: int | Picture) -> Request:
    """Append tokens and pictures."""
    ids, pictures = list(said.prompt_ids), list(said.pictures)
    for part in parts:
        if isinstance(part, Picture):
            pictures.append(PlacedPicture(part, len(ids)))
            ids += [PAD] * part.num_tokens
        else:
            ids.append(part)
    return replace(said, prompt_ids=tuple(ids), pictures=tuple(pictures))


def hear(said: Request, completion: Completion, *parts: int | Picture, seed: int = 0) -> Request:
    """The prompt after a reply."""
    return replace(say(said, *completion.response_ids, *parts), seed=seed)


def talk(sampler: LocalSampler, reader: PictureReader, *, turns: int = 4) -> list[list[Completion]]:
    """Let dialogues with 0 to 2 new pictures a turn go on; some begin alike, another joins each turn."""
    rng = random.Random(0)
    album = [noise(reader, n, *shape) for n, shape in enumerate([(2, 3), (2, 3), (3, 2), (1, 1), (4, 2)])]

    def parts(*, most_pictures: int) -> list[int | Picture]:
        words: list[int | Picture] = [rng.randrange(3, VOCAB - 4) for _ in range(rng.randint(1, 4))]
        shown = rng.choices(album, k=rng.randint(0, most_pictures))
        return [*shown[:1], *words, *shown[1:], *words[:1]]

    said = [say(Request((), 0), *parts(most_pictures=n % 3)) for n in range(7)]
    said += said[3:5]
    found = []
    for turn in range(turns):
        said = [replace(prompt, seed=100 * turn + n) for n, prompt in enumerate(said)]
        found.append(sampler.generate(said, temperature=1.0))
        said = [
            hear(prompt, completion, *parts(most_pictures=n % 3))
            for n, (prompt, completion) in enumerate(zip(said, found[-1], strict=True))
        ]
        said.insert(turn, say(Request((), 0), *parts(most_pictures=2)))
    return found


def assert_same_replies(actual: Sequence[Completion], expected: Sequence[Completion]) -> None:
    assert [c.response_ids for c in actual] == [c.response_ids for c in expected]
    for one, other in zip(actual, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=FLOAT32)


def record_reading(model) -> list[tuple[int, int]]:
    """For each forward pass the tokens of a row that are read, and the pictures that are looked at."""
    passes: list[tuple[int, int]] = []

    def begin(_model, _arguments, options):
        passes.append((options["input_ids"].shape[1], 0))

    def look(_tower, _arguments, options):
        passes[-1] = (passes[-1][0], len(options["grid_thw"]))

    model.register_forward_pre_hook(begin, with_kwargs=True)
    model.model.visual.register_forward_pre_hook(look, with_kwargs=True)
    return passes


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("max_rows", [2, 512])
def test_a_dialogue_with_pictures_goes_on_as_if_everything_were_read_again(
    model, reader, attention, max_rows
):
    model.set_attn_implementation(attention)
    expected = talk(make_sampler(model, kept_mib=0), reader)
    assert len({len(c.response_ids) for turn in expected for c in turn}) > 2
    actual = talk(make_sampler(model, max_rows=max_rows), reader)
    for turn, again in zip(actual, expected, strict=True):
        assert_same_replies(turn, again)


def test_only_new_tokens_are_read_and_only_new_pictures_looked_at(model, reader):
    sampler, passes = make_sampler(model, eos_token_id=-1, max_new_tokens=3), record_reading(model)
    opening = say(Request((), 0), 5, noise(reader, 0), 6, noise(reader, 1), 7)
    (reply,) = sampler.generate([opening], temperature=1.0)
    assert passes == [(15, 2), (1, 0), (1, 0)]
    passes.clear()
    later = hear(opening, reply, 8, noise(reader, 2, 4, 1), 9)
    (reply,) = sampler.generate([later], temperature=1.0)
    assert passes[0] == (7, 1)  # the last token of a reply is drawn and not read
    passes.clear()
    sampler.generate([hear(later, reply, 8)], temperature=1.0)
    assert passes[0] == (2, 0)


def others(reader: PictureReader) -> Iterator[tuple[Request, Request]]:
    """Pairs of beginnings of equal tokens that do not show the same."""
    first, shown = noise(reader, 0), say(Request((), 0), 5, 6, noise(reader, 0), 7)
    yield shown, say(Request((), 0), 5, 6, noise(reader, 1), 7)
    yield shown, say(Request((), 0), 5, 6, noise(reader, 0, 3, 2), 7)
    yield shown, replace(shown, pictures=())
    yield replace(shown, pictures=()), shown
    twice = say(Request((), 0), 5, first, *[PAD] * 6, 7)
    yield twice, replace(twice, pictures=(PlacedPicture(first, 7),))


@pytest.mark.parametrize("number", range(5))
def test_another_picture_at_the_same_place_is_not_taken_for_the_one_that_was_read(model, reader, number):
    known, other = list(others(reader))[number]
    sampler, passes = make_sampler(model), record_reading(model)
    (reply,) = sampler.generate([known], temperature=1.0)
    passes.clear()
    requests = [hear(prompt, reply, 8, seed=1) for prompt in (other, known)]
    found = sampler.generate(requests, temperature=1.0)
    assert (len(requests[0].prompt_ids), len(other.pictures)) in passes
    assert_same_replies(found, make_sampler(model, kept_mib=0).generate(requests, temperature=1.0))
    assert found[0].logprobs[0] != pytest.approx(found[1].logprobs[0], abs=1e-3)


def test_new_weights_forget_what_was_looked_at(model, reader):
    other = deepcopy(model)
    with torch.no_grad():
        other.model.visual.patch_embed.proj.weight.mul_(1.1)
    sampler, passes = make_sampler(model), record_reading(model)
    opening = say(Request((), 0), 5, noise(reader, 0), 7)
    (reply,) = sampler.generate([opening], temperature=1.0)
    sampler.load(copy_weights(other), 1)
    passes.clear()
    request = hear(opening, reply, 8, seed=1)
    found = sampler.generate([request], temperature=1.0)
    assert passes[0] == (len(request.prompt_ids), 1)
    assert_same_replies(found, make_sampler(other, kept_mib=0).generate([request], temperature=1.0))


def test_memory_has_a_bound_and_holds_no_pixels(model, reader):
    sampler = make_sampler(model, kept_mib=1, max_new_tokens=1)
    requests = [say(Request((), 0), *[noise(reader, seed, 8, 8)] * 2, 5) for seed in range(20)]
    sampler.generate(requests, temperature=1.0)  # 64.5 KiB each: 129 tokens × 2 layers × 2 × 32 numbers
    known = sampler._kept.find([((*r.prompt_ids, 7), r.pictures) for r in requests])
    assert [beginning is not None for beginning in known] == [False] * 5 + [True] * 15
    assert not any(isinstance(thing, Picture | np.ndarray) for thing in reachable(sampler._kept._kept))


def reachable(thing: object) -> Iterator[object]:
    """Everything that a container holds, at any depth."""
    for part in gc.get_referents(thing):
        if not isinstance(part, type):
            yield part
            yield from reachable(part)
