"""The implicit PRM on a tiny language model: exact gradients, and what may and may not move."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from builders import (
    FLOAT32,
    VOCAB,
    RecordingLearner,
    Scene,
    assert_same_tensors,
    gradients,
    make_learner,
    make_lm,
    make_scene,
    make_trajectory,
)
from istar_judges.pairs import PreferencePair
from istar_trainer.batch import StepBatch, collate
from istar_trainer.config_credits import PrmConfig
from istar_trainer.prm import ImplicitPrm, Labels, Pairs
from istar_trainer.records import Step
from istar_trainer.weights import load_weights

SCORES = ["sum", "mean", "centered_sum", "token_norm"]
NO_PAIRS = Pairs.of([], [])


def make_prm(
    policy: RecordingLearner, *, with_centers: bool = False, prm_seed: int = 1, **options
) -> tuple[ImplicitPrm, RecordingLearner]:
    """A PRM whose weights differ from the policy's unless ``prm_seed`` is 0."""
    names = ("lr", "weight_decay", "grad_clip", "micro_batch_tokens")
    learner = make_learner(seed=prm_seed, **{k: options.pop(k) for k in names if k in options})
    return ImplicitPrm(learner, policy, PrmConfig(**options), with_centers=with_centers), learner


def update(
    prm: ImplicitPrm, scene: Scene, old_logprobs: Tensor, pairs: Pairs | None = None
) -> dict[str, float]:
    scores = prm.score(scene.batch, old_logprobs)
    chosen = scene.pairs if pairs is None else pairs
    return prm.update(scene.batch, old_logprobs, chosen, len(scene.outcomes), scores)


def response_logits(model: nn.Module, step: Step) -> Tensor:
    ids = torch.tensor([[*step.prompt_ids, *step.response_ids]])
    return model(input_ids=ids).logits[0, len(step.prompt_ids) - 1 : -1].log_softmax(-1)


def monolithic_scores(model: nn.Module, old: nn.Module, scene: Scene, *, score: str, beta: float) -> Tensor:
    """The score of every trajectory, step by step, as spec §1.1 writes it."""
    totals = []
    for trajectory in (t for g in scene.groups for t in g.trajectories):
        values, num_tokens = [], 0
        for step in trajectory.steps:
            new_all, old_all = response_logits(model, step), response_logits(old, step).detach()
            drawn = torch.tensor(step.response_ids)[:, None]
            ratios = new_all.gather(1, drawn) - old_all.gather(1, drawn)
            center = (old_all.exp() * (new_all - old_all)).sum() if score == "centered_sum" else 0.0
            values.append(beta * (ratios.sum() - center))
            num_tokens += len(drawn)
        divisor = {"mean": len(values), "token_norm": num_tokens}.get(score, 1)
        totals.append(torch.stack(values).sum() / divisor)
    return torch.stack(totals)


def monolithic_loss(model: nn.Module, old: nn.Module, scene: Scene, *, score: str, beta: float) -> Tensor:
    """The pair loss in one piece, pair by pair, as spec §1.2 writes it."""
    totals, pairs = monolithic_scores(model, old, scene, score=score, beta=beta), scene.pairs
    margins = totals[pairs.preferred] - totals[pairs.rejected]
    return -(pairs.weights * F.logsigmoid(margins)).sum()


def pair_margins(rewards: Tensor, scene: Scene) -> Tensor:
    totals = torch.zeros(len(scene.outcomes)).index_add(0, scene.batch.trajectory_index, rewards)
    return totals[scene.pairs.preferred] - totals[scene.pairs.rejected]


@pytest.mark.parametrize("micro_batch_tokens", [25, 10_000])
@pytest.mark.parametrize("score", SCORES)
def test_two_passes_give_the_gradient_of_the_loss_in_one_piece_at_every_update(score, micro_batch_tokens):
    scene, policy = make_scene(), make_learner()
    prm, learner = make_prm(
        policy, score=score, beta=0.5, updates_per_iteration=3, micro_batch_tokens=micro_batch_tokens, lr=1e-2
    )
    metrics = update(prm, scene, policy.logprobs(scene.batch))
    model = make_lm()
    assert len(learner.gradients) == 3
    for number, (weights, gradient) in enumerate(zip(learner.weights, learner.gradients, strict=True)):
        load_weights(model, weights)
        model.zero_grad()
        loss = monolithic_loss(model, policy.model, scene, score=score, beta=0.5)
        loss.backward()
        expected = gradients(model)
        size = max(float(g.abs().max()) for g in expected.values())
        assert_same_tensors(gradient, expected, atol=1e-4 * size)  # fp32 sums over some 50 tokens
        if number == 0:
            assert metrics["prm/loss"] == pytest.approx(loss.item(), abs=FLOAT32)


def test_a_prm_equal_to_the_policy_rewards_nothing_and_loses_log_2():
    scene, policy = make_scene(), make_learner()
    prm, _ = make_prm(policy, prm_seed=0, with_centers=True)
    scores = prm.score(scene.batch, policy.logprobs(scene.batch))
    assert scores.rewards.eq(0).all()
    assert scores.log_ratios.eq(0).all()
    assert scores.centers.abs().max() < 1e-7  # β times the rounding of a sum of 24 probabilities
    metrics = update(prm, scene, policy.logprobs(scene.batch))
    assert metrics["prm/loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert metrics["prm/pair_acc"] == 0.5
    assert metrics["prm/saturation"] == 0.5
    assert metrics["prm/margin"] == 0


@pytest.mark.parametrize("score", SCORES)
def test_the_weights_move_and_small_steps_lower_the_loss(score):
    scene, policy = make_scene(), make_learner()
    prm, learner = make_prm(policy, score=score, beta=0.5, lr=1e-4)
    before, old_logprobs = learner.snapshot(), policy.logprobs(scene.batch)
    losses = [update(prm, scene, old_logprobs) for _ in range(4)]
    assert losses[0]["prm/grad_norm"] > 0
    assert any(not torch.equal(before[name], value) for name, value in learner.snapshot().items())
    values = [metrics["prm/loss"] for metrics in losses]
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0]


def test_without_pairs_nothing_moves_even_with_weight_decay():
    scene, policy = make_scene(), make_learner()
    prm, learner = make_prm(policy, weight_decay=0.5, lr=0.1)
    before, state = learner.snapshot(), learner.state()
    assert update(prm, scene, policy.logprobs(scene.batch), NO_PAIRS) == {"prm/skipped": 1.0}
    assert_same_tensors(learner.snapshot(), before)
    assert learner.state() == state
    assert not learner.gradients


def test_a_group_without_pairs_has_no_part_in_the_gradient():
    policy = make_learner()
    wins = ((True, False, False), (True, True, False), (False, False))
    found = []
    for successes in (wins, wins[:2]):
        scene = make_scene(successes=successes)  # the first groups are the same in both
        prm, learner = make_prm(policy)
        update(prm, scene, policy.logprobs(scene.batch))
        found.append(learner.gradients[0])
    assert_same_tensors(found[0], found[1], atol=1e-8)


def test_an_update_of_the_prm_leaves_the_policy_alone():
    scene, policy = make_scene(), make_learner()
    prm, _ = make_prm(policy, score="centered_sum")
    before = policy.snapshot()
    update(prm, scene, policy.logprobs(scene.batch))
    assert_same_tensors(policy.snapshot(), before)
    assert all(p.grad is None for p in policy.model.parameters())


def test_what_the_prm_reads_of_the_policy_carries_no_gradient():
    scene, policy = make_scene(), make_learner()
    prm, _ = make_prm(policy, with_centers=True)
    old_logprobs = policy.logprobs(scene.batch)
    scores = prm.score(scene.batch, old_logprobs)
    tensors = (old_logprobs, scores.rewards, scores.centers, scores.log_ratios)
    assert not any(t.requires_grad for t in tensors)


@pytest.mark.parametrize(("anchor", "keep"), [("persistent", 1.0), ("reset", 0.0), ("ema", 0.75)])
def test_the_anchor_decides_how_much_of_itself_the_prm_keeps(anchor, keep):
    policy = make_learner(seed=0)
    prm, learner = make_prm(policy, anchor=anchor, ema=0.75)
    own = learner.snapshot()
    prm.anchor()
    expected = {name: keep * own[name] + (1 - keep) * old for name, old in policy.snapshot().items()}
    assert_same_tensors(learner.snapshot(), expected)


def one_token_replies(vocab: int = VOCAB) -> StepBatch:
    """Every possible one-token reply to each of two prompts."""
    steps = [Step(prompt, [t], [0.0]) for prompt in ([4, 5, 6], [7]) for t in range(vocab)]
    return collate([make_trajectory("t", "g", steps)], ["g"])


def test_a_centred_reward_has_mean_0_under_the_old_policy_in_every_state():
    policy, batch = make_learner(temperature=0.7), one_token_replies()
    prm, learner = make_prm(policy, with_centers=True, beta=0.5)
    learner.temperature = 0.7
    old_logprobs = policy.logprobs(batch)
    scores = prm.score(batch, old_logprobs)
    probabilities = old_logprobs.sum(1).exp().view(2, VOCAB)
    assert probabilities.sum(1).tolist() == pytest.approx([1, 1], abs=FLOAT32)
    centred = (scores.rewards - scores.centers).view(2, VOCAB)
    assert (probabilities * centred).sum(1).tolist() == pytest.approx([0, 0], abs=FLOAT32)
    raw = (probabilities * scores.rewards.view(2, VOCAB)).sum(1)
    assert raw.tolist() == pytest.approx(scores.centers.view(2, VOCAB)[:, 0].tolist(), abs=FLOAT32)
    assert (raw < -0.01).all(), "the state offsets must not be trivial"


def test_rewards_stay_below_minus_beta_times_the_old_logprob():
    scene, policy = make_scene(), make_learner()
    prm, _ = make_prm(policy)
    old_logprobs = policy.logprobs(scene.batch)
    rewards = prm.score(scene.batch, old_logprobs).rewards
    assert (rewards <= -0.05 * old_logprobs.sum(1) + 1e-6).all()


def test_metrics_of_the_scores_are_from_before_the_update():
    scene, policy = make_scene(), make_learner()
    prm, _ = make_prm(policy, beta=0.5, lr=1e-2, updates_per_iteration=5)
    old_logprobs = policy.logprobs(scene.batch)
    before = prm.score(scene.batch, old_logprobs)
    margins = pair_margins(before.rewards, scene)
    metrics = update(prm, scene, old_logprobs)
    assert metrics["prm/margin"] == pytest.approx(float((margins * scene.pairs.weights).sum()), abs=1e-6)
    assert metrics["prm/pair_acc"] == float(((margins > 0) * scene.pairs.weights).sum())
    after = pair_margins(prm.score(scene.batch, old_logprobs).rewards, scene)
    assert (after * scene.pairs.weights).sum() > metrics["prm/margin"] + 0.1


def test_padding_rows_and_what_stands_outside_responses_change_no_gradient():
    scene, policy = make_scene(), make_learner()
    old_logprobs = policy.logprobs(scene.batch)
    prm, learner = make_prm(policy)
    update(prm, scene, old_logprobs)

    extended = scene.batch.select(torch.tensor([*range(len(scene.batch)), 0, 3]))
    extended.weights[-2:] = 0
    noise = torch.full_like(old_logprobs, 50.0)
    disturbed = torch.where(scene.batch.response_mask, old_logprobs, noise)
    other, other_learner = make_prm(policy)
    old_of_all = torch.cat([disturbed, disturbed[[0, 3]]])
    scores = other.score(extended, old_of_all)
    other.update(extended, old_of_all, scene.pairs, len(scene.outcomes), scores)
    assert_same_tensors(other_learner.gradients[0], learner.gradients[0], atol=1e-7)


def test_pairs_are_looked_up_by_id_in_the_order_of_the_batch():
    pairs = Pairs.of(
        [PreferencePair("g", "c", "a", 0.25, 0.9), PreferencePair("g", "b", "c", 0.75)], ["a", "b", "c"]
    )
    assert pairs.preferred.tolist() == [2, 1]
    assert pairs.rejected.tolist() == [0, 2]
    assert pairs.weights.tolist() == [0.25, 0.75]
    assert pairs.targets.tolist() == [0.9, 1.0]
    assert len(pairs) == 2
    assert len(NO_PAIRS) == 0


def test_accuracy_without_pairs_is_not_a_number():
    scene, policy = make_scene(), make_learner()
    prm, _ = make_prm(policy)
    scores = prm.score(scene.batch, policy.logprobs(scene.batch))
    assert math.isnan(prm.accuracy(scores, scene.batch, NO_PAIRS, len(scene.outcomes)))


def test_a_long_training_ranks_every_pair_of_its_batch_right():
    scene, policy = make_scene(), make_learner()
    prm, _ = make_prm(policy, prm_seed=0, beta=0.5, lr=1e-2, updates_per_iteration=30)
    old_logprobs = policy.logprobs(scene.batch)
    update(prm, scene, old_logprobs)
    scores = prm.score(scene.batch, old_logprobs)
    assert prm.accuracy(scores, scene.batch, scene.pairs, len(scene.outcomes)) == 1.0


def test_overconfidence_is_surety_minus_accuracy_by_hand():
    scene, policy = make_scene(), make_learner()
    prm, _ = make_prm(policy, beta=0.5)
    old_logprobs = policy.logprobs(scene.batch)
    margins = pair_margins(prm.score(scene.batch, old_logprobs).rewards, scene).double()
    surety = float((margins.abs().sigmoid() * scene.pairs.weights).sum())
    metrics = update(prm, scene, old_logprobs)
    assert metrics["prm/overconfidence"] == pytest.approx(surety - metrics["prm/pair_acc"], abs=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_two_passes_give_the_gradient_of_the_label_loss_in_one_piece(score):
    scene, policy = make_scene(), make_learner()
    prm, learner = make_prm(policy, score=score, beta=0.5, micro_batch_tokens=25)
    counted = torch.ones(8, dtype=torch.bool)
    counted[2] = False
    labels = Labels(scene.outcomes.successes.double(), counted)
    old_logprobs = policy.logprobs(scene.batch)
    metrics = prm.update(scene.batch, old_logprobs, labels, 8, prm.score(scene.batch, old_logprobs))
    model = make_lm(seed=1)
    totals = monolithic_scores(model, policy.model, scene, score=score, beta=0.5)
    loss = F.binary_cross_entropy_with_logits(totals[counted], labels.values[counted].float())
    loss.backward()
    expected = gradients(model)
    size = max(float(g.abs().max()) for g in expected.values())
    assert_same_tensors(learner.gradients[0], expected, atol=1e-4 * size)  # fp32 sums over some 50 tokens
    assert metrics["prm/loss"] == pytest.approx(loss.item(), abs=FLOAT32)
    right = (totals > 0) == scene.outcomes.successes
    assert metrics["prm/label_acc"] == pytest.approx(float(right[counted].double().mean()))
