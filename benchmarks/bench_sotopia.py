"""Speed of the social environment. Run with `python -m pytest benchmarks/bench_sotopia.py -s`.

A turn is one action of either seat. Each benchmark prints CPU time per turn of one core and the bar it is
held to; the partner's own time is left out where it says so.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import gymnasium as gym

import istar_envs
from istar_envs.chat import ChatClient
from istar_envs.sotopia.dialogue import Action
from istar_envs.sotopia.env import SotopiaEnv
from istar_envs.sotopia.partners.base import PartnerView
from istar_envs.sotopia.partners.llm import LlmPartner

WORDS = "say: I would like something else. What about you?"
BAR_MS = 1.0


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


def test_256_episodes_against_an_endpoint_that_takes_200_ms() -> None:
    """Ten answers in each episode, all waiting at the same time: 2 s would be ideal."""
    script = Path(__file__).parents[1] / "tests" / "bad_endpoint.py"
    with subprocess.Popen(
        [sys.executable, str(script), "0.2"], stdout=subprocess.PIPE, text=True
    ) as endpoint:
        assert endpoint.stdout is not None
        address = endpoint.stdout.readline().strip()
        partner = LlmPartner(ChatClient(address, "m", concurrency=256), protocol="speech")
        envs = [SotopiaEnv(partner=partner, seat=0) for _ in range(256)]

        def play(number: int) -> None:
            envs[number].reset(seed=number)
            for _ in range(10):
                envs[number].step(WORDS)

        ratios = []
        with ThreadPoolExecutor(256) as pool:
            for _ in range(4):
                start = perf_counter()
                list(pool.map(play, range(256)))
                ratios.append((perf_counter() - start) / 2.0)
        partner.close()
        endpoint.kill()
    times = f"{min(ratios):.2f} to {max(ratios):.2f} times the ideal"
    print(f"\n256 episodes against a 200 ms endpoint: {times} (bar 1.3)")
