"""What credit methods are built from and fed with in tests: small models, and games really played."""

import random
from dataclasses import replace
from functools import cache
from typing import Any

import gymnasium as gym
import torch

import istar_envs
from builders import VOCAB, RecordingLearner, Scene, all_pairs, make_batch, make_learner
from istar_envs.actions import format_reply
from istar_envs.agent import Conversation
from istar_envs.episode import Episode, Outcome
from istar_envs.sokoban.board import ACTION_NAMES
from istar_trainer.config_credits import PrmConfig
from istar_trainer.credits import BatchOutcomes, CreditParts
from istar_trainer.learner import Optimization
from istar_trainer.records import Group, Step, Trajectory

START_SEED = 7
"""Seed of the frozen start policy's weights; those of policies are 0 unless said otherwise."""


def make_env() -> gym.Env[Any, Any]:
    """Tiny levels that can be replayed by their ids."""
    return istar_envs.make("istar/Sokoban-v0", max_moves=4, max_steps=5)


def make_parts(policy: RecordingLearner, *, prm_seed: int = 1, **prm: Any) -> CreditParts:
    """Models of the policy's shape; the PRM starts from other weights unless ``prm_seed`` is 0."""

    def new_learner(optimization: Optimization, path: str | None) -> RecordingLearner:
        seed = prm_seed if optimization.lr else 0
        return make_learner(seed=seed, lr=optimization.lr, micro_batch_tokens=policy.micro_batch_tokens)

    reference = make_learner(seed=START_SEED)
    return CreditParts(
        policy, PrmConfig(**{"beta": 0.5, "lr": 1e-3, **prm}), new_learner, lambda: reference, make_env
    )


@cache
def played_scene(seed: int = 0, num_groups: int = 3, group_size: int = 4) -> Scene:
    """Groups of games of mixed quality with random tokens; equal states have equal prompts."""
    rng = random.Random(seed)
    env = make_env()
    prompts: dict[str, list[int]] = {}
    groups = []
    for number in range(num_groups):
        trajectories = []
        for member in range(group_size):
            episode = _play(env, number, skill=member / (group_size - 1), rng=rng)
            steps = []
            for transition in episode.transitions:
                prompt = prompts.setdefault(transition.state_key, _tokens(rng, 2, 5))
                reply = [*_tokens(rng, 1, 3), 2]
                steps.append(Step(prompt, reply, [-1.0] * len(reply)))
            name = f"g{number}/{member}"
            trajectories.append(Trajectory(name, f"g{number}", 0, tuple(steps), episode))
        groups.append(Group(f"g{number}", number, tuple(trajectories)))
    episodes = tuple(t.episode for group in groups for t in group.trajectories)
    won = torch.tensor([episode.success for episode in episodes])
    outcomes = BatchOutcomes(
        values=won.float(),
        has_outcome=torch.ones(len(won), dtype=torch.bool),
        groups=torch.arange(num_groups).repeat_interleave(group_size),
        successes=won,
        verdicts=tuple(Outcome("ok", "test", float(e.success), e.success) for e in episodes),
        episodes=episodes,
    )
    return Scene(tuple(groups), make_batch(groups), outcomes, all_pairs(outcomes))


def without_verdict(scene: Scene, trajectory: int) -> Scene:
    """The same scene, but nobody judged one of the trajectories."""
    has_outcome = scene.outcomes.has_outcome.clone()
    has_outcome[trajectory] = False
    values = scene.outcomes.values.masked_fill(~has_outcome, 0.0)
    outcomes = replace(scene.outcomes, values=values, has_outcome=has_outcome)
    keep = (scene.pairs.preferred != trajectory) & (scene.pairs.rejected != trajectory)
    pairs = scene.pairs
    return replace(
        scene,
        outcomes=outcomes,
        pairs=type(pairs)(
            pairs.preferred[keep], pairs.rejected[keep], pairs.weights[keep], pairs.targets[keep]
        ),
    )


def _play(env: gym.Env[Any, Any], seed: int, *, skill: float, rng: random.Random) -> Episode:
    conversation = Conversation(env, template="bare-v1", window=0)
    conversation.reset(seed=seed)
    while not conversation.done:
        world: Any = env.unwrapped
        action = ACTION_NAMES[world.expert_action()] if rng.random() < skill else rng.choice(ACTION_NAMES)
        conversation.respond(format_reply((action,)))
    return conversation.episode()


def _tokens(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(3, VOCAB) for _ in range(rng.randint(low, high))]
