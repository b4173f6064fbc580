"""What an iteration leaves behind: named numbers and trajectories with their credit."""

import json
import math
from dataclasses import replace

import pytest
import torch

from builders import Scene, make_learner, make_scene, make_trajectory
from istar_trainer.advantages import spread_over_tokens
from istar_trainer.algorithms import OutcomeAdvantages
from istar_trainer.collect import Played
from istar_trainer.credits import StepCredit
from istar_trainer.credits.none import NoCredit
from istar_trainer.metrics import METRICS
from istar_trainer.prm import Pairs
from istar_trainer.recording import IterationRecord, credit_records, iteration_metrics
from istar_trainer.records import Group
from istar_trainer.update import PolicyBatch


def make_record(scene: Scene, *, pairs: Pairs | None = None) -> IterationRecord:
    rows = len(scene.batch)
    rewards = torch.arange(rows).float()
    step_part = 0.5 * rewards
    outcome_part = 10.0 * torch.arange(len(scene.outcomes)).float()
    mask = scene.batch.response_mask
    outcome_tokens, step_tokens = (
        spread_over_tokens(values, mask) for values in (outcome_part[scene.batch.trajectory_index], step_part)
    )
    old_logprobs = make_learner().logprobs(scene.batch)
    return IterationRecord(
        iteration=3,
        played=Played(scene.groups, scene.outcomes, {"rollout/generation_batches": 2.0}),
        pairs=scene.pairs if pairs is None else pairs,
        data=PolicyBatch(scene.batch, old_logprobs, outcome_tokens + step_tokens, scene.batch.weights),
        outcome_part=OutcomeAdvantages(outcome_tokens, outcome_part),
        credit=StepCredit(step_tokens, rewards, 2 * rewards, {"prm/skipped": 0.0}),
        update={"policy/loss": 1.5},
    )


def test_every_metric_is_registered_and_finite():
    metrics = iteration_metrics(make_record(make_scene()))
    assert metrics.keys() <= METRICS.keys()
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["policy/loss"] == 1.5
    assert metrics["prm/skipped"] == 0.0


def test_counts_by_hand():
    scene = make_scene()
    metrics = iteration_metrics(make_record(scene))
    trajectories = [t for g in scene.groups for t in g.trajectories]
    steps = [len(t.steps) for t in trajectories]
    assert metrics["env/success_rate"] == 3 / 8
    assert metrics["rollout/trajectories"] == 8
    assert metrics["rollout/steps"] == sum(steps) == len(scene.batch)
    assert metrics["rollout/tokens_generated"] == int(scene.batch.response_mask.sum())
    assert metrics["env/episode_steps_mean"] == pytest.approx(sum(steps) / 8)
    assert metrics["env/return_mean"] == pytest.approx(-0.1 * sum(steps) / 8)
    assert metrics["pairs/num"] == 4
    assert metrics["pairs/group_frac"] == pytest.approx(2 / 3)
    assert metrics["judge/outcome_mean"] == 3 / 8
    assert metrics["judge/no_verdict_frac"] == 0
    assert metrics["env/invalid_rate"] == 0
    assert 0 < metrics["adv/share_step"] < 1


def test_the_share_of_the_step_part_is_0_without_any_advantage():
    record = make_record(make_scene())
    nothing = NoCredit().assign(record.data.batch, record.data.old_logprobs, record.outcomes, record.pairs)
    data = replace(record.data, advantages=torch.zeros_like(record.data.advantages))
    assert iteration_metrics(replace(record, data=data, credit=nothing))["adv/share_step"] == 0.0


def test_broken_trajectories_are_counted_but_enter_no_mean():
    scene = make_scene()
    broken = make_trajectory("g2/x", "g2", [], failed=True)
    groups = (*scene.groups[:2], Group("g2", 0, (*scene.groups[2].trajectories, broken)))
    record = make_record(scene)
    metrics = iteration_metrics(replace(record, played=replace(record.played, groups=groups)))
    assert metrics["rollout/failed_frac"] == pytest.approx(1 / 9)
    assert metrics["env/success_rate"] == 3 / 8


def test_a_metric_of_nobody_is_not_a_number():
    scene = make_scene(successes=((False, False),))
    metrics = iteration_metrics(make_record(scene, pairs=Pairs.of([], [])))
    assert math.isnan(metrics["env/episode_steps_success"])
    assert metrics["pairs/group_frac"] == 0


def test_a_success_and_a_failure_of_each_task_are_shown_first():
    record = make_record(make_scene())
    shown = [r["trajectory_id"] for r in credit_records(record, 4)]
    assert shown == ["g0/0", "g0/1", "g1/0", "g1/2"]
    assert [r["trajectory_id"] for r in credit_records(record, 0)] == []
    assert len(list(credit_records(record, 100))) == 8


def test_when_one_kind_is_missing_the_other_is_shown():
    scene = make_scene(successes=((False, False, True),))
    shown = [r["trajectory_id"] for r in credit_records(make_record(scene), 3)]
    assert shown == ["g0/2", "g0/0", "g0/1"]


def test_each_step_is_shown_with_its_own_credit_in_whatever_order_the_rows_are():
    scene = make_scene()
    expected = list(credit_records(make_record(scene), 8))
    order = torch.randperm(len(scene.batch), generator=torch.Generator().manual_seed(0))
    record = make_record(scene)
    shuffled = replace(
        record,
        data=PolicyBatch(
            scene.batch.select(order),
            record.data.old_logprobs[order],
            record.data.advantages[order],
            record.data.weights[order],
        ),
        credit=StepCredit(
            record.credit.advantages[order],
            record.credit.step_rewards[order],
            record.credit.attributed[order],
        ),
    )
    assert list(credit_records(shuffled, 8)) == expected
    first = expected[0]
    assert first["iteration"] == 3
    assert first["outcome"] == 1.0
    for number, step in enumerate(first["steps"]):
        assert step == {
            "implicit_reward": number,
            "credit": 2 * number,
            "step_advantage": 0.5 * number,
            "advantage": first["outcome_advantage"] + 0.5 * number,
        }
    assert len(first["steps"]) == len(first["episode"]["transitions"])
    json.dumps(expected)


def test_a_trajectory_without_a_verdict_has_no_outcome():
    scene = make_scene()
    scene.outcomes.has_outcome[0] = False
    records = {r["trajectory_id"]: r for r in credit_records(make_record(scene), 8)}
    assert records["g0/0"]["outcome"] is None
    assert records["g0/1"]["outcome"] == 0.0
