"""One integer into independent streams that are equal on every machine."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_envs.seeding import CounterRng, derive_seed


def test_the_stream_is_that_of_splitmix64():
    rng = CounterRng(1234567)
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [rng.next_u64() for _ in range(4)] == published
    assert CounterRng(0).next_u64() == 0xE220A8397B1DCDAF


def test_streams_of_different_names_and_seeds_differ():
    seeds = {
        derive_seed(seed, *names) for seed in (0, 1) for names in ((), ("a",), ("b",), ("a", 0), ("a", 1))
    }
    assert len(seeds) == 10
    assert derive_seed(1, "23") != derive_seed(12, "3")
    assert derive_seed(1, 2) != derive_seed(1, "2")


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_a_derived_seed_is_the_same_in_every_process(hash_seed):
    program = "from istar_envs.seeding import derive_seed; print(derive_seed(7, 'level', 3))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == derive_seed(7, "level", 3)


@pytest.mark.property
@settings(max_examples=100, deadline=None)
@given(st.integers(), st.integers(1, 10**9))
def test_draws_stay_in_their_range(seed, bound):
    rng = CounterRng(seed)
    assert 0 <= rng.next_u64() < 2**64
    assert 0 <= rng.below(bound) < bound
    assert 0.0 <= rng.random() < 1.0
    assert 0 <= derive_seed(seed, "x") < 2**63


def test_draws_below_a_bound_are_spread_evenly():
    rng = CounterRng(0)
    counts = [0] * 7
    for _ in range(70_000):
        counts[rng.below(7)] += 1
    assert max(abs(count - 10_000) for count in counts) < 450  # 4.8 standard deviations


@pytest.mark.parametrize("bound", [0, -1])
def test_a_bound_below_one_is_refused(bound):
    with pytest.raises(ValueError, match=f"n >= 1, got {bound}"):
        CounterRng(0).below(bound)


def test_seeds_are_taken_modulo_two_to_the_64th():
    assert CounterRng(-1).next_u64() == CounterRng(2**64 - 1).next_u64()
