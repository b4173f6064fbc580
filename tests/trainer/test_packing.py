"""Rows laid end to end: the numbers of padded rows, and no row sees another."""

import random

import pytest
import torch
from torch import Tensor

from builders import (
    EOS,
    FLOAT32,
    VOCAB,
    RecordingLearner,
    assert_same_tensors,
    gradients,
    make_lm,
    make_scene,
    make_trajectory,
)
from istar_trainer.batch import StepBatch, collate, micro_batches
from istar_trainer.critic import state_values, with_value_head
from istar_trainer.learner import Optimization
from istar_trainer.model import divergence, forward
from istar_trainer.packing import lay_out, pack
from istar_trainer.records import Step


def learner_of(
    model, *, packing: bool, micro_batch_tokens: int = 10_000, logits_mib: int = 512
) -> RecordingLearner:
    return RecordingLearner(
        model,
        Optimization(1e-2, 0.0, 1e9),
        temperature=0.7,
        micro_batch_tokens=micro_batch_tokens,
        logits_mib=logits_mib,
        packing=packing,
    )


def uneven_batch(seed: int = 0, num: int = 9) -> StepBatch:
    """Rows of very different lengths."""
    rng = random.Random(seed)

    def tokens(most: int) -> list[int]:
        return [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, most))]

    steps = [Step(tokens(30), [*tokens(6), EOS], []) for _ in range(num)]
    steps = [Step(s.prompt_ids, s.response_ids, [0.0] * len(s.response_ids)) for s in steps]
    return collate([make_trajectory("t", "g", [*steps, steps[0], steps[4]])], ["g"])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("logits_mib", [0, 512])
@pytest.mark.parametrize("tokens", [1, 20, 45, 90, 10_000])
def test_packed_rows_give_what_padded_rows_give(tokens, logits_mib, attention):
    batch, found = uneven_batch(), []
    weights = torch.randn(3, *batch.input_ids.shape, generator=torch.Generator().manual_seed(0))
    other = make_lm(seed=1)
    for packing in (False, True):
        model = make_lm(layers=2)
        model.set_attn_implementation(attention)
        size = tokens if packing else 10_000
        learner = learner_of(model, packing=packing, micro_batch_tokens=size, logits_mib=logits_mib)
        old = learner_of(other, packing=packing, micro_batch_tokens=size, logits_mib=logits_mib)

        def loss(out, rows, old=old):
            values = torch.stack([out.logprobs(), out.entropy(), divergence(old.forward(batch, rows), out)])
            return (values * weights[:, rows]).sum() / 100

        value = learner.backward(batch, loss)
        entropy = learner.token_values(batch, lambda out, _rows: out.entropy())
        found.append((value, gradients(model), learner.logprobs(batch), entropy))
    padded, packed = found
    assert packed[0] == pytest.approx(padded[0], abs=1e-5)
    assert_same_tensors(packed[1], padded[1], atol=1e-5)
    torch.testing.assert_close(packed[2], padded[2], rtol=0, atol=FLOAT32)
    torch.testing.assert_close(packed[3], padded[3], rtol=0, atol=FLOAT32)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_row_does_not_see_what_it_is_packed_with(attention):
    model, batch = make_lm(layers=2), uneven_batch()
    model.set_attn_implementation(attention)
    rows = torch.arange(len(batch))
    before = forward(model, batch, rows, temperature=1.0, packing=True).logprobs()
    for changed in range(3):
        ids = batch.input_ids.clone()
        ids[changed] = (ids[changed] - 2) % (VOCAB - 3) + 3
        other = StepBatch(**{**{f: getattr(batch, f) for f in batch.__slots__}, "input_ids": ids})
        after = forward(model, other, rows, temperature=1.0, packing=True).logprobs()
        same = rows != changed
        torch.testing.assert_close(after[same], before[same], rtol=0, atol=FLOAT32)
        assert not torch.allclose(after[changed], before[changed], atol=0.1)


def test_values_of_a_critic_are_those_of_padded_rows():
    scene, critic = make_scene(), with_value_head(make_lm())
    with torch.no_grad():
        critic.lm_head.weight.fill_(0.1)
    padded, packed = (state_values(learner_of(critic, packing=p), scene.batch) for p in (False, True))
    torch.testing.assert_close(packed, padded, rtol=0, atol=FLOAT32)


def test_rows_are_laid_longest_first_into_the_first_line_with_room():
    layout = lay_out([2, 5, 3, 3, 1], capacity=6)
    assert layout.lines.tolist() == [2, 0, 1, 1, 0]
    assert layout.starts.tolist() == [0, 0, 0, 3, 5]
    assert layout.shape == (3, 6)


def packed_inputs(model, batch: StepBatch) -> dict[str, Tensor]:
    mask = batch.response_mask
    return pack(model, batch.input_ids, batch.attention_mask.long(), mask)[0]


def test_every_real_token_is_laid_once_and_little_padding():
    batch = uneven_batch(num=40)
    inputs = packed_inputs(make_lm(), batch)
    num_real = int(batch.attention_mask.sum())
    assert sorted(inputs["input_ids"][inputs["input_ids"] > 0].tolist()) == sorted(
        batch.input_ids[batch.attention_mask].tolist()
    )
    assert num_real <= inputs["input_ids"].numel() < 1.25 * num_real
    assert inputs["input_ids"].shape[1] == batch.attention_mask.sum(dim=1).max()


def test_attention_for_ragged_batches_gets_everything_in_one_line():
    model, batch = make_lm(), uneven_batch()
    model.config._attn_implementation = "flash_attention_2"
    inputs = packed_inputs(model, batch)
    assert inputs["input_ids"].shape == (1, batch.attention_mask.sum())
    assert inputs["position_ids"].eq(0).sum() == len(batch)


def test_packed_micro_batches_count_real_tokens_and_equal_rows_once():
    batch = uneven_batch(num=40)
    lengths = batch.attention_mask.sum(dim=1)
    seen = []
    for rows in micro_batches(batch, 60, packing=True):
        kinds = torch.unique(batch.input_ids[rows], dim=0, return_inverse=True)[1]
        first = [int((kinds == kind).nonzero()[0]) for kind in kinds.unique()]
        assert int(lengths[rows][first].sum()) <= 60
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(batch)))


def test_rows_that_repeat_take_no_room_in_packed_micro_batches():
    batch = uneven_batch(num=40)
    doubled = batch.select(torch.arange(len(batch)).repeat(2))
    cuts = [[len(rows) for rows in micro_batches(b, 60, packing=True)] for b in (batch, doubled)]
    assert cuts[1] == [2 * rows for rows in cuts[0]]
    assert len(cuts[0]) > 5
