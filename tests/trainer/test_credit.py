"""What a step gets: the PRM's place in the iteration, the floor, the warm-up, and who gets nothing."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from builders import (
    RecordingLearner,
    Scene,
    assert_same_tensors,
    make_learner,
    make_scene,
)
from istar_trainer.advantages import normalize_step_rewards, spread_over_tokens
from istar_trainer.config_credits import IstarCredit as CreditConfig
from istar_trainer.config_credits import PrmConfig, WarmUp
from istar_trainer.credits import StepCredit
from istar_trainer.credits.istar import IstarCredit
from istar_trainer.credits.none import NoCredit
from istar_trainer.credits.online_prm import OnlinePrm
from istar_trainer.metrics import METRICS
from istar_trainer.prm import ImplicitPrm, Pairs

NO_PAIRS = Pairs.of([], [])


def make_credit(
    policy: RecordingLearner, credit: CreditConfig | None = None, *, prm_seed: int = 1, **prm_options
) -> tuple[IstarCredit, RecordingLearner]:
    settings, prm_config = credit or CreditConfig(), PrmConfig(beta=0.5, **prm_options)
    learner = make_learner(seed=prm_seed, lr=1e-3)
    with_centers = settings.center != "none" or settings.attribution != "as_published"
    prm = ImplicitPrm(learner, policy, prm_config, with_centers=with_centers)
    return IstarCredit(OnlinePrm(prm, policy, prm_config), settings), learner


def assign(
    credit: IstarCredit, policy: RecordingLearner, scene: Scene, pairs: Pairs | None = None
) -> StepCredit:
    chosen = scene.pairs if pairs is None else pairs
    return credit.assign(scene.batch, policy.logprobs(scene.batch), scene.outcomes, chosen)


def of_steps(advantages: Tensor, scene: Scene) -> Tensor:
    """The one value that all tokens of each step share."""
    first = scene.batch.response_mask.int().argmax(1, keepdim=True)
    values = advantages.gather(1, first).squeeze(1)
    assert torch.equal(advantages, spread_over_tokens(values, scene.batch.response_mask))
    return values


def rewards_under(learner: RecordingLearner, policy: RecordingLearner, scene: Scene) -> Tensor:
    return 0.5 * (learner.logprobs(scene.batch) - policy.logprobs(scene.batch)).sum(1)


def test_no_credit_gives_every_step_nothing():
    scene = make_scene()
    result = NoCredit().assign(
        scene.batch, torch.zeros_like(scene.batch.sampler_logprobs), scene.outcomes, NO_PAIRS
    )
    assert result.advantages.eq(0).all()
    assert result.step_rewards.eq(0).all()
    assert result.metrics == {}
    assert NoCredit().state() == {}


@pytest.mark.parametrize(("order", "learns_first"), [("before", True), ("after", False)])
def test_the_update_order_decides_which_prm_scores_the_batch(order, learns_first):
    scene, policy = make_scene(), make_learner()
    credit, learner = make_credit(policy, update_order=order, updates_per_iteration=3)
    fresh = rewards_under(learner, policy, scene)
    result = assign(credit, policy, scene)
    expected = rewards_under(learner, policy, scene) if learns_first else fresh
    torch.testing.assert_close(result.step_rewards, expected, rtol=0, atol=1e-5)
    assert (rewards_under(learner, policy, scene) - fresh).abs().max() > 1e-3
    assert len(learner.gradients) == 3


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("attribution", ["as_published", "shifted", "shifted_to_go"])
def test_both_orders_know_the_state_offsets_that_their_attribution_needs(order, attribution):
    scene, policy = make_scene(), make_learner()
    settings = CreditConfig(attribution=attribution, center="policy_kl")
    credit, _ = make_credit(policy, settings, update_order=order)
    for pairs in (scene.pairs, NO_PAIRS):
        result = assign(credit, policy, scene, pairs)
        assert not torch.equal(result.attributed, result.step_rewards)
        assert result.advantages.isfinite().all()


def test_as_published_is_the_published_formula_bit_for_bit():
    scene, policy = make_scene(), make_learner()
    credit, _ = make_credit(policy, CreditConfig(step_adv_coef=0.3, floor_factor=0.0))
    result = assign(credit, policy, scene)
    assert torch.equal(result.attributed, result.step_rewards)
    everyone = torch.ones(len(scene.batch), dtype=torch.bool)
    plain = normalize_step_rewards(
        result.step_rewards,
        scene.batch.group_index,
        everyone,
        scope="group",
        norm="mean_std",
        std_floor=0.0,
    )
    assert torch.equal(result.advantages, spread_over_tokens(plain * 0.3, scene.batch.response_mask))


def test_shifted_credit_keeps_every_total_up_to_the_offset_of_the_shared_start():
    scene, policy = make_scene(), make_learner()
    credit, _ = make_credit(policy, CreditConfig(attribution="shifted", center="policy_kl"))
    result = assign(credit, policy, scene)
    index = scene.batch.trajectory_index
    change = torch.zeros(len(scene.outcomes)).index_add(0, index, result.attributed - result.step_rewards)
    assert (change > 0.05).all(), "offsets are negative, so losing the first one raises the total"
    scores = credit.online.prm.score(scene.batch, policy.logprobs(scene.batch))
    first = scores.centers[scene.batch.step_index == 0]
    torch.testing.assert_close(change, -first, rtol=0, atol=1e-5)


def test_a_prm_that_has_learnt_nothing_gives_nothing():
    scene, policy = make_scene(), make_learner()
    credit, _ = make_credit(policy, update_order="after", prm_seed=0)
    result = assign(credit, policy, scene)
    assert result.advantages.eq(0).all()
    assert result.metrics["prm/noise_floor"] < 1e-6
    assert result.metrics["adv/std_floor"] == 10 * result.metrics["prm/noise_floor"]


def test_rewards_within_the_floor_give_nothing_and_above_it_unit_size():
    scene, policy = make_scene(), make_learner()
    advantages = []
    for factor in (0.0, 1e12):
        credit, _ = make_credit(policy, CreditConfig(floor_factor=factor))
        credit.online._measure_noise = lambda *_: (1e-6, 1e-6)  # what packing would do on another machine
        advantages.append(of_steps(assign(credit, policy, scene).advantages, scene))
    for group in range(3):
        own = advantages[0][scene.batch.group_index == group]
        assert float(own.mean()) == pytest.approx(0, abs=1e-5)
        assert float(own.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert advantages[1].eq(0).all()


def test_a_coefficient_of_0_gives_exactly_nothing_but_the_prm_learns():
    scene, policy = make_scene(), make_learner()
    credit, learner = make_credit(policy, CreditConfig(step_adv_coef=0.0))
    before = learner.snapshot()
    result = assign(credit, policy, scene)
    assert result.advantages.eq(0).all()
    assert result.metrics["adv/step_coef"] == 0
    assert any(not torch.equal(before[name], value) for name, value in learner.snapshot().items())


def test_only_groups_with_pairs_are_credited_if_so_configured():
    scene, policy = make_scene(), make_learner()
    credit, _ = make_credit(policy, CreditConfig(groups="with_pairs"))
    advantages = assign(credit, policy, scene).advantages
    lonely = scene.batch.group_index == 2
    assert advantages[lonely].eq(0).all()
    assert advantages[~lonely].ne(0).any()


def test_groups_with_equal_outcomes_are_credited_unless_switched_off():
    scene, policy = make_scene(), make_learner()
    tied = scene.batch.group_index == 2
    for is_on in (True, False):
        credit, _ = make_credit(policy, CreditConfig(on_degenerate_groups=is_on))
        result = assign(credit, policy, scene)
        assert result.advantages[tied].ne(0).any() == is_on
        assert result.advantages[~tied].ne(0).any()
        assert result.metrics["adv/degenerate_group_frac"] == pytest.approx(1 / 3)


def test_a_trajectory_without_a_verdict_gets_nothing_and_enters_no_mean():
    scene, policy = make_scene(), make_learner()
    outcomes = replace(scene.outcomes, has_outcome=scene.outcomes.has_outcome.clone())
    outcomes.has_outcome[1] = False
    credit, _ = make_credit(policy)
    result = assign(credit, policy, replace(scene, outcomes=outcomes), NO_PAIRS)
    unjudged = scene.batch.trajectory_index == 1
    assert result.advantages[unjudged].eq(0).all()
    rest = of_steps(result.advantages, scene)[(scene.batch.group_index == 0) & ~unjudged]
    assert float(rest.mean()) == pytest.approx(0, abs=1e-5)


def test_the_order_of_rows_changes_only_the_rounding():
    scene, policy = make_scene(), make_learner()
    settings = CreditConfig(attribution="shifted_to_go", center="policy_kl")
    credit, _ = make_credit(policy, settings)
    expected = assign(credit, policy, scene)
    order = torch.randperm(len(scene.batch), generator=torch.Generator().manual_seed(0))
    other, _ = make_credit(policy, settings)
    result = assign(other, policy, replace(scene, batch=scene.batch.select(order)))
    torch.testing.assert_close(result.attributed, expected.attributed[order], rtol=0, atol=1e-4)
    torch.testing.assert_close(result.advantages, expected.advantages[order], rtol=0, atol=1e-3)


def warmed_up(**options) -> CreditConfig:
    return CreditConfig(warm_up=WarmUp(**options))


def test_the_warm_up_ends_when_the_pair_accuracy_has_held():
    scene, policy = make_scene(), make_learner()
    credit, _ = make_credit(policy, warmed_up(pair_acc=0.9, window=2), updates_per_iteration=30)
    coefficients, accuracies = [], []
    for _ in range(5):
        metrics = assign(credit, policy, scene).metrics
        coefficients.append(metrics["adv/step_coef"])
        accuracies.append(metrics["prm/pair_acc"])
    reached = [accuracy > 0.9 for accuracy in accuracies]
    expected = [all(reached[max(0, k - 1) : k + 1]) and k >= 1 for k in range(5)]
    assert coefficients == [float(e) for e in expected]
    assert coefficients[0] == 0
    assert coefficients[-1] == 1


def test_the_warm_up_does_not_end_before_its_iteration():
    scene, policy = make_scene(), make_learner()
    credit, _ = make_credit(policy, warmed_up(pair_acc=0.0, window=1, start_at=2))
    coefficients = [assign(credit, policy, scene).metrics["adv/step_coef"] for _ in range(4)]
    assert coefficients == [0, 0, 1, 1]


def test_an_iteration_without_pairs_says_nothing_about_the_accuracy():
    scene, policy = make_scene(), make_learner()
    credit, _ = make_credit(policy, warmed_up(pair_acc=0.2, window=1), prm_seed=1)
    pairs = (scene.pairs, NO_PAIRS, scene.pairs)
    assert [assign(credit, policy, scene, p).metrics["adv/step_coef"] for p in pairs] == [1, 1, 1]


def test_the_memory_of_the_warm_up_is_restored():
    scene, policy = make_scene(), make_learner()
    settings = warmed_up(pair_acc=0.0, window=3, start_at=3)
    credit, learner = make_credit(policy, settings, prm_seed=0)
    for _ in range(3):
        assign(credit, policy, scene)
    resumed, other = make_credit(policy, settings, prm_seed=0)
    resumed.load_state(credit.state())
    other.load(learner.snapshot())
    other.load_state(copy.deepcopy(learner.state()))
    result, expected = assign(resumed, policy, scene), assign(credit, policy, scene)
    assert result.metrics["adv/step_coef"] == expected.metrics["adv/step_coef"] == 1
    assert torch.equal(result.advantages, expected.advantages)
    assert resumed.state() == credit.state()
    assert_same_tensors(other.snapshot(), learner.snapshot())


def test_every_value_has_a_registered_name_and_gradient_norms_are_above_0():
    scene, policy = make_scene(), make_learner()
    credit, _ = make_credit(policy)
    metrics = assign(credit, policy, scene).metrics
    assert metrics.keys() <= METRICS.keys()
    assert metrics["prm/grad_norm"] > 0
    assert "prm/grad_norm" not in assign(credit, policy, scene, NO_PAIRS).metrics


def test_rewards_are_told_apart_by_success():
    scene, policy = make_scene(), make_learner()
    credit, _ = make_credit(policy)
    result = assign(credit, policy, scene)
    won = scene.outcomes.successes[scene.batch.trajectory_index]
    rewards = result.step_rewards
    assert result.metrics["step_reward/mean_success"] == pytest.approx(float(rewards[won].mean()), abs=1e-6)
    assert result.metrics["step_reward/mean_failure"] == pytest.approx(float(rewards[~won].mean()), abs=1e-6)
    assert result.metrics["step_reward/std"] == pytest.approx(float(rewards.std(correction=0)), abs=1e-6)
