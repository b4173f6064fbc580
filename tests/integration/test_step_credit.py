"""Environment, sampler, pairs and PRM together find the one step of a chain that decides (spec §8, P25)."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from bandit_chain import WORDS, BanditChain
from istar_envs.actions import format_reply
from istar_envs.episode import Outcome
from istar_judges.pairs import PairRule, make_pairs, weigh_pairs
from istar_trainer.attempts import Task
from istar_trainer.batch import StepBatch, collate
from istar_trainer.config_credits import IstarCredit as CreditConfig
from istar_trainer.config_credits import PrmConfig
from istar_trainer.context import encode, render
from istar_trainer.credits import BatchOutcomes
from istar_trainer.credits.istar import IstarCredit
from istar_trainer.credits.online_prm import OnlinePrm
from istar_trainer.learner import Optimization, TorchLearner
from istar_trainer.prm import ImplicitPrm, Pairs
from istar_trainer.records import Step
from istar_trainer.rollout import Player
from istar_trainer.sampler import LocalSampler
from istar_trainer.sft import demonstration_batch
from istar_trainer.tiny import collect_text, make_model, train_tokenizer

pytestmark = pytest.mark.integration
LENGTH, KEY = 4, 2


@dataclass(frozen=True)
class Played:
    batch: StepBatch
    outcomes: BatchOutcomes
    pairs: Pairs


class Lab:
    """A policy that chooses at random and a PRM that starts from the same weights."""

    def __init__(self, prm: PrmConfig, credit: CreditConfig) -> None:
        env = BanditChain(LENGTH, KEY)
        self.tokenizer = train_tokenizer(collect_text(env, template="bare-v1", window=0, episodes=5))
        self.policy = self._make_learner(lr=1e-2)
        self._clone_coin_flips()
        prm_learner = self._make_learner(lr=3e-3)
        prm_learner.load(self.policy.snapshot())
        with_centers = credit.center != "none"
        self.prm = ImplicitPrm(prm_learner, self.policy, prm, with_centers=with_centers)
        self.credit = IstarCredit(OnlinePrm(self.prm, self.policy, prm), credit)
        self.sampler = LocalSampler(
            self.policy.model, eos_token_id=self.tokenizer.eos_token_id, max_new_tokens=5
        )
        self.player = Player(
            lambda: BanditChain(LENGTH, KEY),
            self.tokenizer,
            template="bare-v1",
            window=0,
            max_prompt_tokens=100,
        )

    def play(self, num_groups: int, seed: int) -> Played:
        tasks = [Task(f"{seed}/{number}", number) for number in range(num_groups)]
        groups = self.player.play(tasks, self.sampler, group_size=8, seed=seed, temperature=1.0)
        trajectories = [t for group in groups for t in group.trajectories]
        won = [t.episode.success for t in trajectories]
        verdicts = {t.id: Outcome("ok", "chain", float(w), w) for t, w in zip(trajectories, won, strict=True)}
        pairs = weigh_pairs(
            make_pairs({t.id: verdicts[t.id] for t in group.trajectories}, group_id=group.id, rule=PairRule())
            for group in groups
        )
        return Played(
            collate(trajectories, [group.id for group in groups]),
            BatchOutcomes(
                values=torch.tensor(won).float(),
                has_outcome=torch.ones(len(won), dtype=torch.bool),
                groups=torch.arange(num_groups).repeat_interleave(8),
                successes=torch.tensor(won),
            ),
            Pairs.of(pairs, [t.id for t in trajectories]),
        )

    def _make_learner(self, lr: float) -> TorchLearner:
        model = make_model(
            len(self.tokenizer),
            hidden_size=32,
            num_layers=1,
            num_heads=2,
            eos_token_id=self.tokenizer.eos_token_id,
            seed=0,
        )
        return TorchLearner(model, Optimization(lr, 0.0, 1.0), temperature=1.0, micro_batch_tokens=10_000)

    def _clone_coin_flips(self) -> None:
        """Teach the policy the format and both words alike in every step."""
        steps = []
        for observation in range(LENGTH):
            messages = [{"role": "user", "content": str(observation)}]
            prompt = encode(self.tokenizer, render(self.tokenizer, messages))
            for word in WORDS:
                reply = [*encode(self.tokenizer, format_reply((word,))), self.tokenizer.eos_token_id]
                steps.append(Step(prompt, reply, [0.0] * len(reply)))
        batch = demonstration_batch(steps)
        for _ in range(120):
            self.policy.backward(batch, lambda out, _rows: -out.logprobs().sum() / len(steps))
            self.policy.step()


def auc(won: Tensor, lost: Tensor) -> float:
    """Probability that a value of the first kind is above one of the second; ties count one half."""
    difference = won[:, None] - lost
    return float(((difference > 0).double() + 0.5 * (difference == 0).double()).mean())


def auc_by_step(values: Tensor, played: Played) -> list[float]:
    won = played.outcomes.successes[played.batch.trajectory_index]
    at = [played.batch.step_index == step for step in range(LENGTH)]
    return [auc(values[here & won], values[here & ~won]) for here in at]


@pytest.mark.parametrize("score", ["sum", "mean", "centered_sum"])
def test_credit_is_found_at_the_step_that_decides_and_nowhere_else(score):
    center = "policy_kl" if score == "centered_sum" else "none"
    lab = Lab(PrmConfig(score=score, updates_per_iteration=4), CreditConfig(center=center))
    first = lab.play(8, seed=1)
    assert 0.3 < first.outcomes.values.mean() < 0.7, "the policy must flip coins"
    for iteration in range(6):
        played = lab.play(8, seed=iteration + 1)
        lab.credit.assign(played.batch, lab.policy.logprobs(played.batch), played.outcomes, played.pairs)
    fresh = lab.play(32, seed=100)
    scores = lab.prm.score(fresh.batch, lab.policy.logprobs(fresh.batch))
    values = scores.rewards - scores.centers if score == "centered_sum" else scores.rewards
    found = auc_by_step(values, fresh)
    assert found[KEY] > 0.9, found
    assert all(0.35 < value < 0.65 for step, value in enumerate(found) if step != KEY), found
