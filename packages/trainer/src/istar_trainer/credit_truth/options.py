"""What ``istar credit-eval`` is told; nothing heavy is imported here."""

from dataclasses import dataclass
from typing import Literal

from istar_envs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Options:
    """What is compared with what."""

    groups: int = 32
    """Fresh training tasks to play, at least 2."""
    group_size: int = 8
    """Trajectories of each."""
    truth: Literal["policy", "optimal"] = "policy"
    """Q − V of the run's own policy, or what a step gained towards the optimal solution."""
    prm_batches: int = 0
    """Batches of as many groups that every reward model learns from first; without any, those that the run
    has not trained are left out."""
    max_error: float = 0.05
    """Standard error of an estimated advantage that is small enough, in units of the outcome."""
    continuations: int = 64
    """Most episodes played on from one recorded situation, where the truth has to be estimated."""
    seed: int = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        """Refuse numbers that leave nothing to compare."""
        least = {"groups": 2, "group_size": 2, "continuations": 2, "prm_batches": 0}
        for name, number in least.items():
            if getattr(self, name) < number:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} {getattr(self, name)} is too few; give at least {number}.")
