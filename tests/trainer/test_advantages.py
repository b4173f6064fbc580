import pytest
import torch
from torch import Tensor

from istar_trainer.advantages import (
    combine_advantages,
    grpo_advantages,
    is_degenerate,
    istar_official_step_advantages,
    normalize_step_rewards,
    rloo_advantages,
    spread_over_tokens,
    step_advantage_factors,
)

# Group 5: outcomes 3, 0, 0 and one without verdict. Group 1: tied. Group 9: alone.
OUTCOMES = torch.tensor([3.0, 0.1, 0.0, 50.0, 0.1, 0.0, 4.0], dtype=torch.float64)
GROUPS = torch.tensor([5, 1, 5, 5, 1, 5, 9])
VERDICT = torch.tensor([True, True, True, False, True, True, True])

REWARDS = torch.tensor([1.0, 10.0, 3.0, -40.0, torch.nan], dtype=torch.float64)
ROW_GROUPS = torch.tensor([0, 4, 0, 4, 0])
VALID = torch.tensor([True, True, True, True, False])


def equal(actual: Tensor, expected: object, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=atol)


def step_advantages(norm: str, scope: str = "group", std_floor: float = 0.0) -> Tensor:
    return normalize_step_rewards(REWARDS, ROW_GROUPS, VALID, scope=scope, norm=norm, std_floor=std_floor)


@pytest.mark.parametrize(
    ("std", "divisor"), [("none", 1.0), ("population", 2**0.5 + 1e-6), ("unbiased", 3**0.5 + 1e-6)]
)
def test_grpo_by_hand(std, divisor):
    advantages = grpo_advantages(OUTCOMES, GROUPS, VERDICT, std=std)
    equal(advantages, [2 / divisor, 0.0, -1 / divisor, 0.0, 0.0, -1 / divisor, 4.0])


def test_rloo_by_hand():
    equal(rloo_advantages(OUTCOMES, GROUPS, VERDICT), [3.0, 0.0, -1.5, 0.0, 0.0, -1.5, 4.0])


def test_a_missing_verdict_is_neither_a_zero_nor_part_of_the_baseline():
    with_other_value = OUTCOMES.clone()
    with_other_value[3] = -1e9
    for advantages in (rloo_advantages, lambda *a: grpo_advantages(*a, std="population")):
        assert torch.equal(
            advantages(OUTCOMES, GROUPS, VERDICT), advantages(with_other_value, GROUPS, VERDICT)
        )


def test_tied_outcomes_give_exactly_no_advantage():
    tied = torch.full((3,), 0.1, dtype=torch.float64)
    same, judged = torch.zeros(3, dtype=torch.long), torch.ones(3, dtype=torch.bool)
    assert rloo_advantages(tied, same, judged).eq(0).all()
    assert grpo_advantages(tied, same, judged, std="unbiased").eq(0).all()


@pytest.mark.parametrize(
    ("norm", "scope", "expected"),
    [
        ("mean_std", "group", [-1.0, 1.0, 1.0, -1.0, 0.0]),
        ("rloo", "group", [-2.0, 50.0, 2.0, -50.0, 0.0]),
        ("rloo", "batch", [10.0, 22.0, 38 / 3, -134 / 3, 0.0]),
        ("maxabs", "group", [1 / 3, 0.25, 1.0, -1.0, 0.0]),
        ("maxabs", "batch", [0.025, 0.25, 0.075, -1.0, 0.0]),
        ("none", "group", [1.0, 10.0, 3.0, -40.0, 0.0]),
    ],
)
def test_step_normalisers_by_hand(norm, scope, expected):
    equal(step_advantages(norm, scope), expected)


def test_batch_scope_whitens_over_all_steps():
    advantages = step_advantages("mean_std", "batch")[VALID]
    assert advantages.mean().abs() < 1e-12
    assert advantages.std(correction=0).item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("norm", ["mean_std", "maxabs"])
def test_a_group_within_the_noise_floor_gets_no_step_advantage(norm):
    advantages = step_advantages(norm, std_floor=4.0)
    assert advantages[[0, 2]].eq(0).all()
    assert advantages[[1, 3]].ne(0).all()


def test_rewards_of_an_untrained_prm_are_not_blown_up():
    noise = 1e-9 * torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    same, valid = torch.zeros(8, dtype=torch.long), torch.ones(8, dtype=torch.bool)
    advantages = normalize_step_rewards(noise, same, valid, scope="group", norm="mean_std", std_floor=1e-7)
    assert advantages.eq(0).all()


def test_degenerate_groups_are_found_by_their_verdicts_alone():
    assert is_degenerate(OUTCOMES, GROUPS, VERDICT).tolist() == [
        False,
        True,
        False,
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("groups", "scale", "expected"),
    [
        ("all", 1.0, [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]),
        ("all", 0.25, [1.0, 0.25, 1.0, 0.0, 0.25, 1.0, 0.25]),
        ("with_pairs", 1.0, [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]),
    ],
)
def test_step_advantage_factors(groups, scale, expected):
    factors = step_advantage_factors(
        OUTCOMES, GROUPS, VERDICT, torch.tensor([0, 0]), groups=groups, degenerate_scale=scale
    )
    equal(factors, expected)


def test_without_pairs_no_group_has_pairs():
    none = torch.zeros(0, dtype=torch.long)
    factors = step_advantage_factors(
        OUTCOMES, GROUPS, VERDICT, none, groups="with_pairs", degenerate_scale=1.0
    )
    assert factors.eq(0).all()


def test_combined_advantage_adds_the_scaled_step_part():
    outcome_part, step_part = torch.tensor([[-1.0, -1.0], [1.0, 0.0]]), torch.tensor([[2.0, 1.0], [1.0, 0.0]])
    equal(combine_advantages(outcome_part, step_part), [[1.0, 0.0], [2.0, 0.0]])
    equal(combine_advantages(outcome_part, step_part, replaces_outcome=True), step_part.tolist())


def test_a_step_part_of_0_leaves_the_base_estimator_bit_for_bit():
    base = torch.tensor([[-0.0, 0.1, 0.0]])
    combined = combine_advantages(base, torch.tensor([[0.0, -0.0, -0.0]]))
    assert torch.equal(combined.view(torch.int32), base.view(torch.int32))


def test_a_step_value_reaches_all_its_sampled_tokens_and_no_other():
    mask = torch.tensor([[True, False, True], [False, False, False]])
    equal(spread_over_tokens(torch.tensor([2.0, torch.nan]), mask), [[2.0, 0.0, 2.0], [0.0, 0.0, 0.0]])


def test_official_step_advantage_depends_on_the_order_of_rows():
    rewards = torch.tensor([-2.0, -1.0, 0.0, 2.0])
    trajectory, group = torch.tensor([3, 3, 8, 8]), torch.zeros(4, dtype=torch.long)
    # Scaled by 2: -1, -1/2, 0, 1; first-seen rows -1 and 0 give baseline -1/2, times 2.
    equal(istar_official_step_advantages(rewards, trajectory, group), [-1.0, 0.0, 1.0, 3.0])
    backwards = istar_official_step_advantages(rewards.flip(0), trajectory.flip(0), group)
    equal(backwards.flip(0), [-2.5, -1.5, -0.5, 1.5])


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda: grpo_advantages(OUTCOMES, GROUPS, VERDICT, std="unbised"), 'mean "unbiased"'),
        (lambda: step_advantages("meanstd"), 'mean "mean_std"'),
        (lambda: step_advantages("rloo", "groups"), 'mean "group"'),
        (
            lambda: step_advantage_factors(
                OUTCOMES, GROUPS, VERDICT, GROUPS[:0], groups="pairs", degenerate_scale=1.0
            ),
            'unknown groups "pairs"',
        ),
    ],
)
def test_misuse_says_what_to_type_instead(misuse, message):
    with pytest.raises((ValueError, TypeError)) as error:
        misuse()
    # With argument types checked at run time the checker answers first, in its own words.
    assert message in str(error.value) or isinstance(error.value, TypeError)
