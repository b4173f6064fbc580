"""Speed of the Sokoban environments. Run with `python -m pytest benchmarks/bench_sokoban_env.py -s`.

Each benchmark prints a rate in CPU time of one core, the bar it is held to, and its ratio to
gym-sokoban 0.0.6 (219 resets/s, 616 image steps/s, 639 frames/s; its rules alone 51,000 steps/s).
"""

from collections.abc import Callable
from time import process_time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import istar_envs
from istar_envs.sokoban.render import Renderer

pytestmark = pytest.mark.benchmark(timer=process_time)
PEER_RESETS, PEER_IMAGE_STEPS, PEER_FRAMES, PEER_RULES = 219, 616, 639, 51_000


def report(benchmark: Any, run: Callable[[], Any], count: int, *, what: str, bar: float, peer: float) -> None:
    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    rate = count / benchmark.stats.stats.min
    print(f"\n{what}: {rate:,.0f}/s (bar {bar:,.0f}/s), {rate / peer:,.0f} × gym-sokoban's {peer:,}/s")
    assert rate >= bar


def step_rate(env: gym.Env[Any, Any], count: int = 20_000) -> float:
    """Return random steps per second of CPU time, the resets in between not counted; best of three."""
    actions = np.random.default_rng(0).integers(4, size=count).tolist()
    env.reset(seed=0)
    return max(count / _seconds(env, actions) for _ in range(3))


def _seconds(env: gym.Env[Any, Any], actions: list[int]) -> float:
    resets, has_ended, start = 0.0, True, process_time()
    for action in actions:
        if has_ended:
            before = process_time()
            env.reset()
            resets += process_time() - before
        _, _, terminated, truncated, _ = env.step(action)
        has_ended = terminated or truncated
    return process_time() - start - resets


@pytest.mark.parametrize("preset", ["istar-6x6-1", "istar-6x6-2", "istar-6x6-3"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["unwrapped", "wrapped"])
def test_single_steps_with_full_info(preset: str, wrapped: bool) -> None:
    env = istar_envs.make("istar/Sokoban-v0", levels=preset)
    rate = step_rate(env if wrapped else env.unwrapped)
    print(
        f"\n{preset}: {rate:,.0f} steps/s with full info (bar 50,000/s), {rate / PEER_RULES:.1f} × bare rules"
    )
    assert rate >= 50_000


def test_visual_single_steps() -> None:
    rate = step_rate(istar_envs.make("istar/VisualSokoban-v0", tile_size=16).unwrapped)
    print(f"\n96×96 image steps: {rate:,.0f}/s, {rate / PEER_IMAGE_STEPS:,.0f} × gym-sokoban's 616/s")
    assert rate >= 50_000


def test_resets(benchmark: Any) -> None:
    env = istar_envs.make("istar/Sokoban-v0").unwrapped
    env.reset(seed=0)
    report(
        benchmark, lambda: [env.reset() for _ in range(300)], 300, what="resets", bar=1_000, peer=PEER_RESETS
    )


@pytest.mark.parametrize("num_envs", [256, 1024])
def test_vectorised_steps_with_resets(benchmark: Any, num_envs: int) -> None:
    vector = gym.make_vec("istar/Sokoban-v0", num_envs=num_envs)
    vector.reset(seed=0)
    actions = np.random.default_rng(0).integers(4, size=(200, num_envs))
    what = f"vectorised steps, {num_envs} boards"
    run = lambda: [vector.step(row) for row in actions]  # noqa: E731
    report(benchmark, run, actions.size, what=what, bar=1_000_000, peer=PEER_RULES)


def test_vectorised_visual_steps(benchmark: Any) -> None:
    vector = gym.make_vec("istar/VisualSokoban-v0", num_envs=256, tile_size=16)
    vector.reset(seed=0)
    actions = np.random.default_rng(0).integers(4, size=(20, 256))
    run = lambda: [vector.step(row) for row in actions]  # noqa: E731
    report(benchmark, run, actions.size, what="vectorised 96×96 steps", bar=100_000, peer=PEER_IMAGE_STEPS)


def test_frames(benchmark: Any) -> None:
    vector = gym.make_vec("istar/Sokoban-v0", num_envs=512)
    observations, _ = vector.reset(seed=0)
    boards, renderer = [board.tobytes() for board in observations], Renderer(16)
    run = lambda: [renderer.draw(board, 6) for board in boards]  # noqa: E731
    report(benchmark, run, len(boards), what="96×96 frames", bar=100_000, peer=PEER_FRAMES)
