"""What slow environments cost a rollout. Run with `python -m pytest benchmarks/bench_rollout.py -s`.

Steps wait for random times, the same ones in every setting; replies are drawn in a fixed time per batch. The
ideal is the longest trajectory on a machine of its own: its waits and its replies. On a machine that is busy
with something else only the comparison of settings means something.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import istar_envs
from istar_envs.seeding import derive_seed
from istar_trainer.attempts import Task
from istar_trainer.backlog import Backlog
from istar_trainer.config import RolloutConfig
from istar_trainer.rollout import Player
from istar_trainer.sampler import Completion, Request
from istar_trainer.tiny import init_tiny
from istar_trainer.weights import load_model

MAX_STEPS = 8
BATCH_S = 0.02
MEAN_WAIT_S = 0.1
BAR = 1.3


class Slow(gym.Wrapper[Any, Any, Any, Any]):
    """Waits for an exponentially distributed time before each step, as a function of number, level and step.

    Args:
        env: What is played.
        number: Tells it from the others.
        factor: How much slower the environment is, by its level.
    """

    def __init__(self, env: gym.Env[Any, Any], number: int, factor: Callable[[int], float]) -> None:
        super().__init__(env)
        self._number = number
        self._factor, self._level, self._position, self.waited = factor, 0, 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._level, self._position, self.waited = seed or 0, 0, 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self._position += 1
        draw = random.Random(derive_seed(self._level, self._number, self._position)).expovariate(1.0)
        seconds = draw * MEAN_WAIT_S * self._factor(self._level)
        self.waited += seconds
        time.sleep(seconds)
        return self.env.step(action)


class Drawing:
    """Draws one and the same legal move, in a fixed time for each batch."""

    def __init__(self, tokenizer: Any) -> None:
        ids = tokenizer("<action>up</action>", add_special_tokens=False)["input_ids"]
        self._reply = Completion((*ids, tokenizer.eos_token_id), (-1.0,) * (len(ids) + 1))
        self.snapshot_id = 0

    def generate(self, requests: Sequence[Request], *, temperature: float) -> list[Completion]:
        time.sleep(BATCH_S)
        return [self._reply] * len(requests)

    def load(self, weights: dict[str, Any], snapshot_id: int) -> None:
        self.snapshot_id = snapshot_id


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("tiny") / "model"
    init_tiny(
        make_env(),
        folder,
        template="bare-v1",
        window=0,
        vocab_size=300,
        episodes=5,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        vision_layers=1,
        rope_theta=30.0,
        seed=0,
    )
    return load_model(folder)[1]


def make_env() -> gym.Env[Any, Any]:
    return istar_envs.make("istar/Sokoban-v0", max_steps=MAX_STEPS)


def make_player(tokenizer: Any, made: list[Slow], factor: Callable[[int], float], **options: Any) -> Player:
    def make() -> Slow:
        made.append(Slow(make_env(), len(made), factor))
        return made[-1]

    return Player(make, tokenizer, template="bare-v1", window=0, max_prompt_tokens=1024, **options)


def test_a_rollout_takes_little_longer_than_its_slowest_trajectory(tokenizer: Any) -> None:
    measured = {}
    for num_threads, frac in [(0, 1.0), (16, 1.0), (16, 0.5), (16, 0.25), (16, 0.1)]:
        made: list[Slow] = []
        player = make_player(
            tokenizer, made, lambda _level: 1.0, env_threads=num_threads, min_ready_frac=frac
        )
        start = time.perf_counter()
        player.play(
            [Task(f"t{n}", n) for n in range(16)], Drawing(tokenizer), group_size=1, seed=0, temperature=1
        )
        seconds = time.perf_counter() - start
        player.close()
        ideal = max(env.waited for env in made) + MAX_STEPS * BATCH_S
        measured[num_threads, frac] = seconds / ideal
        print(
            f"env_threads {num_threads:2}, min_ready_frac {frac:4}: {seconds:5.2f} s, "
            f"{seconds / ideal:.2f} x ideal"
        )
    assert measured[16, 0.25] <= BAR


def test_an_iteration_does_not_wait_for_its_slowest_groups(tokenizer: Any) -> None:
    def play(spare_tasks: int) -> Iterator[float]:
        made: list[Slow] = []
        player = make_player(
            tokenizer, made, lambda level: 8.0 if level % 8 == 0 else 1.0, env_threads=48, min_ready_frac=0.1
        )
        rollout = RolloutConfig(
            num_tasks=8, group_size=2, spare_tasks=spare_tasks, max_lag=3 if spare_tasks else 0
        )
        backlog = Backlog(player, rollout, seed=0, iterations=6)
        sampler = Drawing(tokenizer)
        for iteration in range(6):
            sampler.load({}, iteration)
            start = time.perf_counter()
            backlog.play(iteration, sampler)
            yield time.perf_counter() - start
        player.close()

    for spare_tasks in (0, 2, 4, 8):
        seconds = list(play(spare_tasks))
        print(
            f"spare_tasks {spare_tasks}: {' '.join(f'{s:.1f}' for s in seconds)} s, {sum(seconds):.1f} in all"
        )
