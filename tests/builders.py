"""Builders of small things that many tests need: models, steps, trajectories, batches, samplers."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from istar_envs.episode import EndReason, Episode, Transition
from istar_trainer.batch import StepBatch, collate
from istar_trainer.credits import BatchOutcomes
from istar_trainer.learner import Optimization, TorchLearner
from istar_trainer.prm import Pairs
from istar_trainer.records import Group, Step, Trajectory
from istar_trainer.sampler import Completion, Request
from istar_trainer.tiny import make_model

VOCAB = 24
EOS = 2
FLOAT32 = 1e-5
"""Two orders of summation in fp32 differ by less than this on numbers of the size of a logprob."""


def make_lm(*, vocab: int = VOCAB, hidden: int = 16, layers: int = 1, seed: int = 0) -> nn.Module:
    """A random transformer with weights large enough that every token of its context matters."""
    model = make_model(vocab, hidden_size=hidden, num_layers=layers, num_heads=2, eos_token_id=EOS, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    return model


class RecordingLearner(TorchLearner):
    """Keeps the gradient and the weights of every optimizer step, from just before it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.gradients: list[dict[str, Tensor]] = []
        self.weights: list[dict[str, Tensor]] = []

    def step(self) -> float:
        self.gradients.append(gradients(self.model))
        self.weights.append(self.snapshot())
        return super().step()


def make_learner(
    *,
    seed: int = 0,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    grad_clip: float = 1e9,
    temperature: float = 1.0,
    micro_batch_tokens: int = 10_000,
    layers: int = 1,
) -> RecordingLearner:
    return RecordingLearner(
        make_lm(seed=seed, layers=layers),
        Optimization(lr, weight_decay, grad_clip),
        temperature=temperature,
        micro_batch_tokens=micro_batch_tokens,
    )


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the gradient of every parameter that has one."""
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same_tensors(actual: dict[str, Tensor], expected: dict[str, Tensor], *, atol: float = 0) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=0, atol=atol, equal_nan=True, msg=name)


def make_episode(
    *,
    success: bool = True,
    num_steps: int = 1,
    end: EndReason = "terminated",
    error: str | None = None,
    task_id: str = "task",
    env_id: str = "istar/Sokoban-v0",
) -> Episode:
    """An episode of steps that say nothing; each costs 0.1."""
    transition = Transition(
        observation="o", reply="<action>up</action>", action="up", reward=-0.1, valid=True, state_key="k"
    )
    return Episode(
        env_id=env_id,
        task_id=task_id,
        task="",
        transitions=(transition,) * num_steps,
        success=success,
        score=float(success),
        end=end,
        error=error,
    )


def make_trajectory(
    key: str,
    group_id: str,
    steps: Sequence[Step],
    *,
    success: bool = False,
    snapshot_id: int = 0,
    failed: bool = False,
) -> Trajectory:
    episode = make_episode(
        success=success,
        num_steps=len(steps),
        end="failed" if failed else "terminated",
        error="broke" if failed else None,
    )
    return Trajectory(key, group_id, snapshot_id, tuple(steps), episode)


def make_group(key: str, successes: Sequence[bool], rng: random.Random, *, max_steps: int = 3) -> Group:
    """Trajectories of random tokens and lengths that share their first prompt."""
    opening = _tokens(rng, 2, 6)
    trajectories = []
    for number, success in enumerate(successes):
        prompts = [opening, *(_tokens(rng, 1, 6) for _ in range(rng.randint(0, max_steps - 1)))]
        steps = [_make_step(prompt, rng) for prompt in prompts]
        trajectories.append(make_trajectory(f"{key}/{number}", key, steps, success=success))
    return Group(key, 0, tuple(trajectories))


def make_batch(groups: Sequence[Group]) -> StepBatch:
    return collate([t for g in groups for t in g.trajectories], [g.id for g in groups])


@dataclass(frozen=True)
class Scene:
    """A batch with everything that the lines after the rollout read."""

    groups: tuple[Group, ...]
    batch: StepBatch
    outcomes: BatchOutcomes
    pairs: Pairs


def make_scene(
    seed: int = 0,
    successes: Sequence[Sequence[bool]] = ((True, False, False), (True, True, False), (False, False)),
) -> Scene:
    """Groups of random trajectories, by default two with pairs and one without."""
    rng = random.Random(seed)
    groups = tuple(make_group(f"g{n}", wins, rng) for n, wins in enumerate(successes))
    flat = [win for wins in successes for win in wins]
    outcomes = BatchOutcomes(
        values=torch.tensor(flat).float(),
        has_outcome=torch.ones(len(flat), dtype=torch.bool),
        groups=torch.arange(len(successes)).repeat_interleave(torch.tensor([len(w) for w in successes])),
        successes=torch.tensor(flat),
    )
    return Scene(groups, make_batch(groups), outcomes, all_pairs(outcomes))


def all_pairs(outcomes: BatchOutcomes) -> Pairs:
    """Every success of a group over every failure of it, groups weighing the same."""
    better = outcomes.values[:, None] > outcomes.values
    preferred, rejected = (better & (outcomes.groups[:, None] == outcomes.groups)).nonzero().T
    keys = outcomes.groups[preferred]
    counts = torch.bincount(keys, minlength=int(outcomes.groups.max()) + 1).double()
    weights = 1 / counts[keys] / max(int((counts > 0).sum()), 1)
    return Pairs(preferred, rejected, weights, torch.ones(len(preferred), dtype=torch.float64))


class ScriptedSampler:
    """Says what a function of the request tells it to, as token ids with an end."""

    def __init__(self, tokenizer: Any, reply: Callable[[Request], str]) -> None:
        self.requests: list[list[Request]] = []
        self.snapshot_id = 0
        self._tokenizer = tokenizer
        self._reply = reply

    def generate(self, requests: Sequence[Request], *, temperature: float) -> list[Completion]:
        self.requests.append(list(requests))
        return [self._complete(self._reply(request)) for request in requests]

    def load(self, weights: dict[str, Tensor], snapshot_id: int) -> None:
        self.snapshot_id = snapshot_id

    def _complete(self, text: str) -> Completion:
        ids = (*self._tokenizer(text, add_special_tokens=False)["input_ids"], self._tokenizer.eos_token_id)
        return Completion(ids, (-1.0,) * len(ids))


def _tokens(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(3, VOCAB) for _ in range(rng.randint(low, high))]


def _make_step(prompt: list[int], rng: random.Random) -> Step:
    response = [*_tokens(rng, 1, 4), EOS]
    return Step(prompt, response, [-1.0] * len(response))
