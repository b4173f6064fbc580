"""What each algorithm makes of outcomes, token by token, with numbers worked out by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from builders import Scene, make_learner, make_scene, make_trajectory
from istar_trainer.algorithms import Algorithm, AlgorithmParts, OutcomeAdvantages, make_algorithm
from istar_trainer.batch import StepBatch, collate
from istar_trainer.config import LearnerConfig
from istar_trainer.config_algorithms import (
    DapoConfig,
    DynamicSampling,
    GrpoConfig,
    LossConfig,
    OverlongConfig,
    PpoConfig,
    ReinforcePpConfig,
    RlooConfig,
)
from istar_trainer.credits import BatchOutcomes
from istar_trainer.records import Step


class KnownValues:
    """A critic that says what it is told to, and cannot learn."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def token_values(self, batch: StepBatch, value) -> Tensor:
        return self.values


def make(config, *, critic=None, max_response_tokens: int = 4) -> Algorithm:
    parts = AlgorithmParts(
        lambda _config: critic or make_learner(),
        LearnerConfig(),
        max_response_tokens=max_response_tokens,
        seed=0,
    )
    return make_algorithm(config, parts)


def steps_of(*lengths: int) -> list[Step]:
    return [Step([3], [4] * length, [-1.0] * length) for length in lengths]


def make_batch(*lengths: tuple[int, ...]) -> StepBatch:
    """One group of trajectories with so many tokens in each step."""
    return collate([make_trajectory(str(n), "g", steps_of(*each)) for n, each in enumerate(lengths)], ["g"])


def make_outcomes(*values: float, has_outcome: tuple[bool, ...] | None = None) -> BatchOutcomes:
    size = len(values)
    return BatchOutcomes(
        values=torch.tensor(values),
        has_outcome=torch.tensor(has_outcome or (True,) * size),
        groups=torch.zeros(size, dtype=torch.long),
        successes=torch.tensor(values) > 0,
    )


def advantages(
    algorithm: Algorithm, batch: StepBatch, outcomes: BatchOutcomes, extra: Tensor | None = None
) -> OutcomeAdvantages:
    nothing = torch.zeros_like(batch.sampler_logprobs)
    return algorithm.advantages(batch, outcomes, nothing if extra is None else extra)


def on(batch: StepBatch, tokens: Tensor) -> list[list[float]]:
    """The values at the sampled tokens of each row; everything else must be 0."""
    assert tokens[~batch.response_mask].eq(0).all()
    return [
        [round(value, 4) for value in row[mask].tolist()]
        for row, mask in zip(tokens, batch.response_mask, strict=True)
    ]


def flat(rows: list[list[float]]) -> list[float]:
    return [value for row in rows for value in row]


BATCH = make_batch((2, 1), (3,))
OUTCOMES = make_outcomes(1.0, 0.0)
ONES = torch.where(BATCH.response_mask, 1.0, 0.0)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (RlooConfig(), [1.0, -1.0]),
        (GrpoConfig(std="none"), [0.5, -0.5]),
        (GrpoConfig(std="population"), [1.0, -1.0]),
        (GrpoConfig(), [0.7071, -0.7071]),
        (DapoConfig(), [0.7071, -0.7071]),
        (GrpoConfig(std="none", episode_stat="steps"), [1 / 3, -2 / 3]),  # mean over steps is 2/3
        (GrpoConfig(std="population", episode_stat="steps"), [0.5**0.5, -(2**0.5)]),  # deviation √2/3
    ],
    ids=str,
)
def test_group_methods_give_every_token_of_a_trajectory_the_same(config, expected):
    found = advantages(make(config), BATCH, OUTCOMES)
    assert found.trajectories.tolist() == pytest.approx(expected, abs=1e-4)
    one, other = (round(value, 4) for value in found.trajectories.tolist())
    assert on(BATCH, found.tokens) == [[one, one], [one], [other] * 3]


@pytest.mark.parametrize("config", [RlooConfig(), GrpoConfig(std="none"), DapoConfig(std="none")], ids=str)
def test_group_methods_add_what_tokens_earn_to_the_outcome(config):
    costs = torch.where(BATCH.trajectory_index == 1, -0.1, 0.0)[:, None] * ONES
    found = advantages(make(config), BATCH, OUTCOMES, costs)
    expected = advantages(make(config), BATCH, make_outcomes(1.0, -0.3))
    torch.testing.assert_close(found.tokens, expected.tokens)


@pytest.mark.parametrize("config", [RlooConfig(), GrpoConfig(), ReinforcePpConfig(), PpoConfig()], ids=str)
def test_a_trajectory_without_a_verdict_gets_nothing_and_enters_no_mean(config):
    outcomes = make_outcomes(1.0, 50.0, 0.0, has_outcome=(True, False, True))
    batch = make_batch((2, 1), (3,), (1, 1))
    found = advantages(make(config, critic=KnownValues(torch.zeros(5, 4))), batch, outcomes)
    other = advantages(
        make(config, critic=KnownValues(torch.zeros(5, 4))),
        batch,
        replace(outcomes, values=torch.tensor([1.0, -9.0, 0.0])),
    )
    assert on(batch, found.tokens)[2] == [0.0, 0.0, 0.0]
    assert found.trajectories[1] == 0
    assert torch.equal(found.tokens, other.tokens)


def whitened(values: list[float]) -> list[float]:
    flat = torch.tensor(values, dtype=torch.float64)
    return ((flat - flat.mean()) / flat.std(correction=0)).tolist()


def test_reinforce_pp_whitens_the_rewards_to_go_of_tokens():
    found = advantages(make(ReinforcePpConfig()), BATCH, OUTCOMES)
    assert flat(on(BATCH, found.tokens)) == pytest.approx(whitened([1, 1, 1, 0, 0, 0]), abs=1e-4)
    assert found.trajectories.tolist() == pytest.approx([1.0, -1.0], abs=1e-4)


def test_reinforce_pp_discounts_over_the_tokens_of_the_whole_trajectory():
    found = advantages(make(ReinforcePpConfig(gamma=0.5)), BATCH, OUTCOMES)
    assert flat(on(BATCH, found.tokens)) == pytest.approx(whitened([0.25, 0.5, 1, 0, 0, 0]), abs=1e-4)
    with_costs = advantages(make(ReinforcePpConfig()), BATCH, OUTCOMES, -0.1 * ONES)
    expected = whitened([0.7, 0.8, 0.9, -0.3, -0.2, -0.1])
    assert flat(on(BATCH, with_costs.tokens)) == pytest.approx(expected, abs=1e-4)


def test_reinforce_pp_with_a_baseline_compares_inside_the_group_first():
    scene = make_scene()
    config = ReinforcePpConfig(baseline="group")
    found = advantages(make(config), scene.batch, scene.outcomes)
    centred = advantages(make(GrpoConfig(std="none")), scene.batch, scene.outcomes)
    mask = scene.batch.response_mask
    expected = whitened(centred.tokens[mask].tolist())
    assert found.tokens[mask].tolist() == pytest.approx(expected, abs=1e-5)


def test_equal_outcomes_give_exactly_nothing_where_everything_is_relative():
    for config in (RlooConfig(), GrpoConfig(), ReinforcePpConfig(), ReinforcePpConfig(baseline="group")):
        assert advantages(make(config), BATCH, make_outcomes(0.3, 0.3)).tokens.eq(0).all()


VALUES = torch.where(
    BATCH.response_mask, torch.tensor([[0, 0.5, 0.6, 0], [0, 0.7, 0, 0], [0, 0.2, 0.4, 0.6]]), 0.0
)


def ppo(**options) -> Algorithm:
    return make(PpoConfig(whiten=False, **options), critic=KnownValues(VALUES))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # every step ends with the outcome: 1 − V, and 0 − V
        ({"gae_scope": "row"}, [[0.5, 0.4], [0.3], [-0.2, -0.4, -0.6]]),
        ({"gae_scope": "row", "lam": 0.0}, [[0.1, 0.4], [0.3], [0.2, 0.2, -0.6]]),
        # the golden vector G9 across the border of two steps
        ({"gae_scope": "token_across_steps"}, [[0.5, 0.4], [0.3], [-0.2, -0.4, -0.6]]),
        (
            {"gae_scope": "token_across_steps", "gamma": 0.99, "lam": 0.95},
            [[0.4468, 0.3752], [0.3], [-0.1523, -0.3703, -0.6]],
        ),
        # first tokens only: .5·.7 − .5 + .25·(1 − .7), then 1 − .7; 0 − .2
        ({"gae_scope": "step", "gamma": 0.5, "lam": 0.5}, [[-0.075, -0.075], [0.3], [-0.2] * 3]),
        # .1 + 1·(.7 − .6 + .5·.3) inside step 0 with γ = λ = 1 there
        (
            {"gae_scope": "bilevel", "gamma_turn": 1.0, "lam_turn": 0.5},
            [[0.35, 0.25], [0.3], [-0.2, -0.4, -0.6]],
        ),
    ],
    ids=str,
)
def test_ppo_scopes_by_hand(options, expected):
    found = advantages(ppo(**options), BATCH, OUTCOMES)
    assert on(BATCH, found.tokens) == [pytest.approx(row, abs=1e-4) for row in expected]
    means = [sum(expected[0] + expected[1]) / 3, sum(expected[2]) / 3]
    assert found.trajectories.tolist() == pytest.approx(means, abs=1e-4)


def test_ppo_steps_earn_what_their_tokens_earn():
    found = advantages(ppo(gae_scope="step"), BATCH, OUTCOMES, -0.1 * ONES)
    # −.2 + .7 − .5 + (1 − .1 − .7), 1 − .1 − .7; −.3 − .2
    assert on(BATCH, found.tokens) == [pytest.approx(row) for row in ([0.2, 0.2], [0.2], [-0.5] * 3)]


@pytest.mark.parametrize("scope", ["row", "step", "token_across_steps", "bilevel"])
def test_ppo_whitens_over_what_the_critic_is_asked_for(scope):
    algorithm = make(PpoConfig(gae_scope=scope), critic=KnownValues(VALUES))
    found = advantages(algorithm, BATCH, OUTCOMES).tokens
    plain = advantages(ppo(gae_scope=scope), BATCH, OUTCOMES).tokens
    if scope == "step":
        expected = whitened([row[0] for row in on(BATCH, plain)])
        assert on(BATCH, found) == [
            [pytest.approx(v, abs=1e-3)] * n for v, n in zip(expected, (2, 1, 3), strict=True)
        ]
    else:
        assert flat(on(BATCH, found)) == pytest.approx(whitened(flat(on(BATCH, plain))), abs=1e-3)


@pytest.mark.parametrize("scope", ["row", "step", "token_across_steps", "bilevel"])
def test_ppo_teaches_its_critic_the_returns_of_each_scope(scope):
    scene, critic = make_scene(), make_critic()
    algorithm = make(PpoConfig(gae_scope=scope, value_clip=None), critic=critic)
    assert dict(algorithm.learners) == {"critic": critic}
    told = [learn(algorithm, scene)["critic/loss"] for _ in range(12)]
    assert told[-1] < 0.5 * told[0]


def make_critic():
    from test_critic import make_critic as with_head

    return with_head(lr=1e-2)


def learn(algorithm: Algorithm, scene: Scene) -> dict[str, float]:
    advantages(algorithm, scene.batch, scene.outcomes)
    return algorithm.learn(scene.batch)


def test_only_ppo_has_a_model_of_its_own():
    for config in (RlooConfig(), GrpoConfig(), ReinforcePpConfig(), DapoConfig()):
        algorithm = make(config)
        assert algorithm.learners == {}
        assert algorithm.learn(BATCH) == {}


def test_dapo_takes_its_penalty_off_the_outcome_of_replies_near_the_limit():
    config = DapoConfig(std="none", overlong=OverlongConfig(buffer=2, factor=0.5))
    # limit 3, ramp above 1: lengths 2, 1 and 3 cost .25, 0 and .5, so outcomes are .75 and −.5
    found = advantages(make(config, max_response_tokens=3), BATCH, OUTCOMES)
    assert found.trajectories.tolist() == pytest.approx([0.625, -0.625])


def test_recipes_are_the_defaults():
    assert (
        DapoConfig().loss.model_dump()
        == LossConfig(clip_high=0.28, aggregation="token_mean", dual_clip=10.0).model_dump()
    )
    assert DapoConfig().dynamic_sampling == DynamicSampling(max_batches=10)
    for config in (RlooConfig(), GrpoConfig(), ReinforcePpConfig(), PpoConfig()):
        assert config.dynamic_sampling is None
        assert config.loss == LossConfig()
    assert (PpoConfig().gamma, PpoConfig().lam, PpoConfig().critic.lr) == (1.0, 1.0, 1e-5)
