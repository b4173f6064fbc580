"""Every credit method on games that were played: what it adds, what it replaces, and what it learns from."""

import copy
import typing
from dataclasses import replace

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from builders import RecordingLearner, Scene, assert_same_tensors, make_learner
from credit_parts import START_SEED, make_parts, played_scene, without_verdict
from istar_envs.errors import ConfigError
from istar_trainer import config_credits as cfg
from istar_trainer.advantages import rloo_advantages
from istar_trainer.credits import CREDITS, Credit, StepCredit, make_credit
from istar_trainer.masked import masked_mean
from istar_trainer.metrics import METRICS
from istar_trainer.oracle import true_step_gains
from istar_trainer.prm import Pairs

NO_PAIRS = Pairs.of([], [])
METHODS = sorted(CREDITS, key=lambda config: config.__name__)
ADDED = [method for method in METHODS if not method.replaces_outcome and method is not cfg.NoCredit]
PARSE = TypeAdapter(cfg.CreditConfig).validate_python


def name_of(method: type[cfg.Method]) -> str:
    return method.model_fields["type"].default


def assign(credit: Credit, policy: RecordingLearner, scene: Scene, pairs: Pairs | None = None) -> StepCredit:
    old_logprobs = policy.logprobs(scene.batch)
    return credit.assign(scene.batch, old_logprobs, scene.outcomes, scene.pairs if pairs is None else pairs)


def credited(config: cfg.CreditConfig, scene: Scene, **prm) -> StepCredit:
    policy = make_learner()
    return assign(make_credit(config, make_parts(policy, **prm)), policy, scene)


def of_steps(tokens: Tensor, scene: Scene) -> Tensor:
    """The one value that all tokens of a step share."""
    mask = scene.batch.response_mask
    values = masked_mean(tokens, mask)
    torch.testing.assert_close(tokens, torch.where(mask, values[:, None], 0.0), rtol=0, atol=1e-6)
    return values


def test_every_method_of_the_configuration_can_be_made():
    union = typing.get_args(typing.get_args(cfg.CreditConfig)[0])
    assert set(union) == set(CREDITS)
    for method in METHODS:
        assert PARSE(name_of(method)) == method()


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_what_a_method_gives_is_finite_named_and_zero_outside_replies_and_without_a_verdict(method):
    scene = without_verdict(played_scene(), 1)
    result = credited(method(), scene)
    assert result.advantages.shape == scene.batch.input_ids.shape
    assert result.advantages.isfinite().all()
    assert result.advantages[~scene.batch.response_mask].eq(0).all()
    assert result.advantages[scene.batch.trajectory_index == 1].eq(0).all()
    assert result.advantages.any() == (method is not cfg.NoCredit)
    assert result.metrics.keys() <= METRICS.keys()
    assert result.replaces_outcome == method.replaces_outcome


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_models_of_a_method_learn_and_the_policy_does_not_move(method):
    scene, policy = played_scene(), make_learner()
    credit = make_credit(method(), make_parts(policy))
    before = {name: learner.snapshot() for name, learner in credit.learners.items()}
    own = policy.snapshot()
    assign(credit, policy, scene)
    assert_same_tensors(policy.snapshot(), own)
    uses_prm = method.uses_prm or method is cfg.SumCredit
    assert list(credit.learners) == (["prm"] if uses_prm else [])
    for name, learner in credit.learners.items():
        assert any(not torch.equal(before[name][k], v) for k, v in learner.snapshot().items())


@pytest.mark.parametrize("method", [m for m in ADDED if m is not cfg.SumCredit], ids=name_of)
def test_a_coefficient_of_0_adds_exactly_nothing(method):
    assert credited(method(step_adv_coef=0.0), played_scene()).advantages.eq(0).all()


@pytest.mark.parametrize("method", [m for m in ADDED if m is not cfg.SumCredit], ids=name_of)
def test_the_coefficient_scales_what_is_added(method):
    scene = played_scene()
    one, half = (credited(method(step_adv_coef=c), scene).advantages for c in (1.0, 0.5))
    torch.testing.assert_close(half, one / 2)


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_an_iteration_without_a_pair_is_survived(method):
    scene, policy = played_scene(), make_learner()
    credit = make_credit(method(), make_parts(policy))
    assert assign(credit, policy, scene, NO_PAIRS).advantages.isfinite().all()


def test_the_released_code_never_trains_and_compares_with_the_first_step_of_each_trajectory():
    scene, policy = played_scene(), make_learner()
    credit = make_credit(cfg.IstarOfficialCredit(), make_parts(policy))
    result = assign(credit, policy, scene)
    assert not credit.learners
    start = make_learner(seed=START_SEED)
    rewards = 0.5 * (start.logprobs(scene.batch) - policy.logprobs(scene.batch)).sum(1)
    torch.testing.assert_close(result.step_rewards, rewards, rtol=0, atol=1e-5)
    scaled = rewards / rewards.abs().max()
    values = of_steps(result.advantages, scene)
    for group in range(3):
        own = scene.batch.group_index == group
        baseline = scaled[own & (scene.batch.step_index == 0)].mean()
        torch.testing.assert_close(values[own], (scaled[own] - baseline) * 4 / 3, rtol=0, atol=1e-5)


def test_environment_rewards_are_compared_with_all_steps_of_the_group():
    scene = played_scene()
    result = credited(cfg.EnvStepsCredit(), scene)
    assert torch.equal(result.step_rewards, scene.batch.env_rewards)
    values = of_steps(result.advantages, scene)
    for group in range(3):
        own = scene.batch.group_index == group
        rewards = scene.batch.env_rewards[own]
        expected = (rewards - rewards.mean()) / rewards.std(correction=0)
        torch.testing.assert_close(values[own], expected, rtol=0, atol=1e-5)


def test_the_oracle_gives_what_replaying_gives():
    scene = played_scene()
    result = credited(cfg.OracleCredit(), scene)
    expected = [
        gain
        for group in scene.groups
        for trajectory in group.trajectories
        for gain in true_step_gains(trajectory.episode, make_parts(make_learner()).new_env())
    ]
    assert result.step_rewards.tolist() == expected
    assert len(set(expected)) > 2
    best = of_steps(result.advantages, scene)[scene.batch.group_index == 0]
    assert float(best.mean()) == pytest.approx(0, abs=1e-5)


def test_gigpo_compares_returns_from_equal_states_only():
    scene = played_scene()
    result = credited(cfg.GigpoCredit(gamma=1.0), scene)
    values = of_steps(result.advantages, scene)
    to_go = torch.tensor(
        [
            sum(x.reward for x in t.episode.transitions[k:])
            for g in scene.groups
            for t in g.trajectories
            for k in range(len(t.steps))
        ]
    )
    torch.testing.assert_close(result.attributed, to_go, rtol=0, atol=1e-5)
    batch, alone = scene.batch, 0
    for row in range(len(batch)):
        same = (batch.group_index == batch.group_index[row]) & (
            batch.observation_ids == batch.observation_ids[row]
        )
        alone += int(same.sum() == 1)
        assert float(values[row]) == pytest.approx(float(to_go[row] - to_go[same].mean()), abs=1e-5)
    assert 0 < alone < len(batch)
    assert result.metrics["adv/singleton_anchor_frac"] == pytest.approx(alone / len(batch))


def test_gigpo_can_follow_the_judged_outcome_instead_of_the_environment():
    scene = played_scene()
    result = credited(cfg.GigpoCredit(rewards="outcome", gamma=0.5), scene)
    for index, trajectory in enumerate(t for g in scene.groups for t in g.trajectories):
        own = scene.batch.trajectory_index == index
        length, outcome = len(trajectory.steps), float(scene.outcomes.values[index])
        expected = [outcome * 0.5 ** (length - 1 - k) for k in range(length)]
        assert result.attributed[own].tolist() == pytest.approx(expected, abs=1e-6)


def test_similar_boards_share_an_anchor_and_pictures_cannot_be_compared():
    scene = played_scene()
    exact = credited(cfg.GigpoCredit(), scene).metrics["adv/anchor_steps_mean"]
    loose = credited(cfg.GigpoCredit(similarity=0.9), scene).metrics["adv/anchor_steps_mean"]
    strict = credited(cfg.GigpoCredit(similarity=1.0), scene).metrics["adv/anchor_steps_mean"]
    assert loose > exact == strict
    blind = tuple(
        replace(e, transitions=tuple(replace(t, observation="") for t in e.transitions))
        for e in scene.outcomes.episodes
    )
    unseen = replace(scene, outcomes=replace(scene.outcomes, episodes=blind))
    with pytest.raises(ConfigError, match=r"credit\.similarity .* pictures only"):
        credited(cfg.GigpoCredit(similarity=0.95), unseen)


def test_process_only_is_istar_without_the_outcome():
    scene = played_scene()
    whole, part = credited(cfg.ProcessOnlyCredit(), scene), credited(cfg.IstarCredit(), scene)
    assert torch.equal(whole.advantages, part.advantages)
    assert whole.replaces_outcome
    assert not part.replaces_outcome


def test_token_rewards_are_compared_with_all_tokens_of_the_group():
    scene, policy = played_scene(), make_learner()
    credit = make_credit(cfg.TokenPrCredit(), make_parts(policy))
    result = assign(credit, policy, scene)
    mask = scene.batch.response_mask
    ratios = (credit.learners["prm"].logprobs(scene.batch) - policy.logprobs(scene.batch)) * 0.5
    for group in range(3):
        own = mask & (scene.batch.group_index == group)[:, None]
        expected = (ratios[own] - ratios[own].mean()) / ratios[own].std(correction=0)
        torch.testing.assert_close(result.advantages[own], expected, rtol=0, atol=1e-3)
    assert any(len(set(row[m].tolist())) > 1 for row, m in zip(result.advantages, mask, strict=True))


def test_merged_rewards_are_outcome_plus_scaled_step_reward_against_the_groups_other_steps():
    scene = played_scene()
    result = credited(cfg.MergedCredit(step_reward_coef=0.3), scene)
    scaled = result.step_rewards / result.step_rewards.abs().max()
    merged = scene.outcomes.values[scene.batch.trajectory_index] + 0.3 * scaled
    torch.testing.assert_close(result.attributed, merged, rtol=0, atol=1e-6)
    values = of_steps(result.advantages, scene)
    for row in range(len(scene.batch)):
        others = scene.batch.group_index == scene.batch.group_index[row]
        others[row] = False
        assert float(values[row]) == pytest.approx(float(merged[row] - merged[others].mean()), abs=1e-5)


def whitened(values: Tensor, mask: Tensor) -> Tensor:
    counted = values[mask].double()
    return torch.where(mask, (values - counted.mean()) / counted.std(correction=0), 0.0).float()


def test_prime_adds_up_what_follows_each_token_in_its_trajectory():
    scene, policy = played_scene(), make_learner()
    credit = make_credit(cfg.PrimeCredit(outcome_coef=2.0, process_coef=3.0), make_parts(policy))
    result = assign(credit, policy, scene)
    batch, mask = scene.batch, scene.batch.response_mask
    rewards = 0.5 * (credit.learners["prm"].logprobs(batch) - make_learner(seed=START_SEED).logprobs(batch))
    outcome = rloo_advantages(scene.outcomes.values, scene.outcomes.groups, scene.outcomes.has_outcome)
    returns = torch.zeros_like(rewards)
    index = batch.trajectory_index
    means = torch.stack([rewards[(index == t)[:, None] & mask].mean() for t in range(len(scene.outcomes))])
    for trajectory in range(len(scene.outcomes)):
        members = scene.outcomes.groups == scene.outcomes.groups[trajectory]
        rows = (index == trajectory).nonzero().flatten()
        places = [(row, col) for row in rows.tolist() for col in mask[row].nonzero().flatten().tolist()]
        total = 0.0
        for row, col in reversed(places):
            total += float(4 / 3 * (rewards[row, col] - means[members].mean()))
            returns[row, col] = 2 * outcome[trajectory] + 3 * total
    torch.testing.assert_close(result.advantages, whitened(returns, mask), rtol=0, atol=1e-3)


def test_primes_reward_model_learns_success_labels_without_any_pair():
    scene, policy = played_scene(), make_learner()
    credit = make_credit(cfg.PrimeCredit(), make_parts(policy, updates_per_iteration=30, lr=1e-2))
    first = assign(credit, policy, scene, NO_PAIRS).metrics
    assert first["prm/grad_norm"] > 0
    assert first["prm/label_acc_in_sample"] > 0.9
    assert assign(credit, policy, scene, NO_PAIRS).metrics["prm/loss"] < first["prm/loss"]


def test_primes_labels_come_from_the_verdicts_and_unjudged_trajectories_have_none():
    scene = played_scene()
    flipped = tuple(replace(v, success=not v.success) for v in scene.outcomes.verdicts)
    losses = []
    for verdicts in (scene.outcomes.verdicts, flipped, ()):
        changed = replace(scene, outcomes=replace(scene.outcomes, verdicts=verdicts))
        losses.append(credited(cfg.PrimeCredit(), changed).metrics["prm/loss"])
    assert losses[0] == losses[2] != losses[1]
    nobody = replace(
        scene.outcomes, has_outcome=torch.zeros(len(scene.outcomes), dtype=torch.bool), verdicts=()
    )
    assert credited(cfg.PrimeCredit(), replace(scene, outcomes=nobody)).metrics["prm/skipped"] == 1


def test_itpo_splits_each_outcome_over_the_turns_and_adds_up_what_follows():
    scene, policy = played_scene(), make_learner()
    credit = make_credit(cfg.ItpoCredit(), make_parts(policy))
    result = assign(credit, policy, scene)
    index, groups = scene.batch.trajectory_index, scene.outcomes.groups
    sums = torch.zeros(len(scene.outcomes)).index_add(0, index, result.attributed)
    torch.testing.assert_close(sums, scene.outcomes.values, rtol=0, atol=1e-6)
    outcome = rloo_advantages(scene.outcomes.values, groups, scene.outcomes.has_outcome)
    means = torch.stack([result.attributed[index == t].mean() for t in range(len(groups))])
    returns = torch.zeros(len(scene.batch))
    for row in range(len(scene.batch)):
        later = (index == index[row]) & (scene.batch.step_index >= scene.batch.step_index[row])
        baseline = means[groups == groups[index[row]]].mean()
        returns[row] = outcome[index[row]] + 4 / 3 * (result.attributed[later] - baseline).sum()
    mask = scene.batch.response_mask
    expected = whitened(returns[:, None].expand(mask.shape), mask)
    torch.testing.assert_close(result.advantages, expected, rtol=0, atol=1e-4)


def test_a_sum_adds_its_parts():
    scene = played_scene()
    parts = (cfg.IstarCredit(step_adv_coef=0.3), cfg.GigpoCredit())
    added = credited(cfg.SumCredit(parts=parts), scene)
    istar, gigpo = (credited(part, scene) for part in parts)
    assert torch.equal(added.advantages, istar.advantages + gigpo.advantages)
    assert torch.equal(added.step_rewards, istar.step_rewards)
    assert added.metrics["adv/step_coef"] == 0.3
    assert added.metrics.keys() == istar.metrics.keys() | gigpo.metrics.keys()


def test_a_sum_keeps_the_state_of_every_part():
    scene, policy = played_scene(), make_learner()
    config = cfg.SumCredit(
        parts=(cfg.GigpoCredit(), cfg.IstarCredit(warm_up=cfg.WarmUp(pair_acc=0, window=2)))
    )
    credit, resumed = (make_credit(config, make_parts(policy)) for _ in range(2))
    assign(credit, policy, scene)
    assert credit.state()["1/iterations"] == [1.0]
    resumed.load_state(copy.deepcopy(credit.state()))
    assert resumed.state() == credit.state()


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (["istar"], "must be two or more"),
        (["istar", "merged"], "merged replace the outcome's part"),
        (["istar", "token_pr"], "more than one process reward model"),
        (["istar", "sum"], "sum"),
    ],
)
def test_parts_that_cannot_be_added_are_refused(parts, reason):
    with pytest.raises(ValidationError, match=reason):
        PARSE({"type": "sum", "parts": parts})


@pytest.mark.parametrize(
    ("method", "asked", "expected"),
    [
        (cfg.IstarCredit, None, "rolling"),
        (cfg.IstarCredit, "frozen", "frozen"),
        (cfg.PrimeCredit, None, "frozen"),
        (cfg.PrimeCredit, "rolling", "rolling"),
    ],
)
def test_rewards_are_relative_to_the_reference_that_was_asked_for_or_published(method, asked, expected):
    scene, policy = played_scene(), make_learner(seed=5)
    credit = make_credit(method(), make_parts(policy, reference=asked, update_order="after"))
    prm = credit.learners["prm"].logprobs(scene.batch)
    relative_to = policy if expected == "rolling" else make_learner(seed=START_SEED)
    result = assign(credit, policy, scene)
    rewards = 0.5 * (prm - relative_to.logprobs(scene.batch)).sum(1)
    torch.testing.assert_close(result.step_rewards, rewards, rtol=0, atol=1e-4)


def test_a_running_mean_of_policies_is_a_learner_that_checkpoints_keep():
    scene, policy = played_scene(), make_learner(seed=5)
    parts = make_parts(policy, reference="ema", reference_ema=0.75)
    credit = make_credit(cfg.IstarCredit(), parts)
    assert list(credit.learners) == ["prm", "prm_reference"]
    start, now = make_learner(seed=0).snapshot(), policy.snapshot()
    assign(credit, policy, scene)
    expected = {name: 0.75 * value + 0.25 * now[name] for name, value in start.items()}
    assert_same_tensors(credit.learners["prm_reference"].snapshot(), expected)


def test_centred_rewards_have_the_reference_in_both_terms():
    """With π_φ equal to the frozen reference nothing is rewarded, centred or not."""
    scene, policy = played_scene(), make_learner(seed=5)
    settings = cfg.IstarCredit(center="policy_kl", floor_factor=0.0)
    parts = make_parts(policy, prm_seed=START_SEED, reference="frozen", update_order="after")
    result = assign(make_credit(settings, parts), policy, scene)
    torch.testing.assert_close(result.attributed, torch.zeros(len(scene.batch)), rtol=0, atol=1e-5)
    assert result.step_rewards.abs().max() < 1e-5


def test_the_gate_opens_only_when_credit_tells_actions_apart_on_fresh_data():
    scene, policy = played_scene(), make_learner()
    for threshold, is_open in ((0.0, True), (1.0, False)):
        warm_up = cfg.WarmUp(pair_acc=0.0, state_auc=threshold, window=1)
        parts = make_parts(policy, updates_per_iteration=5)
        credit = make_credit(cfg.IstarCredit(warm_up=warm_up), parts)
        assign(credit, policy, scene)
        metrics = assign(credit, policy, scene).metrics
        assert 0 <= metrics["prm/fresh_state_auc"] <= 1
        assert metrics["adv/step_coef"] == float(is_open)


@pytest.mark.parametrize(("gated", "is_known"), [(False, False), (True, True)])
def test_fresh_centres_are_computed_when_the_gate_asks_for_them(gated, is_known):
    scene, policy = played_scene(), make_learner()
    warm_up = cfg.WarmUp(state_auc=0.5) if gated else None
    settings = cfg.IstarCredit(attribution="shifted", center="policy_kl", warm_up=warm_up)
    metrics = assign(make_credit(settings, make_parts(policy)), policy, scene).metrics
    assert (metrics["prm/fresh_state_auc"] == metrics["prm/fresh_state_auc"]) == is_known
