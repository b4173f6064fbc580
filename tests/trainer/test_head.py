"""Logits held a piece at a time: the same numbers, and never all of them at once."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from builders import EOS, assert_same_tensors, gradients, make_lm, make_scene, make_trajectory
from istar_trainer.batch import StepBatch, collate
from istar_trainer.head import tokens_at_once
from istar_trainer.model import Forward, divergence, forward
from istar_trainer.records import Step

VOCAB = 50_000
MIB = 2**20


class LargestTensor(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation makes, in bytes; views do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, Tensor):
                self.bytes = max(self.bytes, value.untyped_storage().nbytes())
        return result


def rows_of(batch: StepBatch) -> Tensor:
    return torch.arange(len(batch))


@contextmanager
def pieces_of(monkeypatch: pytest.MonkeyPatch, tokens: int) -> Iterator[None]:
    """Let a forward pass hold the logits of a few tokens only."""
    with monkeypatch.context() as patch:
        patch.setattr("istar_trainer.model.tokens_at_once", lambda _model, _mib: tokens)
        yield


def weighted(out: Forward, old: Forward) -> Tensor:
    """A sum of everything that is read of logits, each with its own weight."""
    shape = out.mask.shape[1:]
    weights = torch.randn(3, len(out.inverse), *shape, generator=torch.Generator().manual_seed(0)).double()
    values = torch.stack([out.logprobs(), out.entropy(), divergence(old, out)])
    return (values * weights).sum()


@pytest.mark.parametrize("tokens", [1, 4, 7])
def test_pieces_give_the_values_and_gradients_of_the_whole(monkeypatch, tokens):
    scene, found = make_scene(), []
    for number in (10_000, tokens):
        model, other = make_lm(layers=2).double(), make_lm(seed=1).double()
        with pieces_of(monkeypatch, number):
            with torch.no_grad():
                old = forward(other, scene.batch, rows_of(scene.batch), temperature=0.7)
            out = forward(model, scene.batch, rows_of(scene.batch), temperature=0.7)
            value = weighted(out, old)
            value.backward()
        assert out.states.shape[1] == (24 if number == 10_000 else 16)
        found.append((value.detach(), gradients(model)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=1e-10)
    assert_same_tensors(found[1][1], found[0][1], atol=1e-10)


def test_a_pass_that_is_read_twice_gives_the_same_twice(monkeypatch):
    scene, model = make_scene(), make_lm()
    with pieces_of(monkeypatch, 3):
        out = forward(model, scene.batch, rows_of(scene.batch), temperature=1.0)
    assert torch.equal(out.logprobs(), out.logprobs())
    assert model.lm_head._forward_pre_hooks == {}


def test_how_many_tokens_fit_follows_from_the_vocabulary():
    assert tokens_at_once(make_lm(vocab=1024), logits_mib=8) == 8 * MIB // (4 * 1024)
    assert tokens_at_once(make_lm(vocab=2**20), logits_mib=1) == 1


def test_logits_that_the_model_changes_after_its_head_are_taken_from_the_model_whole():
    scene, model = make_scene(), make_lm()
    model.config.final_logit_softcapping = 30.0
    out = forward(model, scene.batch, rows_of(scene.batch), temperature=1.0, logits_mib=0)
    assert out.states.shape[1] == 24
    assert torch.equal(out.logits, out.states)


@pytest.mark.parametrize("with_entropy", [False, True])
def test_the_largest_tensor_is_one_piece_and_not_all_logits(with_entropy):
    rng = random.Random(0)
    steps = [
        Step(
            [rng.randrange(3, VOCAB) for _ in range(4)],
            [*(rng.randrange(3, VOCAB) for _ in range(31)), EOS],
            [0.0] * 32,
        )
        for _ in range(4)
    ]
    batch = collate([make_trajectory("t", "g", steps)], ["g"])
    model, peak = make_lm(vocab=VOCAB), {}
    for mib in (1024, 2):
        with LargestTensor() as largest:
            out = forward(model, batch, rows_of(batch), temperature=1.0, logits_mib=mib)
            value = out.logprobs().sum()
            if with_entropy:
                value = value + out.entropy().sum()
            value.backward()
        peak[mib] = largest.bytes
    assert peak[1024] >= 4 * 128 * VOCAB
    assert peak[2] <= max(
        2 * MIB, 4 * VOCAB * 16
    )  # the gradient of the head's weights is as large as they are
