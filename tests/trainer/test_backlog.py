"""Groups that are late: none is lost, none too old, and the update knows by whom each step was drawn."""

import math
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from slow_envs import make_player, random_mover

from builders import ScriptedSampler, make_trajectory
from istar_envs.errors import ConfigError
from istar_trainer import backlog as backlog_module
from istar_trainer.backlog import Backlog, lag_metrics
from istar_trainer.config import RolloutConfig, RunConfig
from istar_trainer.records import Group, Step
from istar_trainer.rollout import Player

STEP = Step([3], [4, 2], [-1.0, -1.0])
ITERATIONS = 4


class Pace:
    """After their first step, lets trajectories of the given groups be ready in one of so many rounds only.

    It stands for environments with slow calls, without a clock.
    """

    def __init__(self, player: Player, slow: dict[str, float]) -> None:
        self.rounds, self.slow = 0, slow
        self.calls = player._calls
        self.ended, player._calls.ended = player._calls.ended, self.ready
        self.held: list = []

    def ready(self) -> list:
        self.rounds += 1
        ready = [*self.held, *self.ended()]
        self.held = [a for a in ready if a.steps and self.rounds % self.slow.get(a.group_id, 1)]
        return [a for a in ready if a not in self.held]


def make_backlog(player: Player, *, iterations: int = ITERATIONS, **settings) -> Backlog:
    options = {"num_tasks": 3, "group_size": 2, "spare_tasks": 2, "max_lag": 2, **settings}
    return Backlog(player, RolloutConfig(**options), seed=0, iterations=iterations)


def rounds(
    backlog: Backlog, sampler: ScriptedSampler, first: int = 0, last: int = ITERATIONS
) -> Iterator[tuple[Group, ...]]:
    for iteration in range(first, last):
        sampler.load({}, iteration)
        yield backlog.play(iteration, sampler)


@pytest.fixture
def sampler(tiny_tokenizer) -> ScriptedSampler:
    return ScriptedSampler(tiny_tokenizer, random_mover)


def expected_ids(iterations: int = ITERATIONS) -> list[str]:
    return [f"{iteration}/{number}" for iteration in range(iterations) for number in range(3)]


@pytest.mark.parametrize("slow", [{}, {"0/1": 4}, {"0/0": 9, "1/1": 5, "2/0": 7}, {"1/0": 1000, "3/2": 50}])
def test_every_group_that_was_begun_is_in_exactly_one_batch(tiny_tokenizer, sampler, slow):
    player = make_player(tiny_tokenizer)
    Pace(player, slow)
    batches = list(rounds(make_backlog(player), sampler))
    assert [len(batch) for batch in batches] == [3] * ITERATIONS
    assert sorted(group.id for batch in batches for group in batch) == expected_ids()
    assert all(not t.failed for batch in batches for group in batch for t in group.trajectories)


def test_a_late_group_is_kept_and_says_who_drew_each_step(tiny_tokenizer, sampler):
    player = make_player(tiny_tokenizer)
    Pace(player, {"0/1": 4})
    batches = list(rounds(make_backlog(player), sampler))
    (at,) = [n for n, batch in enumerate(batches) if "0/1" in {group.id for group in batch}]
    assert at in (1, 2)
    (late,) = [group for group in batches[at] if group.id == "0/1"]
    for trajectory in late.trajectories:
        ids = trajectory.snapshot_ids
        assert len(ids) == len(trajectory.steps)
        assert trajectory.snapshot_id == ids[0] == 0
        assert list(ids) == sorted(ids)
    assert {n for t in late.trajectories for n in t.snapshot_ids} > {0}
    assert not any(t.mixed_snapshot_ids for t in batches[0][0].trajectories)


@pytest.mark.parametrize("max_lag", [1, 2])
def test_no_step_is_older_than_the_largest_lag(tiny_tokenizer, sampler, max_lag):
    player = make_player(tiny_tokenizer)
    Pace(player, {"0/0": 1000, "0/1": 300, "1/2": 1000})
    lags = []
    for now, batch in enumerate(rounds(make_backlog(player, max_lag=max_lag), sampler)):
        lags += [now - n for group in batch for t in group.trajectories for n in t.snapshot_ids]
    assert max(lags) == max_lag


def test_draws_and_levels_are_those_of_a_run_without_late_groups(tiny_tokenizer, sampler):
    player = make_player(tiny_tokenizer)
    Pace(player, {"0/1": 4, "2/2": 6})
    late = {group.id: group for batch in rounds(make_backlog(player), sampler) for group in batch}
    one_by_one = Backlog(
        make_player(tiny_tokenizer),
        SimpleNamespace(num_tasks=3, group_size=2, spare_tasks=0, max_lag=0, temperature=1.0),
        seed=0,
        iterations=ITERATIONS,
    )
    for batch in rounds(one_by_one, sampler):
        for group in batch:
            ours = late[group.id].trajectories
            assert [t.episode for t in ours] == [t.episode for t in group.trajectories]


def test_no_group_is_begun_that_the_run_will_not_learn_from(tiny_tokenizer, sampler):
    backlog = make_backlog(make_player(tiny_tokenizer))
    list(rounds(backlog, sampler))
    assert backlog.state() == {"open": [], "next": 3 * ITERATIONS}


def test_groups_that_were_in_play_are_played_anew_after_a_resume(tiny_tokenizer, sampler):
    player = make_player(tiny_tokenizer)
    Pace(player, {"0/1": 1000, "1/1": 1000})
    before = make_backlog(player)
    first = list(rounds(before, sampler, 0, 2))
    state = before.state()
    assert len(state["open"]) == 2
    assert state["next"] == 8
    after = make_backlog(make_player(tiny_tokenizer))
    after.load_state(state)
    assert after.state() == state
    rest = list(rounds(after, sampler, 2))
    assert sorted(g.id for batch in [*first, *rest] for g in batch) == expected_ids()
    assert all(t.snapshot_id >= 2 for batch in rest for group in batch for t in group.trajectories)


def test_lags_and_late_trajectories_are_counted():
    def group(key: str, *made: tuple[int, int]) -> Group:
        return Group(
            key,
            0,
            tuple(
                make_trajectory(f"{key}/{n}", key, [STEP] * steps, snapshot_id=snapshot)
                for n, (snapshot, steps) in enumerate(made)
            ),
        )

    groups = [group("a", (4, 3), (5, 1)), group("b", (5, 1), (5, 2))]
    # steps drawn by 4: 3, by 5: 4; returns are -0.1 a step: late -0.3, others -0.4 / 3
    found = lag_metrics(groups, 5, max_lag=1)
    assert found["rollout/snapshot_lag"] == pytest.approx(3 / 7)
    assert found["rollout/snapshot_lag_max"] == 1
    assert found["rollout/late_groups"] == 1
    assert found["rollout/late_steps_gap"] == pytest.approx(3 - 4 / 3)
    assert found["rollout/late_return_gap"] == pytest.approx(-0.3 + 0.4 / 3)
    assert lag_metrics(groups[1:], 5, max_lag=0) == {"rollout/snapshot_lag": 0}
    assert math.isnan(lag_metrics(groups[1:], 5, max_lag=1)["rollout/late_return_gap"])


def test_processes_must_be_able_to_share_the_groups(tiny_tokenizer, monkeypatch):
    monkeypatch.setattr(backlog_module, "num_ranks", lambda: 2)
    with pytest.raises(ConfigError, match=r"num_tasks: 3 and rollout\.spare_tasks: 2 .* by 2 processes"):
        make_backlog(make_player(tiny_tokenizer))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout": {"max_lag": 1}}, "max_lag: 1 with spare_tasks: 0"),
        ({"rollout": {"spare_tasks": 1}}, "max_lag: 0 with spare_tasks: 1"),
        ({"rollout": {"max_lag": 1, "spare_tasks": 17}}, "at most num_tasks: 16"),
        ({"rollout": {"max_lag": 1, "spare_tasks": 4}}, "needs algorithm.loss.correction"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        RunConfig.model_validate(changes)


def test_late_groups_do_not_go_with_replaced_ones():
    rollout = {"max_lag": 1, "spare_tasks": 4}
    loss = {"correction": {"weight": "token"}}
    RunConfig.model_validate({"rollout": rollout, "algorithm": {"type": "rloo", "loss": loss}})
    with pytest.raises(ValueError, match="cannot go with algorithm"):
        RunConfig.model_validate({"rollout": rollout, "algorithm": {"type": "dapo", "loss": loss}})
    loss = {"correction": {"weight": None, "reject": None}}
    with pytest.raises(ValueError, match="needs algorithm"):
        RunConfig.model_validate({"rollout": rollout, "algorithm": {"type": "rloo", "loss": loss}})
