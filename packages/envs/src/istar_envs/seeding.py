"""One integer into independent, platform-stable random streams.

Level generation must give the same level for the same seed on every platform, numpy version,
hash salt and thread, so it uses the counter-based generator here and never a global one.
Environments draw the seeds themselves from their own ``np_random``.
"""

import hashlib

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def derive_seed(seed: int, *names: str | int) -> int:
    """Derive the seed of an independent stream.

    Args:
        seed: Any integer.
        names: What the stream is for, e.g. ``"level", 3``.

    Returns:
        An integer in [0, 2**63), equal in every process for equal arguments.
    """
    digest = hashlib.sha256(repr((seed, *names)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class CounterRng:
    """SplitMix64: a tiny counter-based generator with a documented, stable stream.

    Args:
        seed: Any integer; taken modulo 2**64.
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def next_u64(self) -> int:
        """Return the next 64 random bits as an integer in [0, 2**64)."""
        self._state = z = (self._state + _GOLDEN) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        """Return an integer in [0, n); the bias is under n / 2**64.

        Raises:
            ValueError: If ``n`` is not positive.
        """
        if n <= 0:
            raise ValueError(f"below() needs n >= 1, got {n}")
        return (self.next_u64() * n) >> 64

    def random(self) -> float:
        """Return a float in [0, 1) with 53 random bits."""
        return (self.next_u64() >> 11) * 2.0**-53
