"""Speed of making and solving levels. Run with `python -m pytest benchmarks/bench_sokoban_levels.py -s`.

Each benchmark prints its figures in CPU time of one core, the bar it is held to, and the ratio to
gym-sokoban 0.0.6, which makes 219 one-box levels per second (image included) and solves none.
"""

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import pytest

from istar_envs.sokoban.formats import read_levels
from istar_envs.sokoban.presets import PRESETS
from istar_envs.sokoban.retrograde import distances
from istar_envs.sokoban.solver import solve_pushes
from istar_envs.sokoban.sources import level_source

pytestmark = pytest.mark.benchmark(timer=thread_time)
PEER_RESETS = 219
BARS_MS = {
    name: 5.0 if name == "istar-6x6-3" else 1.0
    for name in PRESETS
    if "8x8" not in name and "larger" not in name
}
SHARED_DATA = Path(os.environ.get("ISTAR_SHARED_DATA", Path(__file__).parents[1].parent / "shared" / "data"))
BOXOBAN = SHARED_DATA / "boxoban" / "unfiltered_valid_000.txt"


def milliseconds(benchmark: Any, run: Callable[[int], object], rounds: int) -> np.ndarray:
    """Time one call per seed."""
    seeds = count()
    benchmark.pedantic(run, setup=lambda: ((next(seeds),), {}), rounds=rounds, warmup_rounds=50)
    return 1000 * np.array(benchmark.stats.stats.data)


@pytest.mark.parametrize("preset", PRESETS)
def test_draw_a_solved_level(benchmark: Any, preset: str) -> None:
    times = milliseconds(benchmark, level_source(preset).draw, 3000)
    p50, p99 = np.percentile(times, [50, 99])
    rate = 1000 / times.mean()
    bar = BARS_MS.get(preset)
    print(f"\n{preset}: {times.mean():.3f} ms mean, {p50:.3f} median, {p99:.3f} p99 (bar {bar or '-'})")
    print(f"{rate:,.0f} levels/s, {rate / PEER_RESETS:.1f} × gym-sokoban's {PEER_RESETS}/s")
    assert bar is None or p99 < bar


@pytest.mark.parametrize("preset", ["istar-6x6-1", "istar-6x6-2", "istar-6x6-3"])
def test_look_up_a_distance(benchmark: Any, preset: str) -> None:
    level = level_source(preset).draw(0)
    table = distances(level.layout, level.num_boxes)
    assert table is not None
    benchmark.pedantic(table.moves_left, (level.start,), rounds=20, iterations=2000)
    print(f"\n{preset}: {1e6 * benchmark.stats.stats.mean:.2f} µs per distance (bar 2)")
    assert benchmark.stats.stats.mean < 2e-6


@pytest.mark.skipif(not BOXOBAN.exists(), reason=f"official Boxoban file not at {BOXOBAN}")
def test_solve_boxoban_with_fewest_pushes(benchmark: Any) -> None:
    levels = read_levels(BOXOBAN)

    def solve(index: int) -> None:
        assert solve_pushes(levels[index].layout, levels[index].start) is not None

    seeds = iter(range(len(levels)))
    benchmark.pedantic(solve, setup=lambda: ((next(seeds),), {}), rounds=len(levels))
    times = 1000 * np.array(benchmark.stats.stats.data)
    p99 = np.percentile(times, 99)
    print(f"\n{len(times)} Boxoban levels: {times.sum() / 1000:.1f} s (bar 60), {p99:.1f} ms p99")
    assert times.sum() < 60_000
