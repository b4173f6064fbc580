import pytest
import torch
from torch import Tensor

from istar_trainer.attribution import attribute_credit, center_step_rewards, step_centers, token_kl
from istar_trainer.implicit_reward import step_rewards, token_log_ratios

# Trajectory 7 has three steps, trajectory 2 has two; rows are shuffled and one is padding.
TRAJECTORY = torch.tensor([7, 2, 7, 7, 2, 7])
STEP = torch.tensor([2, 0, 0, 1, 3, 0])
REWARDS = torch.tensor([8.0, 16.0, 2.0, 4.0, 32.0, torch.nan], dtype=torch.float64)
CENTERS = torch.tensor([-0.3, -1.0, -0.1, -0.2, -2.0, torch.nan], dtype=torch.float64)
VALID = torch.tensor([True, True, True, True, True, False])


def equal(actual: Tensor, expected: object, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=atol)


def credit(attribution: str, center: str = "policy_kl", gamma: float = 0.5) -> Tensor:
    return attribute_credit(
        REWARDS, CENTERS, TRAJECTORY, STEP, VALID, attribution=attribution, center=center, gamma=gamma
    )


def test_as_published_without_centring_is_the_reward_itself():
    result = attribute_credit(
        REWARDS, None, TRAJECTORY, STEP, VALID, attribution="as_published", center="none", gamma=1.0
    )
    assert result is REWARDS


def test_centring_takes_the_expected_reward_off():
    equal(credit("as_published"), [8.3, 17.0, 2.1, 4.2, 34.0, 0.0])


@pytest.mark.parametrize("center", ["none", "policy_kl"])
def test_shifted_credit_moves_each_offset_to_the_step_that_led_there(center):
    equal(credit("shifted", center), [8.3, 15.0, 1.9, 3.9, 34.0, 0.0])


def test_shifted_to_go_by_hand():
    # Trajectory 7: 8.3; 3.9 + 8.3/2 = 8.05; 1.9 + 8.05/2 = 5.925. Trajectory 2: 34; 15 + 34/2 = 32.
    equal(credit("shifted_to_go"), [8.3, 32.0, 5.925, 8.05, 34.0, 0.0])
    equal(credit("shifted_to_go", gamma=0.0), credit("shifted").tolist())


def test_shifted_credit_keeps_the_total_up_to_the_offset_of_the_first_state():
    shifted = credit("shifted")
    for trajectory, first in ((7, -0.1), (2, -1.0)):
        rows = TRAJECTORY.eq(trajectory) & VALID
        assert shifted[rows].sum().item() == pytest.approx(REWARDS[rows].sum().item() - first, abs=1e-12)


def test_order_and_padding_of_rows_change_nothing():
    order = torch.tensor([5, 3, 0, 4, 1, 2])
    for attribution in ("as_published", "shifted", "shifted_to_go"):
        permuted = attribute_credit(
            REWARDS[order],
            CENTERS[order],
            TRAJECTORY[order],
            STEP[order],
            VALID[order],
            attribution=attribution,
            center="policy_kl",
            gamma=0.5,
        )
        assert torch.equal(permuted, credit(attribution)[order])


def test_centred_reward_has_mean_0_under_the_old_policy_in_every_state():
    """Exact enumeration of two-token replies: the second distribution depends on the first token."""
    torch.manual_seed(0)
    old = [torch.randn(1, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)]
    prm = [torch.randn(1, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)]
    first, second = torch.cartesian_prod(torch.arange(4), torch.arange(4)).T
    mask = torch.ones(16, 2, dtype=torch.bool)

    def logits(model: list[Tensor]) -> Tensor:
        return torch.stack([model[0][0].expand(16, 4), model[1][first]], dim=1)

    def logprobs(model: list[Tensor]) -> Tensor:
        chosen = torch.stack([first, second], dim=1)[..., None]
        return logits(model).log_softmax(-1).gather(-1, chosen)[..., 0]

    rewards = step_rewards(token_log_ratios(logprobs(prm), logprobs(old), mask), mask, beta=0.05)
    centers = step_centers(token_kl(logits(old), logits(prm)), mask, beta=0.05)
    probability = logprobs(old).sum(-1).exp()
    assert probability.sum().item() == pytest.approx(1.0, abs=1e-12)
    assert (probability * rewards).sum().item() < -1e-3
    assert (probability * center_step_rewards(rewards, centers)).sum().abs() < 1e-15


def test_one_token_center_is_the_expected_reward():
    old, prm = torch.tensor([[[0.2, -0.3, 0.5]]]).double(), torch.tensor([[[0.1, 0.4, -0.2]]]).double()
    ratios = prm.log_softmax(-1) - old.log_softmax(-1)
    expected = 0.05 * (old.softmax(-1) * ratios).sum()
    center = step_centers(token_kl(old, prm), torch.ones(1, 1, dtype=torch.bool), beta=0.05)
    equal(center, [expected.item()])


def test_kl_of_equal_logits_is_0_and_only_the_prm_gets_gradient():
    old = torch.tensor([[[1.0, -2.0, -torch.inf]]], requires_grad=True)
    prm = torch.tensor([[[1.0, -2.0, -torch.inf]]], requires_grad=True)
    kl = token_kl(old, prm)
    assert kl.item() == 0
    kl.sum().backward()
    assert old.grad is None
    assert prm.grad.isfinite().all()


def test_kl_is_computed_in_float32_from_half_precision_logits():
    logits = torch.tensor([[[300.0, 299.0, 0.0]]], dtype=torch.bfloat16)
    kl = token_kl(logits, logits.flip(-1))
    assert kl.dtype == torch.float32
    expected = token_kl(logits.double(), logits.flip(-1).double())
    torch.testing.assert_close(kl.double(), expected, rtol=1e-6, atol=0)  # float32 rounding


def test_no_rows_give_no_credit():
    nobody = torch.zeros_like(VALID)
    result = attribute_credit(
        REWARDS, CENTERS, TRAJECTORY, STEP, nobody, attribution="shifted_to_go", center="none", gamma=0.9
    )
    assert result.eq(0).all()


def test_a_step_held_twice_is_rejected():
    with pytest.raises(ValueError, match="step 0 of trajectory 7 appears in 2 rows"):
        attribute_credit(
            REWARDS,
            CENTERS,
            TRAJECTORY,
            STEP,
            torch.ones_like(VALID),
            attribution="shifted",
            center="none",
            gamma=0.9,
        )


@pytest.mark.parametrize(
    ("attribution", "center", "centers", "gamma", "message"),
    [
        ("shift", "none", CENTERS, 0.9, 'mean "shifted"'),
        ("shifted", "kl", CENTERS, 0.9, 'unknown center "kl"'),
        ("shifted", "none", None, 0.9, "needs centers"),
        ("shifted", "none", CENTERS, 1.5, "gamma must be in [0, 1], got 1.5"),
    ],
)
def test_misuse_says_what_is_wrong(attribution, center, centers, gamma, message):
    with pytest.raises((ValueError, TypeError)) as error:
        attribute_credit(
            REWARDS, centers, TRAJECTORY, STEP, VALID, attribution=attribution, center=center, gamma=gamma
        )
    # With argument types checked at run time the checker answers first, in its own words.
    assert message in str(error.value) or isinstance(error.value, TypeError)
