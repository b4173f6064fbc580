"""Load on the server of environments. Run with `python -m pytest benchmarks/bench_server.py -s`.

Server and load are two processes of one machine. Every answer is checked to be that of its own session, and
at the end every session is compared with the same episode played here. ISTAR_SOAK_S sets the length of the
soak in seconds; 1,200 is the bar's.
"""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import gymnasium as gym
import numpy as np
import pytest
from http_load import Player, abandon, open_players, play_batched, play_singly, quantile

import istar_envs

SOKOBAN = "istar/Sokoban-v0"
SESSIONS, CONNECTIONS, SECONDS = 1000, 32, 10.0
SOAK_S = float(os.environ.get("ISTAR_SOAK_S", "60"))


class Serving:
    """A server in a process of its own."""

    def __init__(self, *options: str) -> None:
        code = "import sys; from istar_envs.cli import main; main(sys.argv[1:])"
        words = ["serve", SOKOBAN, "--rate", "1000000", *options]
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout
        self.url = re.search(r"http://\S+\d", self.process.stdout.readline())[0]  # type: ignore[index]
        gym.make("istar/Remote-v0", url=self.url, env=SOKOBAN).close()

    def cpu_s(self) -> float:
        """Return the processor time that it took so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Return its resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.communicate(timeout=30)


@pytest.fixture
def server() -> Iterator[Serving]:
    serving = Serving("--port", "8799")
    yield serving
    serving.stop()


def check(players: list[Player]) -> None:
    """Compare where every session stands with the same episode played here."""
    env = istar_envs.make(SOKOBAN)
    for player in players:
        result = (None, env.reset(seed=player.number)[1])
        for action in player.actions:
            result = env.step(action)
        assert result[-1]["state_key"] == player.latest["info"]["state_key"]


def report(what: str, steps: int, seconds: float, cpu_s: float, bar: float) -> None:
    rate = steps / seconds
    each = f"{cpu_s / steps * 1e6:,.0f} µs of server CPU each, {cpu_s / seconds:.0%} of a core"
    print(f"\n{what}: {rate:,.0f} steps/s (bar {bar:,.0f}), {each}")
    assert rate >= bar


def test_single_steps_of_a_thousand_sessions(server: Serving) -> None:
    async def load() -> None:
        players = await open_players(server.url, SOKOBAN, SESSIONS)
        began, cpu = perf_counter(), server.cpu_s()
        latencies = await play_singly(server.url, players, connections=CONNECTIONS, seconds=SECONDS)
        seconds, cpu = perf_counter() - began, server.cpu_s() - cpu
        steps = sum(player.steps for player in players)
        full_rate = len(latencies) / seconds
        half = await play_singly(
            server.url, players, connections=CONNECTIONS, seconds=SECONDS, rate=full_rate / 2
        )
        tail = quantile(half, 0.99)
        print(
            f"\nat half load: {len(half) / SECONDS:,.0f} requests/s, 99% within {tail * 1e3:.1f} ms (bar 50)"
        )
        check(players)
        report("single steps", steps, seconds, cpu, 1_500)
        assert tail < 0.05

    asyncio.run(load())


def test_batched_steps_of_a_thousand_sessions(server: Serving) -> None:
    async def load() -> None:
        players = await open_players(server.url, SOKOBAN, SESSIONS)
        began, cpu = perf_counter(), server.cpu_s()
        await play_batched(server.url, players, connections=4, seconds=SECONDS)
        seconds, cpu = perf_counter() - began, server.cpu_s() - cpu
        check(players)
        report("batched steps", sum(player.steps for player in players), seconds, cpu, 10_000)

    asyncio.run(load())


def test_our_own_clients(server: Serving) -> None:
    env = gym.make("istar/Remote-v0", url=server.url, env=SOKOBAN)
    vector = gym.make_vec("istar/Remote-v0", 256, url=server.url, env=SOKOBAN)
    env.reset(seed=0)
    began, has_ended = perf_counter(), False
    for _ in range(2_000):
        if has_ended:
            env.reset()
        _, _, terminated, truncated, _ = env.step(0)
        has_ended = terminated or truncated
    print(f"\nistar/Remote-v0: {2_000 / (perf_counter() - began):,.0f} steps/s")
    vector.reset(seed=0)
    actions = np.random.default_rng(0).integers(4, size=(40, 256))
    began = perf_counter()
    for row in actions:
        vector.step(row)
    print(f"\nistar/Remote-v0, 256 rows: {actions.size / (perf_counter() - began):,.0f} steps/s")
    env.close()
    vector.close()


def test_memory_stays_flat_while_sessions_are_abandoned() -> None:
    serving = Serving("--port", "8799", "--idle-s", "2", "--max-sessions", "500")

    async def load() -> tuple[int, int, list[float]]:
        count, expired, memory = 0, 0, []
        for _ in range(10):
            opened, late = await abandon(serving.url, SOKOBAN, seconds=SOAK_S / 10)
            count, expired = count + opened, expired + late
            memory.append(serving.memory_mb())
        return count, expired, memory

    count, expired, memory = asyncio.run(load())
    serving.stop()
    told = f"{count:,} sessions abandoned in {SOAK_S:,.0f} s, {expired:,} of them before their last step"
    print(f"\n{told}: {' '.join(f'{mb:.0f}' for mb in memory)} MB")
    assert expired < count / 10
    assert max(memory[5:]) - max(memory[:5]) < 5
