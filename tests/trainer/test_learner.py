"""A model with its optimizer: accumulation, clipping, and refusing what is not finite."""

import copy

import pytest
import torch

from builders import assert_same_tensors, gradients, make_learner, make_scene
from istar_trainer.errors import NonFiniteLoss


def mean_loss(out, _rows):
    return -out.logprobs().sum() / 40


def test_values_of_all_rows_come_back_each_in_its_place():
    scene, learner = make_scene(), make_learner(micro_batch_tokens=25)
    values = learner.token_values(
        scene.batch, lambda _out, rows: rows[:, None].expand(-1, scene.batch.input_ids.shape[1]).float()
    )
    assert values[:, 0].tolist() == list(range(len(scene.batch)))


def test_the_size_of_micro_batches_changes_only_the_rounding():
    scene = make_scene()
    found = []
    for tokens in (1, 30, 10_000):
        learner = make_learner(micro_batch_tokens=tokens, layers=2)
        value = learner.backward(scene.batch, mean_loss)
        found.append((value, gradients(learner.model), learner.logprobs(scene.batch)))
    for value, gradient, logprobs in found[1:]:
        assert value == pytest.approx(found[0][0], abs=1e-5)
        assert_same_tensors(gradient, found[0][1], atol=1e-5)
        torch.testing.assert_close(logprobs, found[0][2], rtol=0, atol=1e-5)


def test_a_loss_over_some_rows_gets_their_numbers_in_the_whole_batch():
    scene, learner = make_scene(), make_learner(micro_batch_tokens=25)
    chosen, seen = torch.tensor([7, 2, 11]), []

    def loss(out, rows):
        seen.extend(rows.tolist())
        return -(out.logprobs() * (rows[:, None] + 1)).sum()

    value = learner.backward(scene.batch, loss, chosen)
    assert sorted(seen) == [2, 7, 11]
    expected = -(learner.logprobs(scene.batch)[chosen].sum(1) * (chosen + 1)).sum()
    assert value == pytest.approx(float(expected), abs=1e-4)  # some 100 nats


def test_scoring_builds_no_graph():
    scene, learner = make_scene(), make_learner()
    assert not learner.logprobs(scene.batch).requires_grad


def test_a_step_clips_the_gradient_and_returns_its_norm_before():
    scene, learner = make_scene(), make_learner(grad_clip=1e-3)
    learner.backward(scene.batch, mean_loss)
    squares = sum(float(g.double().square().sum()) for g in gradients(learner.model).values())
    used: list[float] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: used.append(sum(float(g.square().sum()) for g in gradients(learner.model).values()))
    )
    assert learner.step() == pytest.approx(squares**0.5, rel=1e-5)
    assert used[0] ** 0.5 == pytest.approx(1e-3, rel=1e-3)
    assert gradients(learner.model) == {}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite_is_refused_and_nothing_moves(bad):
    scene, learner = make_scene(), make_learner()
    before = learner.snapshot()
    with pytest.raises(NonFiniteLoss, match=r"snapshot 0.*weights were not changed"):
        learner.backward(scene.batch, lambda out, rows: mean_loss(out, rows) * bad)
    assert gradients(learner.model) == {}
    assert_same_tensors(learner.snapshot(), before)


def test_a_gradient_that_is_not_finite_is_refused_and_nothing_moves():
    scene, learner = make_scene(), make_learner()
    learner.backward(scene.batch, mean_loss)
    next(learner.model.parameters()).grad.fill_(torch.nan)
    before = learner.snapshot()
    with pytest.raises(NonFiniteLoss, match="gradient norm is nan"):
        learner.step()
    assert gradients(learner.model) == {}
    assert_same_tensors(learner.snapshot(), before)
    assert learner.state()["state"] == {}


def test_weights_and_optimizer_state_restore_a_learner_exactly():
    scene, learner = make_scene(), make_learner(lr=1e-2, weight_decay=0.1)
    learner.backward(scene.batch, mean_loss)
    learner.step()
    kept = learner.snapshot(), copy.deepcopy(learner.state())
    learner.backward(scene.batch, mean_loss)
    learner.step()
    other = make_learner(seed=1, lr=1e-2, weight_decay=0.1)
    other.load(kept[0])
    other.load_state(kept[1])
    other.backward(scene.batch, mean_loss)
    other.step()
    assert_same_tensors(other.snapshot(), learner.snapshot())


def test_a_snapshot_does_not_follow_the_weights():
    scene, learner = make_scene(), make_learner(lr=1e-2)
    before = learner.snapshot()
    learner.backward(scene.batch, mean_loss)
    learner.step()
    assert any(not torch.equal(before[name], value) for name, value in learner.snapshot().items())


def test_frozen_parameters_stay_as_they_are():
    learner = make_learner()
    model = learner.model
    frozen = model.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    other = type(learner)(model, learner.optimization, temperature=1.0, micro_batch_tokens=1000)
    held = {id(p) for group in other.optimizer.param_groups for p in group["params"]}
    assert id(frozen) not in held
    assert len(held) == len(list(model.parameters())) - 1
