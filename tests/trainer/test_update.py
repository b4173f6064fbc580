"""One batch into the policy: the first step is plain REINFORCE, rows of weight 0 do not exist."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from builders import Scene, assert_same_tensors, gradients, make_learner, make_lm, make_scene
from istar_trainer.advantages import spread_over_tokens
from istar_trainer.config import LearnerConfig
from istar_trainer.config_algorithms import KlConfig, LossConfig
from istar_trainer.errors import NonFiniteLoss
from istar_trainer.learner import TorchLearner
from istar_trainer.metrics import METRICS
from istar_trainer.model import forward
from istar_trainer.update import PolicyBatch, deal, token_rewards, update_policy

AGGREGATIONS = ["step_mean", "token_mean", "trajectory_mean", "constant"]


def make_data(scene: Scene, learner: TorchLearner, seed: int = 0) -> PolicyBatch:
    """Advantages differ from token to token."""
    mask = scene.batch.response_mask
    advantages = torch.where(
        mask, torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed)), 0.0
    )
    return PolicyBatch(scene.batch, learner.logprobs(scene.batch), advantages, scene.batch.weights)


def run(
    learner: TorchLearner, data: PolicyBatch, *, seed: int = 0, epochs: int = 1, minibatches: int = 1, **loss
):
    return update_policy(
        learner, data, LossConfig(**loss), LearnerConfig(epochs=epochs, minibatches=minibatches), seed=seed
    )


def reinforce_weights(scene: Scene, aggregation: str) -> Tensor:
    """Weight of each token in the loss, by the definition of each aggregation."""
    batch = scene.batch
    mask = batch.response_mask.double()
    tokens = mask.sum(1)
    rows = torch.bincount(batch.trajectory_index).double()[batch.trajectory_index]
    num = len(scene.outcomes)
    per_row = {
        "step_mean": 1 / tokens / len(batch),
        "token_mean": 1 / tokens.sum().expand(len(batch)),
        "trajectory_mean": 1 / tokens / rows / num,
        "constant": torch.full((len(batch),), 1 / (5 * num), dtype=torch.float64),
    }
    return mask * per_row[aggregation][:, None]


def test_the_learning_rate_falls_in_a_straight_line_to_its_last_share():
    scene, learner = make_scene(), make_learner()
    data, base = make_data(scene, learner), learner.optimization.lr
    config = LearnerConfig(lr=base, final_lr_frac=0.2)
    for iteration, share in [(0, 1.0), (50, 0.6), (100, 0.2)]:
        assert config.lr_share(iteration, 100) == pytest.approx(share)
        metrics = update_policy(learner, data, LossConfig(), config, seed=0, lr_share=share)
        assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(base * share)
        assert metrics["policy/lr"] == pytest.approx(base * share)


def test_the_learning_rate_can_rise_first():
    config = LearnerConfig(final_lr_frac=0.5, warm_up_iterations=3)
    shares = [config.lr_share(iteration, 8) for iteration in (0, 1, 2, 3, 4, 7)]
    falling = [1 - 0.5 * iteration / 8 for iteration in (0, 1, 2, 3, 4, 7)]
    assert shares == pytest.approx([f * r for f, r in zip(falling, (0.25, 0.5, 0.75, 1, 1, 1), strict=True)])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("micro_batch_tokens", [25, 10_000])
def test_the_first_step_is_that_of_reinforce(aggregation, micro_batch_tokens):
    scene, learner = make_scene(), make_learner(micro_batch_tokens=micro_batch_tokens)
    data = make_data(scene, learner)
    constant = {"constant_length": 5} if aggregation == "constant" else {}
    metrics = run(learner, data, aggregation=aggregation, **constant)
    assert metrics["ratio/mean"] == metrics["ratio/max"] == 1.0
    assert metrics["ratio/first_minibatch_max_dev"] == 0.0
    assert metrics["ratio/first_minibatch_clip_frac"] == 0.0
    model = make_lm()
    logprobs = forward(model, scene.batch, torch.arange(len(scene.batch)), temperature=1.0).logprobs()
    weights = reinforce_weights(scene, aggregation)
    loss = -(weights * data.advantages * logprobs).sum()
    loss.backward()
    assert_same_tensors(learner.gradients[0], gradients(model), atol=1e-5)
    value = -float((weights * data.advantages).sum())
    assert metrics["policy/loss"] == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("ratio", ["token", "step_product", "step_geo"])
def test_every_ratio_form_starts_at_1_and_leaves_it_in_later_minibatches(ratio):
    scene, learner = make_scene(), make_learner(lr=1e-2)
    metrics = run(learner, make_data(scene, learner), ratio=ratio, minibatches=3, epochs=2)
    # a minibatch is packed otherwise than the batch that was scored, so the last digit may differ
    assert metrics["ratio/first_minibatch_max_dev"] < 1e-6
    assert metrics["ratio/max"] > 1.01
    assert len(learner.gradients) == 6


def test_every_epoch_deals_anew():
    scene, learner = make_scene(), make_learner(lr=0.0)
    run(learner, make_data(scene, learner), minibatches=2, epochs=2)
    first, _, third, _ = (gradient["model.embed_tokens.weight"] for gradient in learner.gradients)
    assert not torch.allclose(first, third, rtol=0, atol=1e-6)


def test_rows_of_weight_0_change_nothing():
    scene = make_scene()
    bare, filled = make_learner(), make_learner()
    data = make_data(scene, bare)
    rows = torch.tensor([*range(len(scene.batch)), 0, 3])
    weights = data.weights[rows].clone()
    weights[-2:] = 0
    advantages = data.advantages[rows].clone()
    advantages[-2:] = 1e6
    extended = PolicyBatch(scene.batch.select(rows), data.old_logprobs[rows], advantages, weights)
    for minibatches in (1, 3):
        expected = run(bare, data, minibatches=minibatches)
        assert run(filled, extended, minibatches=minibatches) == expected
    assert_same_tensors(filled.snapshot(), bare.snapshot())


def test_a_trajectory_without_weight_has_no_part_in_the_update():
    whole, scene = make_scene(), make_scene(successes=((True, False, False), (True, True, False)))
    learner, other = make_learner(), make_learner()
    expected = run(learner, make_data(scene, learner))
    data = make_data(whole, other)
    advantages = data.advantages.clone()
    shared = make_data(scene, learner)
    advantages[: len(scene.batch)] = 0.0
    advantages[: len(scene.batch)][whole.batch.response_mask[: len(scene.batch)]] = shared.advantages[
        scene.batch.response_mask
    ]
    weights = (whole.batch.group_index < 2).float()
    old = make_learner().logprobs(whole.batch)
    metrics = run(other, PolicyBatch(whole.batch, old, advantages, weights))
    assert metrics["policy/loss"] == pytest.approx(expected["policy/loss"], abs=1e-6)
    assert_same_tensors(other.gradients[0], learner.gradients[0], atol=1e-6)


def test_a_batch_without_any_weight_moves_nothing_even_with_weight_decay():
    scene, learner = make_scene(), make_learner(weight_decay=0.5, lr=0.1)
    data = make_data(scene, learner)
    before = learner.snapshot()
    metrics = run(
        learner, PolicyBatch(data.batch, data.old_logprobs, data.advantages, torch.zeros(len(scene.batch)))
    )
    assert_same_tensors(learner.snapshot(), before)
    assert metrics["policy/loss"] == 0
    assert metrics["policy/grad_norm"] == 0


def test_order_of_rows_and_size_of_micro_batches_change_only_the_rounding():
    scene = make_scene()
    reference = make_learner(lr=1e-3)
    data = make_data(scene, reference)
    run(reference, data, minibatches=3)
    order = torch.randperm(len(scene.batch), generator=torch.Generator().manual_seed(1))
    shuffled = PolicyBatch(
        scene.batch.select(order), data.old_logprobs[order], data.advantages[order], data.weights[order]
    )
    learner = make_learner(lr=1e-3, micro_batch_tokens=30)
    run(learner, shuffled, minibatches=3)
    assert len(learner.gradients) == len(reference.gradients) == 3
    assert_same_tensors(learner.gradients[0], reference.gradients[0], atol=1e-6)


def test_learning_rate_0_moves_nothing():
    scene, learner = make_scene(), make_learner(lr=0.0)
    before = learner.snapshot()
    metrics = run(learner, make_data(scene, learner), minibatches=4)
    assert metrics["ratio/max"] == pytest.approx(1.0, abs=1e-6)  # the packing of minibatches differs
    assert metrics["ratio/clip_low_frac"] == metrics["ratio/clip_high_frac"] == 0
    assert_same_tensors(learner.snapshot(), before)


def test_favoured_replies_become_more_likely_and_others_less():
    scene, learner = make_scene(), make_learner(lr=1e-2)
    before = learner.logprobs(scene.batch).sum(1)
    advantages = torch.where(scene.batch.step_index == 0, 0.0, 1.0)
    advantages[scene.outcomes.successes[scene.batch.trajectory_index]] *= -1
    tokens = spread_over_tokens(advantages, scene.batch.response_mask)
    data = PolicyBatch(scene.batch, learner.logprobs(scene.batch), tokens, scene.batch.weights)
    for _ in range(5):
        run(learner, data)
    change = learner.logprobs(scene.batch).sum(1) - before
    assert change[advantages > 0].mean() > 0
    assert change[advantages < 0].mean() < 0


def test_a_step_beyond_the_clip_range_has_no_gradient():
    scene, learner = make_scene(), make_learner()
    old = learner.logprobs(scene.batch)
    mask = scene.batch.response_mask
    data = PolicyBatch(scene.batch, torch.where(mask, old - 1, 0.0), mask.float(), scene.batch.weights)
    metrics = run(learner, data)
    assert metrics["ratio/clip_high_frac"] == 1.0
    assert metrics["policy/grad_norm"] == 0.0
    assert metrics["policy/loss"] == pytest.approx(-1.2, abs=1e-6)


def test_the_update_leaves_other_models_alone():
    scene, learner, prm = make_scene(), make_learner(), make_learner(seed=1)
    before = prm.snapshot()
    run(learner, make_data(scene, learner))
    assert_same_tensors(prm.snapshot(), before)
    assert all(p.grad is None for p in prm.model.parameters())


def test_an_advantage_that_is_no_number_stops_the_update_before_any_weight_moved():
    scene, learner = make_scene(), make_learner()
    data = make_data(scene, learner)
    data.advantages[0, scene.batch.response_mask[0]] = torch.nan
    before = learner.snapshot()
    with pytest.raises(NonFiniteLoss, match=r"loss is nan on .* rows of snapshot 0.*not changed"):
        run(learner, data)
    assert_same_tensors(learner.snapshot(), before)
    assert all(p.grad is None for p in learner.model.parameters())


def test_groups_are_dealt_whole_and_each_exactly_once():
    index = torch.tensor([0, 0, 1, 1, 1, 2, 3, 4, 4])
    parts = list(deal(index, 3, seed=5))
    assert len(parts) == 3
    assert torch.stack(parts).sum(0).eq(1).all()
    for part in parts:
        assert set(index[part].tolist()).isdisjoint(index[~part].tolist())


def test_dealing_depends_on_the_seed_but_not_on_the_order_of_rows():
    index = torch.arange(12).repeat_interleave(2)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    first, again = (torch.stack(list(deal(index, 4, seed=1))) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(torch.stack(list(deal(index[order], 4, seed=1))), first[:, order])
    assert not torch.equal(torch.stack(list(deal(index, 4, seed=2))), first)


def test_there_are_never_more_parts_than_groups():
    assert len(list(deal(torch.tensor([0, 0, 7]), 5, seed=0))) == 2


def test_every_value_has_a_registered_name():
    scene, learner = make_scene(), make_learner()
    assert run(learner, make_data(scene, learner)).keys() <= METRICS.keys()


def loss_gradient(scene: Scene, data: PolicyBatch, extra) -> dict[str, Tensor]:
    """Gradient of the plain loss plus something per token, by autograd on the whole batch."""
    model = make_lm()
    out = forward(model, scene.batch, torch.arange(len(scene.batch)), temperature=1.0)
    per_token = extra(out) - data.advantages * (out.logprobs() - data.old_logprobs).exp()
    (reinforce_weights(scene, "step_mean") * per_token).sum().backward()
    return gradients(model)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_penalty_on_leaving_the_start_policy_pulls_the_loss(estimator):
    scene, learner, start = make_scene(), make_learner(micro_batch_tokens=40), make_learner(seed=5)
    data = replace(make_data(scene, learner), ref_logprobs=start.logprobs(scene.batch))
    kl = {"coef": 0.5, "estimator": estimator}
    run(learner, data, kl=kl)

    def penalty(out):
        d = (out.logprobs() - data.ref_logprobs).clamp(-10, 10)
        return 0.5 * {"k1": d, "k2": 0.5 * d.square(), "k3": (-d).exp() - 1 + d}[estimator]

    assert_same_tensors(learner.gradients[0], loss_gradient(scene, data, penalty), atol=1e-4)
    other = make_learner()
    run(other, data, kl={**kl, "place": "reward"})
    plain = make_learner()
    run(plain, data)
    assert_same_tensors(other.gradients[0], plain.gradients[0])


def test_the_entropy_bonus_pulls_the_loss():
    scene, learner = make_scene(), make_learner(micro_batch_tokens=40)
    data = make_data(scene, learner)
    run(learner, data, entropy_coef=0.3)
    expected = loss_gradient(scene, data, lambda out: -0.3 * out.entropy())
    assert_same_tensors(learner.gradients[0], expected, atol=1e-4)


def test_a_penalty_in_the_reward_is_what_tokens_earn():
    scene, learner, start = make_scene(), make_learner(), make_learner(seed=5)
    old, ref = learner.logprobs(scene.batch), start.logprobs(scene.batch)
    in_reward = KlConfig(coef=0.1, estimator="k1", place="reward")
    torch.testing.assert_close(token_rewards(in_reward, scene.batch, old, ref), -0.1 * (old - ref))
    for kl in (None, KlConfig(place="loss")):
        assert token_rewards(kl, scene.batch, old, ref).eq(0).all()
