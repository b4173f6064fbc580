"""Steps of a growing dialogue, computed as part of its last step: the numbers of separate rows."""

import random

import pytest
import torch

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
from istar_trainer.distributed.sharded import row_shares
from istar_trainer.learner import Optimization
from istar_trainer.merging import families_of
from istar_trainer.model import divergence
from istar_trainer.records import Step


def learner_of(model, *, merge_prefixes: bool, micro_batch_tokens: int = 10_000, **options):
    return RecordingLearner(
        model,
        Optimization(1e-2, 0.0, 1e9),
        temperature=0.7,
        micro_batch_tokens=micro_batch_tokens,
        merge_prefixes=merge_prefixes,
        **options,
    )


def mixed_batch(seed: int = 0) -> StepBatch:
    """Two dialogues with a common start, a third one, and rows on their own, in any order."""
    rng = random.Random(seed)

    def tokens(most: int) -> list[int]:
        return [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, most))]

    def dialogue(said: list[int], turns: int) -> list[Step]:
        steps = []
        for _ in range(turns):
            response = [*tokens(4), EOS]
            steps.append(Step(said, response, [0.0] * len(response)))
            said = [*said, *response, *tokens(6)]
        return steps

    first = dialogue(tokens(9), 4)
    branch = [*first[0].prompt_ids, *first[0].response_ids, *tokens(5)]
    alone = [Step(tokens(20), [*tokens(4), EOS], []) for _ in range(3)]
    alone = [Step(s.prompt_ids, s.response_ids, [0.0] * len(s.response_ids)) for s in alone]
    kinds = [first, [first[0], *dialogue(branch, 2)], dialogue(tokens(9), 3), alone, alone[:1]]
    batch = collate([make_trajectory(str(n), "g", steps) for n, steps in enumerate(kinds)], ["g"])
    return batch.select(torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("logits_mib", [0, 512])
@pytest.mark.parametrize("tokens", [1, 60, 10_000])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_merged_rows_give_what_separate_rows_give(attention, tokens, logits_mib, packing):
    batch, found = mixed_batch(), []
    weights = torch.randn(3, *batch.input_ids.shape, generator=torch.Generator().manual_seed(0))
    other = make_lm(seed=1)
    for merge_prefixes in (False, True):
        model = make_lm(layers=2)
        model.set_attn_implementation(attention)
        options = {"packing": packing and merge_prefixes, "logits_mib": logits_mib}
        size = tokens if merge_prefixes else 10_000
        learner, old = (
            learner_of(m, merge_prefixes=merge_prefixes, micro_batch_tokens=size, **options)
            for m in (model, other)
        )

        def loss(out, rows, old=old):
            values = torch.stack([out.logprobs(), out.entropy(), divergence(old.forward(batch, rows), out)])
            return (values * weights[:, rows]).sum() / 100

        value = learner.backward(batch, loss)
        entropy = learner.token_values(batch, lambda out, _rows: out.entropy())
        found.append((value, gradients(model), learner.logprobs(batch), entropy))
    separate, merged = found
    assert merged[0] == pytest.approx(separate[0], abs=1e-5)
    assert_same_tensors(merged[1], separate[1], atol=1e-5)
    torch.testing.assert_close(merged[2], separate[2], rtol=0, atol=FLOAT32)
    torch.testing.assert_close(merged[3], separate[3], rtol=0, atol=FLOAT32)


def test_every_token_of_a_dialogue_is_computed_once():
    batch, model, computed = mixed_batch(), make_lm(), []
    model.register_forward_pre_hook(
        lambda _model, _args, options: computed.append(options["input_ids"].numel()), with_kwargs=True
    )
    learner_of(model, merge_prefixes=True, packing=True, micro_batch_tokens=1).logprobs(batch)
    longest = [family[0] for family in batch.families()]
    assert len(longest) == 6
    assert sum(computed) == int(batch.attention_mask[longest].sum())


def test_rows_that_begin_no_other_row_are_computed_bit_for_bit_as_ever():
    batch = make_scene(seed=3).batch
    assert batch.families() == []
    plain, merging = (learner_of(make_lm(), merge_prefixes=m, micro_batch_tokens=40) for m in (False, True))
    for learner in (plain, merging):
        learner.backward(batch, lambda out, _rows: out.logprobs().mean())
    assert_same_tensors(gradients(merging.model), gradients(plain.model))
    assert torch.equal(merging.logprobs(batch), plain.logprobs(batch))


def families(rows: list[list[int]], pictures: list[list[list[int]]] | None = None) -> list[list[int]]:
    """Families of rows that are padded to the left."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    attention = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    shown = torch.empty(len(rows), 0, 2).long() if pictures is None else torch.tensor(pictures)
    return families_of(ids, attention, shown)


def test_a_row_goes_with_the_rows_that_it_begins():
    assert families([[5], [7, 7], [5, 6, 7], [5, 6], [5, 8]]) == [[4], [1], [2, 3, 0]]
    assert families([[5, 6], [5, 6], [5]]) == [[0, 1, 2]]
    assert families([[5, 6], [6, 5], [5, 6]]) == []
    assert families([[5 + 256], [5, 1]]) == []


def test_a_row_begins_no_row_with_another_picture():
    tokens = [[9, 4, 5], [9, 4, 5, 9, 6]]
    assert families(tokens, [[[0, 2], [-1, -1]], [[0, 0], [1, 3]]]) == [[1, 0]]
    assert families(tokens, [[[1, 2], [-1, -1]], [[0, 0], [1, 3]]]) == []


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("most", [1, 40, 70])
def test_micro_batches_keep_families_whole_and_count_their_longest_rows(most, packing):
    batch, seen = mixed_batch(), []
    known = {tuple(sorted(family)) for family in batch.families()}
    lengths = batch.attention_mask.sum(dim=1)
    for rows in micro_batches(batch, most, packing=packing, merge_prefixes=True):
        chosen = [family for family in known if set(family) <= set(rows.tolist())]
        longest = torch.stack([lengths[list(family)].max() for family in chosen])
        assert len(rows) == sum(map(len, chosen))
        tokens = longest.sum() if packing else longest.max() * len(longest)
        assert tokens <= most or len(chosen) == 1
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(batch)))


def test_no_rows_are_no_families():
    nothing = torch.tensor([], dtype=torch.int64)
    assert mixed_batch().select(nothing).families() == []
    assert list(micro_batches(mixed_batch().select(nothing), 10, merge_prefixes=True)) == []


@pytest.mark.parametrize("num_shares", [1, 2, 3, 9])
def test_a_family_stays_with_one_process(num_shares):
    batch = mixed_batch()
    shares = [set(rows.tolist()) for rows in row_shares(batch, num_shares, merge_prefixes=True)]
    assert sorted(row for share in shares for row in share) == list(range(len(batch)))
    assert all(any(set(family) <= share for share in shares) for family in batch.families())
