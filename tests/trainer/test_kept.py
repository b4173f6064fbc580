"""Dialogues that go on: the replies are those of reading everything again, and less is read."""

import random

import pytest
import torch

from builders import EOS, FLOAT32, VOCAB, make_lm
from istar_trainer.kept import KeptDialogues
from istar_trainer.sampler import Completion, LocalSampler, Request
from istar_trainer.weights import copy_weights


def make_sampler(model=None, **options) -> LocalSampler:
    settings = {"eos_token_id": EOS, "max_new_tokens": 6, "kept_mib": 1, **options}
    return LocalSampler(make_lm(layers=2) if model is None else model, **settings)


def openings(count: int = 9, seed: int = 0) -> list[list[int]]:
    """Prompts of 3 to 9 tokens, some of them equal."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(rng.randint(3, 9))] for _ in range(count - 3)]
    return [*prompts, *prompts[:3]]


def talk(sampler: LocalSampler, prompts: list[list[int]], *, turns: int = 4) -> list[list[Completion]]:
    """Let every prompt go on with its reply and a few tokens more; a new one joins each turn."""
    rng = random.Random(1)
    said, found = [list(prompt) for prompt in prompts], []
    for turn in range(turns):
        requests = [Request(tuple(ids), seed=100 * turn + n) for n, ids in enumerate(said)]
        found.append(sampler.generate(requests, temperature=1.0))
        added = [[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 5))] for _ in said]
        said = [[*ids, *c.response_ids, *new] for ids, c, new in zip(said, found[-1], added, strict=True)]
        said.insert(turn, [rng.randrange(3, VOCAB) for _ in range(8)])
    return found


def assert_same_talk(actual: list[list[Completion]], expected: list[list[Completion]]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert [c.response_ids for c in one] == [c.response_ids for c in other]
        for a, b in zip(one, other, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=FLOAT32)


def record_shapes(model) -> list[tuple[int, int]]:
    shapes: list[tuple[int, int]] = []
    model.register_forward_pre_hook(
        lambda _module, _args, options: shapes.append(tuple(options["input_ids"].shape)), with_kwargs=True
    )
    return shapes


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("max_rows", [2, 512])
def test_a_dialogue_goes_on_as_if_everything_were_read_again(attention, max_rows):
    model = make_lm(layers=2)
    model.set_attn_implementation(attention)
    expected = talk(make_sampler(model, kept_mib=0), openings())
    assert len({len(c.response_ids) for turn in expected for c in turn}) > 2
    assert_same_talk(talk(make_sampler(model, max_rows=max_rows), openings()), expected)


def test_only_what_is_new_is_read():
    model = make_lm()
    sampler, shapes = make_sampler(model, max_new_tokens=3), record_shapes(model)
    prompt = [4, 5, 6, 7]
    (first,) = sampler.generate([Request(prompt, 0)], temperature=1.0)
    assert shapes[0] == (1, 4)
    shapes.clear()
    sampler.generate([Request([*prompt, *first.response_ids, 8, 9], 1)] * 2, temperature=1.0)
    assert shapes[0] == (1, 3)  # the last token of a reply is drawn and not read


def test_a_prompt_is_read_whole_unless_all_of_a_dialogue_begins_it():
    model = make_lm()
    sampler, shapes = make_sampler(model, max_new_tokens=1), record_shapes(model)
    sampler.generate([Request([4, 5, 6], 0)], temperature=1.0)
    shapes.clear()
    for prompt in ([4, 5, 7, 8], [4, 5, 6], [4, 5]):
        sampler.generate([Request(prompt, 0)], temperature=1.0)
    assert shapes == [(1, 4), (1, 3), (1, 2)]


@pytest.mark.parametrize("forget", ["load", "rest"])
def test_new_weights_and_a_rest_forget_what_was_read(forget):
    model, other = make_lm(), make_lm(seed=1)
    sampler, shapes = make_sampler(model), record_shapes(model)
    (reply,) = sampler.generate([Request([4, 5], 0)], temperature=1.0)
    if forget == "load":
        sampler.load(copy_weights(other), 1)
    else:
        sampler.rest()
    shapes.clear()
    request = Request([4, 5, *reply.response_ids, 8], 1)
    again = sampler.generate([request], temperature=1.0)
    assert shapes[0] == (1, 3 + len(reply.response_ids))
    plain = make_sampler(other if forget == "load" else model, kept_mib=0)
    assert_same_talk([again], [plain.generate([request], temperature=1.0)])


def test_memory_has_a_bound_and_the_latest_dialogues_stay():
    kept, model = KeptDialogues(1), make_lm()
    ids = [[row + 3] * 1000 for row in range(12)]  # 128 KiB each: 1000 tokens × 2 × 16 numbers
    said, longer = [(tuple(row), ()) for row in ids], [((*row, 3), ()) for row in ids]
    output = model(input_ids=torch.tensor(ids), use_cache=True)
    cache = next(value for value in output.values() if hasattr(value, "layers"))
    where = {"attention": torch.ones(12, 1000, dtype=torch.int64), "ends": torch.full((12,), 1000)}
    with torch.no_grad():
        kept.keep(said, cache, torch.arange(12), **where)
    assert [beginning is not None for beginning in kept.find(longer)] == [False] * 4 + [True] * 8
    kept.keep(said[:1], cache, torch.tensor([0]), **where)
    found = kept.find(longer)
    assert [beginning is not None for beginning in found] == [True] + [False] * 4 + [True] * 7
    kept.drop([beginning for beginning in found if beginning is not None])
    assert kept.find(longer) == [None] * 12


def test_a_dialogue_that_went_on_is_kept_once():
    sampler = make_sampler(max_new_tokens=2)
    talk(sampler, openings(4))
    assert len(sampler._kept._kept) <= 4 + 3


def test_layers_that_forget_are_not_kept():
    model = make_lm(layers=2)
    model.config.layer_types = ["full_attention", "sliding_attention"]
    model.config.sliding_window = 4
    model.model.has_sliding_layers = True
    model.model.layers[1].self_attn.sliding_window = 4
    sampler = make_sampler(model)
    assert_same_talk(talk(sampler, openings()), talk(make_sampler(model, kept_mib=0), openings()))
    assert not sampler._kept._kept
