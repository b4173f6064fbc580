"""Rehearsal: cloning updates between those of reinforcement learning."""

import pytest
import torch

from builders import make_learner
from istar_envs.errors import ConfigError
from istar_trainer.records import Step
from istar_trainer.rehearsal import Rehearsal

STEPS = [Step([3, 4, k], [k, 2], [0.0, 0.0]) for k in range(5, 15)]


def test_an_iteration_takes_its_updates_and_reports_their_mean_loss():
    learner = make_learner(lr=0.0)
    metrics = Rehearsal(lambda: STEPS, num_updates=3, batch_size=4, seed=0).learn(learner, iteration=0)
    assert len(learner.gradients) == 3
    assert list(metrics) == ["sft/loss"]
    uniform = torch.log(torch.tensor(float(learner.model.config.vocab_size)))
    assert metrics["sft/loss"] == pytest.approx(float(uniform), rel=0.2)


def test_without_rehearsal_nothing_moves():
    learner = make_learner()
    before = learner.snapshot()
    rehearsal = Rehearsal(lambda: pytest.fail("nobody asked"), num_updates=0, batch_size=4, seed=0)
    assert rehearsal.learn(learner, iteration=3) == {}
    assert all(torch.equal(before[name], value) for name, value in learner.snapshot().items())


def test_rehearsal_learns_the_demonstrations_by_heart():
    learner, rehearsal = (
        make_learner(lr=1e-2),
        Rehearsal(lambda: STEPS, num_updates=10, batch_size=10, seed=0),
    )
    first, *_, last = [rehearsal.learn(learner, iteration)["sft/loss"] for iteration in range(8)]
    assert last < first / 2


def test_the_draws_depend_on_seed_and_iteration_only_so_that_a_resumed_run_repeats_them():
    def weights(seed: int, iteration: int):
        learner = make_learner()
        Rehearsal(lambda: STEPS, num_updates=2, batch_size=3, seed=seed).learn(learner, iteration)
        return torch.cat([value.flatten() for value in learner.snapshot().values()])

    assert torch.equal(weights(0, 4), weights(0, 4))
    assert not torch.equal(weights(0, 4), weights(0, 5))
    assert not torch.equal(weights(0, 4), weights(1, 4))


def test_demonstrations_are_made_once_and_not_before_they_are_needed():
    calls: list[int] = []

    def show():
        calls.append(1)
        return STEPS

    rehearsal = Rehearsal(show, num_updates=1, batch_size=2, seed=0)
    assert not calls
    for iteration in range(2):
        rehearsal.learn(make_learner(), iteration)
    assert len(calls) == 1


def test_demonstrations_that_all_failed_are_an_error_that_says_what_to_change():
    with pytest.raises(ConfigError, match=r"no demonstration succeeded\. Raise warm_start\.episodes"):
        Rehearsal(list, num_updates=1, batch_size=2, seed=0).learn(make_learner(), iteration=0)
