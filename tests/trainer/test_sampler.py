"""Generation: the right tokens, the right logprobs, no matter what else is in the batch."""

import random
from collections import Counter

import pytest
import torch
from torch import nn

from builders import EOS, FLOAT32, VOCAB, make_learner, make_lm, make_trajectory
from istar_trainer.batch import collate
from istar_trainer.learner import Optimization, TorchLearner
from istar_trainer.records import Step
from istar_trainer.sampler import Completion, LocalSampler, Request
from istar_trainer.weights import copy_weights


def make_sampler(model: nn.Module | None = None, **options) -> LocalSampler:
    settings = {"eos_token_id": EOS, "max_new_tokens": 6, **options}
    return LocalSampler(make_lm(layers=2) if model is None else model, **settings)


def make_requests(count: int = 12, seed: int = 0) -> list[Request]:
    """Prompts of 1 to 9 tokens, some of them equal, with different seeds."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 9))] for _ in range(count - 3)]
    return [Request(prompt, seed=100 + n) for n, prompt in enumerate([*prompts, *prompts[:3]])]


def assert_same_completions(actual: list[Completion], expected: list[Completion]) -> None:
    assert [c.response_ids for c in actual] == [c.response_ids for c in expected]
    for one, other in zip(actual, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=FLOAT32)


def record_shapes(model: nn.Module) -> list[tuple[int, int]]:
    """Note rows and columns of every forward pass from now on."""
    shapes: list[tuple[int, int]] = []
    model.register_forward_pre_hook(
        lambda _module, _args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.7])
def test_reported_logprobs_are_those_that_the_learner_computes(temperature):
    model = make_lm(layers=2)
    requests = make_requests()
    completions = make_sampler(model).generate(requests, temperature=temperature)
    steps = [
        Step(r.prompt_ids, c.response_ids, c.logprobs) for r, c in zip(requests, completions, strict=True)
    ]
    batch = collate([make_trajectory("t", "g", steps)], ["g"])
    learner = TorchLearner(
        model, Optimization(1e-3, 0.0, 1.0), temperature=temperature, micro_batch_tokens=40
    )
    torch.testing.assert_close(learner.logprobs(batch), batch.sampler_logprobs, rtol=0, atol=FLOAT32)
    assert (batch.sampler_logprobs[batch.response_mask] < 0).all()


def test_a_result_does_not_depend_on_what_else_is_in_the_batch_or_on_its_order():
    sampler, requests = make_sampler(), make_requests()
    together = sampler.generate(requests, temperature=1.0)
    alone = [sampler.generate([request], temperature=1.0)[0] for request in requests]
    assert_same_completions(alone, together)
    assert_same_completions(sampler.generate(requests[::-1], temperature=1.0)[::-1], together)
    assert len({len(c.response_ids) for c in together}) > 1, "the rows must end at different times"


def test_a_split_into_several_batches_gives_the_same_result():
    model, requests = make_lm(layers=2), make_requests()
    whole = make_sampler(model).generate(requests, temperature=1.0)
    assert_same_completions(make_sampler(model, max_rows=5).generate(requests, temperature=1.0), whole)


def test_equal_seeds_give_equal_replies_and_other_seeds_other_ones():
    sampler = make_sampler()
    prompt = [5, 6, 7]
    same = sampler.generate([Request(prompt, 1)] * 3, temperature=1.0)
    assert same[0] == same[1] == same[2]
    different = sampler.generate([Request(prompt, seed) for seed in range(8)], temperature=1.0)
    assert len({c.response_ids for c in different}) > 4


def test_greedy_replies_equal_those_of_generate():
    model, requests = make_lm(layers=2), make_requests()
    ours = make_sampler(model).generate(requests, temperature=0.0)
    for request, completion in zip(requests, ours, strict=True):
        ids = torch.tensor([list(request.prompt_ids)])
        theirs = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=6,
            eos_token_id=EOS,
            pad_token_id=0,
        )
        assert completion.response_ids == tuple(theirs[0, ids.shape[1] :].tolist())


def test_greedy_replies_report_the_logprobs_of_temperature_1():
    model = make_lm()
    (completion,) = make_sampler(model, max_new_tokens=1).generate([Request([4, 5], 0)], temperature=0.0)
    logprobs = model(input_ids=torch.tensor([[4, 5]])).logits[0, -1].detach().log_softmax(0)
    assert completion.response_ids == (int(logprobs.argmax()),)
    assert completion.logprobs[0] == pytest.approx(float(logprobs.max()), abs=FLOAT32)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_draws_follow_the_distribution_of_the_model(temperature):
    model, num = make_lm(), 4000
    requests = [Request([4, 5, 6], seed) for seed in range(num)]
    drawn = make_sampler(model, max_new_tokens=1).generate(requests, temperature=temperature)
    counts = Counter(c.response_ids[0] for c in drawn)
    logits = model(input_ids=torch.tensor([[4, 5, 6]])).logits[0, -1]
    for token, p in enumerate((logits / temperature).softmax(0).tolist()):
        spread = (num * p * (1 - p)) ** 0.5
        assert abs(counts[token] - num * p) < 4.5 * spread + 1  # 24 tokens at 4.5 sigma: no false alarm


def test_only_rows_that_have_not_ended_are_computed():
    model, requests = make_lm(layers=2), make_requests()
    shapes = record_shapes(model)
    completions = make_sampler(model).generate(requests, temperature=1.0)
    lengths = [len(c.response_ids) for c in completions]
    live = [sum(length > position for length in lengths) for position in range(1, max(lengths))]
    assert shapes[1:] == [(rows, 1) for rows in live]
    assert live[-1] < len(requests)


def test_equal_prompts_are_read_once():
    model = make_lm()
    shapes = record_shapes(model)
    prompts = [[4, 5, 6], [7], [4, 5, 6], [4, 5, 6]]
    make_sampler(model).generate([Request(p, n) for n, p in enumerate(prompts)], temperature=1.0)
    assert shapes[0] == (2, 3)


def test_a_reply_ends_with_the_end_token_or_at_the_limit():
    sampler = make_sampler(max_new_tokens=4)
    replies = [c.response_ids for c in sampler.generate(make_requests(60), temperature=1.0)]
    assert all(EOS not in reply[:-1] for reply in replies)
    assert all(reply[-1] == EOS or len(reply) == 4 for reply in replies)
    assert any(reply[-1] == EOS for reply in replies)
    assert any(reply[-1] != EOS for reply in replies)


def test_loading_takes_over_weights_and_their_version():
    sampler, other = make_sampler(make_lm(seed=0)), make_lm(seed=1)
    assert sampler.snapshot_id == 0
    sampler.load(copy_weights(other), 7)
    assert sampler.snapshot_id == 7
    requests = make_requests()
    assert_same_completions(
        sampler.generate(requests, temperature=1.0), make_sampler(other).generate(requests, temperature=1.0)
    )


def test_loading_the_models_own_weights_copies_nothing():
    learner = make_learner()
    sampler = make_sampler(learner.model)
    version = [p._version for p in learner.model.parameters()]
    sampler.load(learner.model.state_dict(), 1)
    assert [p._version for p in learner.model.parameters()] == version
