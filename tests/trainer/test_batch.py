"""Trajectories as rows with keys: layout, weights, selection, micro-batches."""

from dataclasses import replace

import pytest
import torch

from builders import make_scene, make_trajectory
from istar_envs.episode import Transition
from istar_trainer.batch import collate, micro_batches, pad_steps
from istar_trainer.records import Step

SHORT = Step([5, 6], [7, 2], [-0.5, -0.25])
LONG = Step([3, 4, 5, 6], [8, 9, 2], [-1.0, -2.0, -3.0])


def test_prompts_meet_responses_at_one_column():
    ids, attention, response, logprobs = pad_steps([SHORT, LONG])
    assert ids.tolist() == [[0, 0, 5, 6, 7, 2, 0], [3, 4, 5, 6, 8, 9, 2]]
    assert attention.int().tolist() == [[0, 0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1]]
    assert response.int().tolist() == [[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1]]
    assert logprobs.tolist() == [[0, 0, 0, 0, -0.5, -0.25, 0], [0, 0, 0, 0, -1, -2, -3]]


def test_rows_carry_the_keys_of_their_step():
    trajectories = [
        make_trajectory("a", "g1", [SHORT, LONG], snapshot_id=4),
        make_trajectory("b", "g2", [LONG], snapshot_id=4),
        make_trajectory("c", "g1", [SHORT], snapshot_id=4),
    ]
    batch = collate(trajectories, ["g1", "g2"])
    assert batch.trajectory_index.tolist() == [0, 0, 1, 2]
    assert batch.step_index.tolist() == [0, 1, 0, 0]
    assert batch.group_index.tolist() == [0, 0, 1, 0]
    assert batch.weights.tolist() == [1, 1, 1, 1]
    assert batch.snapshot_id == 4
    assert len(batch) == 4


def test_rows_carry_what_their_step_earned_and_which_state_it_was_taken_in():
    seen = [("x", -0.1), ("y", 2.0), ("x", 0.5)]
    moves = tuple(Transition("o", "r", "a", reward, True, key) for key, reward in seen)
    first, second = (make_trajectory(key, "g", [SHORT] * n) for key, n in (("a", 2), ("b", 1)))
    first = replace(first, episode=replace(first.episode, transitions=moves[:2]))
    second = replace(second, episode=replace(second.episode, transitions=moves[2:]))
    batch = collate([first, second], ["g"])
    assert batch.env_rewards.tolist() == pytest.approx([-0.1, 2.0, 0.5])
    assert batch.observation_ids.tolist() == [0, 1, 0]


def test_a_failed_trajectory_keeps_its_number_and_gets_no_rows():
    trajectories = [
        make_trajectory("a", "g", [SHORT], failed=True),
        make_trajectory("b", "g", [LONG]),
        make_trajectory("c", "g", [], failed=True),
    ]
    batch = collate(trajectories, ["g"])
    assert batch.trajectory_index.tolist() == [1]
    assert batch.input_ids.tolist() == [[3, 4, 5, 6, 8, 9, 2]]


def test_the_oldest_snapshot_counts_for_a_batch():
    trajectories = [make_trajectory("a", "g", [SHORT], snapshot_id=k) for k in (2, 1, 2)]
    failed = make_trajectory("a", "g", [SHORT], snapshot_id=0, failed=True)
    assert collate([*trajectories, failed], ["g"]).snapshot_id == 1


def test_a_batch_without_steps_is_refused():
    with pytest.raises(ValueError, match="cannot collate 0 steps"):
        collate([make_trajectory("a", "g", [SHORT], failed=True)], ["g"])


def test_rows_are_selected_in_the_given_order():
    batch = make_scene().batch
    picked = batch.select(torch.tensor([3, 0, 3]))
    for name in ("input_ids", "response_mask", "trajectory_index", "step_index", "weights"):
        assert torch.equal(getattr(picked, name), getattr(batch, name)[torch.tensor([3, 0, 3])])
    assert picked.snapshot_id == batch.snapshot_id


@pytest.mark.parametrize("max_tokens", [1, 20, 37, 100, 10_000])
def test_micro_batches_hold_every_row_once_and_no_more_tokens_than_allowed(max_tokens):
    batch = make_scene().batch
    parts = list(micro_batches(batch, max_tokens))
    assert sorted(torch.cat(parts).tolist()) == list(range(len(batch)))
    lengths = batch.attention_mask.sum(1)
    for rows in parts:
        padded = len(rows) * int(lengths[rows].max())
        assert padded <= max_tokens or len(rows) == 1


def test_equal_rows_stand_side_by_side():
    batch = make_scene().batch
    doubled = batch.select(torch.arange(len(batch)).repeat(2))
    for rows in micro_batches(doubled, 40):
        ids = [tuple(row) for row in doubled.input_ids[rows].tolist()]
        assert all(ids.index(row) in (k, k - 1) for k, row in enumerate(ids))


def test_the_cut_into_micro_batches_does_not_depend_on_the_order_of_rows():
    batch = make_scene(seed=3).batch
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    cuts = [
        [sorted(map(tuple, b.input_ids[rows].tolist())) for rows in micro_batches(b, 40)]
        for b in (batch, batch.select(order))
    ]
    assert cuts[0] == cuts[1]
