"""Speed of the social environment. Run with `python -m pytest benchmarks/bench_sotopia.py -s`.

A turn is one action of either seat. Each benchmark prints CPU time per turn of one core and the bar it is
held to; the partner's own time is left out where it says so. Against a slow endpoint, which has a process
of its own, it also prints how long all takes as a multiple of the time that waiting alone takes; on a
machine that is busy with something else only the CPU time means something.
"""

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import gymnasium as gym
import pytest

import istar_envs
from istar_envs.chat import ChatClient
from istar_envs.episode import Episode, Transition
from istar_envs.sotopia.dialogue import Action
from istar_envs.sotopia.env import SotopiaEnv
from istar_envs.sotopia.partners.base import PartnerView
from istar_envs.sotopia.partners.llm import LlmPartner
from istar_judges.llm_judge import LlmJudge
from istar_judges.rubric import load_rubric

WORDS = "say: I would like something else. What about you?"
BAR_MS = 1.0
DELAY_S = 0.2
VERDICT = {
    label: {d.key: {"reason": "as it was", "score": d.high} for d in load_rubric("sotopia-v1").dimensions}
    for label in "AB"
}


class Echo:
    """A partner that costs no time and never agrees."""

    name = "echo"

    def act(self, view: PartnerView) -> Action:
        return Action("speak", "Well, I would rather not.")


def report(what: str, seconds: float, num_turns: int) -> None:
    cost_ms = 1e3 * seconds / num_turns
    print(f"\n{what}: {cost_ms:.3f} ms per turn (bar {BAR_MS:g} ms)")
    assert cost_ms <= BAR_MS


def measure(env: gym.Env[Any, Any], num_episodes: int = 100) -> tuple[float, int]:
    """Return seconds of CPU time and turns of whole episodes of talk, resets included; best of three."""
    results = []
    for _ in range(3):
        num_turns, start = 0, process_time()
        for seed in range(num_episodes):
            env.reset(seed=seed)
            has_ended = False
            while not has_ended:
                *_, terminated, truncated, info = env.step(WORDS)
                has_ended = terminated or truncated
            num_turns += info["turn"]
        results.append((process_time() - start, num_turns))
    return min(results)


def test_overhead_of_the_environment() -> None:
    env = istar_envs.make("istar/Sotopia-v0", partner=Echo())
    report("environment without its partner", *measure(env))


def test_with_a_scripted_partner() -> None:
    report("environment with a scripted partner", *measure(istar_envs.make("istar/Sotopia-v0")))


def test_overhead_of_256_rows() -> None:
    vector = gym.make_vec("istar/Sotopia-v0", num_envs=256, partner=Echo(), seat=0)
    actions, results = [WORDS] * 256, []
    for _ in range(3):
        vector.reset(seed=0)
        start = process_time()
        for _ in range(10):
            vector.step(actions)
        results.append(process_time() - start)
    report("256 rows without their partner", min(results), 256 * 20)


class SlowEndpoint:
    """An endpoint in a process of its own that says one text."""

    def __init__(self, text: str) -> None:
        script = str(Path(__file__).with_name("slow_endpoint.py"))
        command = [sys.executable, script, str(DELAY_S), text]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.url = self._line()

    def cpu_seconds(self) -> float:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        return self.process.stdout.readline().strip()


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> Iterator[SlowEndpoint]:
    gc.collect()
    gc.freeze()
    slow = SlowEndpoint(request.param)
    with slow.process:
        yield slow
        slow.process.kill()
    gc.unfreeze()


def compare(what: str, endpoint: SlowEndpoint, work: Callable[[], object], num_waits: int) -> None:
    """Print what 256 at a time take that wait so often each, the first time (cold) and four times more."""
    ratios, client_s, endpoint_s = [], 0.0, 0.0
    for _ in range(5):
        start, before, endpoint_before = perf_counter(), process_time(), endpoint.cpu_seconds()
        work()
        ratios.append((perf_counter() - start) / (num_waits * DELAY_S))
        client_s, endpoint_s = process_time() - before, endpoint.cpu_seconds() - endpoint_before
    per_call = 1e3 / (256 * num_waits)
    cold, *warm = ratios
    print(
        f"\n{what}: {min(warm):.2f} to {max(warm):.2f} times the ideal, cold {cold:.2f} (bar 1.3); CPU per "
        f"call {client_s * per_call:.2f} ms here (bar {BAR_MS:g}), {endpoint_s * per_call:.2f} ms there"
    )
    assert client_s * per_call <= BAR_MS


def slow_partner(endpoint: SlowEndpoint) -> LlmPartner:
    return LlmPartner(ChatClient(endpoint.url, "m", concurrency=256), protocol="speech")


@pytest.mark.parametrize("endpoint", ["Well, I would rather not."], indirect=True)
def test_256_episodes_in_threads_against_an_endpoint_that_takes_200_ms(endpoint: SlowEndpoint) -> None:
    partner = slow_partner(endpoint)
    envs = [SotopiaEnv(partner=partner, seat=0) for _ in range(256)]

    def play(number: int) -> None:
        envs[number].reset(seed=number)
        for _ in range(10):
            envs[number].step(WORDS)

    with ThreadPoolExecutor(256) as pool:
        compare("256 episodes in threads", endpoint, lambda: list(pool.map(play, range(256))), 10)
    partner.close()


@pytest.mark.parametrize("endpoint", ["Well, I would rather not."], indirect=True)
def test_256_rows_against_an_endpoint_that_takes_200_ms(endpoint: SlowEndpoint) -> None:
    partner = slow_partner(endpoint)
    vector = gym.make_vec("istar/Sotopia-v0", num_envs=256, partner=partner, seat=0)

    def play() -> None:
        vector.reset(seed=0)
        for _ in range(10):
            vector.step([WORDS] * 256)

    compare("256 rows in step", endpoint, play, 10)
    partner.close()


@pytest.mark.parametrize("endpoint", [json.dumps(VERDICT)], indirect=True)
def test_256_verdicts_of_an_endpoint_that_takes_200_ms(endpoint: SlowEndpoint) -> None:
    judge = LlmJudge(ChatClient(endpoint.url, "m", concurrency=256))
    episodes = [talk(seed) for seed in range(256)]

    def work() -> None:
        assert {result.status for result in judge.judge_many(episodes)} == {"ok"}

    compare("256 verdicts on dialogues of 20 turns", endpoint, work, 1)
    judge.chat.close()


def talk(seed: int) -> Episode:
    """A whole dialogue without an agreement, as it is recorded."""
    env = istar_envs.make("istar/Sotopia-v0", partner=Echo())
    observation, _ = env.reset(seed=seed)
    has_ended = False
    while not has_ended:
        *_, terminated, truncated, info = env.step(WORDS)
        has_ended = terminated or truncated
    last = Transition(observation, WORDS, WORDS, 0.0, True, "k", info={"dialogue": info["dialogue"]})
    return Episode("istar/Sotopia-v0", info["task_id"], info["task"], (last,), False, 0.0, "truncated")
