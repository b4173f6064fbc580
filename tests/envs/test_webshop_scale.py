"""Many processes, many threads, many episodes: nothing differs and nothing grows."""

import gc
import os
import pickle
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import istar_envs
from istar_envs.webshop.env import WebShopEnv
from istar_envs.webshop.sources import open_catalogue
from official_data import WEBSHOP, needs_webshop

STATM = Path("/proc/self/statm")
needs_proc = pytest.mark.skipif(not STATM.exists(), reason="needs Linux's /proc")

DIGESTS = """
import hashlib, sys
from istar_envs.webshop.goals import GoalBook
from istar_envs.webshop.sources import open_catalogue
catalog = open_catalogue(sys.argv[1])
for kind in ("synthetic", "human"):
    for scoring in ("compat", "strict"):
        book, digest = GoalBook(catalog, kind, scoring=scoring), hashlib.sha256()
        for goal in map(book.goal, range(len(book))):
            facts = (goal.text, goal.price_upper, goal.options, goal.attributes, goal.target.asin)
            digest.update(repr((facts, book.price(goal.target))).encode())
        print(kind, scoring, len(book), digest.hexdigest())
"""


def digests(catalogue, *, salt):
    """Hash every goal of every kind and scoring in a fresh process: one line each."""
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS, str(catalogue)],
        env={**os.environ, "PYTHONHASHSEED": salt},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def make(env_id="istar/WebShop-v1", **options):
    env = istar_envs.make(env_id, **options).unwrapped
    assert isinstance(env, WebShopEnv)
    return env


def memory_mb():
    """Resident memory of this process."""
    gc.collect()
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """The store of the official files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISTAR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield open_catalogue(WEBSHOP).folder


def test_all_goals_of_the_shipped_catalogue_are_equal_in_every_process():
    first, second = (digests("generated", salt=salt) for salt in ("1", "2"))
    assert first == second
    assert [line.split()[:2] for line in first] == [
        ["synthetic", "compat"],
        ["synthetic", "strict"],
        ["human", "compat"],
        ["human", "strict"],
    ]
    assert int(first[0].split()[2]) > 4000


@needs_webshop
def test_all_official_goals_are_equal_in_every_process(official):
    first, second = (digests(official, salt=salt) for salt in ("1", "2"))
    assert first == second
    assert first[0].startswith("synthetic compat 6910 ")


def noise(rng):
    """An action that is refused, or searches words that nobody searched before."""
    word = rng.randrange(10**9)
    return rng.choice(
        (f"search[soft lamp {word}]", f"click[{word}]", f"search[<r> {word}]", f"{word}\n", "click[buy now")
    )


def play_on(env, rng):
    """Play one short episode: half by the rule shopper, else at random, some of it nonsense."""
    _, info = env.reset()
    while True:
        luck = rng.random()
        if luck < 0.5:
            action = env.rule_action()
        else:
            action = rng.choice(info["admissible_actions"]) if luck < 0.8 else noise(rng)
        *_, terminated, truncated, info = env.step(action)
        yield
        if terminated or truncated:
            return


def play_interleaved(envs, num_episodes, rng):
    """Play episodes in all environments at once, each step in one drawn at random."""
    running = [play_on(env, rng) for env in envs]
    while num_episodes:
        turn = rng.randrange(len(envs))
        if next(running[turn], "over") == "over":
            running[turn] = play_on(envs[turn], rng)
            num_episodes -= 1


def fill_caches(shop):
    """Look at every product and at more pages of results than a shop remembers."""
    for row in range(len(shop.catalog)):
        shop.item(shop.catalog.asin(row))
    for number in range(2_500):
        shop.listing(f"soft lamp {number}", 1)


@needs_proc
@pytest.mark.slow
def test_a_hundred_thousand_episodes_leave_memory_flat():
    rng = random.Random(0)
    envs = [
        make("istar/WebShop-v0", tagger="light", max_steps=5),
        make(goals="human", sampling="weighted", max_steps=5),
        make(observation="text_rich", max_steps=5),
        make(observation="structured", max_steps=5),
    ]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
        fill_caches(env.shop)
    play_interleaved(envs, 20_000, rng)
    before = memory_mb()
    play_interleaved(envs, 80_000, rng)
    assert memory_mb() - before < 12  # 150 bytes per episode; rare words and values still enter the caches


def walk(env, goal):
    """Play a goal half by the oracle and half at random; what reset and each step return."""
    rng = random.Random(goal)
    _, info = result = env.reset(options={"goal": goal})
    results = [result]
    while True:
        actions = (env.expert_action(), rng.choice(info["admissible_actions"]))
        *_, terminated, truncated, info = result = env.step(rng.choice(actions))
        results.append(result)
        if terminated or truncated:
            return results


def switch_often(frame, event, argument):
    """Let other threads run at any line of the shop's code, when set as trace function."""
    if "webshop" not in frame.f_code.co_filename:
        return None
    if random.random() < 0.02:
        time.sleep(1e-6)
    return switch_often


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["istar/WebShop-v0", "istar/WebShop-v1"])
def test_threads_in_one_shop_play_as_alone(env_id):
    """Eight threads play the same goals in different orders, beginning with empty caches."""
    goals, options = range(400), {"page_size": 3, "tagger": "light"}
    env = make(env_id, **options)

    def play(seed):
        own = make(env_id, **options)
        assert own.shop is env.shop
        return {goal: walk(own, goal) for goal in random.Random(seed).sample(goals, len(goals))}

    with ThreadPoolExecutor(8, initializer=sys.settrace, initargs=(switch_often,)) as pool:
        together = list(pool.map(play, range(8)))
    alone = pickle.loads(pickle.dumps(env))
    assert alone.shop is not env.shop
    expected = {goal: walk(alone, goal) for goal in goals}
    assert all(played == expected for played in together)
