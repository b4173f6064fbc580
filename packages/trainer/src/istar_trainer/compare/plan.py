"""What a comparison is asked to do: its configuration, and the runs that follow from it.

Every method is the base run with a few keys changed, carried out once per seed. A seed decides the
training tasks and the evaluation lists are part of the base, so runs of one seed are paired.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from istar_envs.errors import ConfigError
from istar_trainer.config import RunConfig
from istar_trainer.config_base import Section
from istar_trainer.config_files import merge, read_mapping, read_tree, validated

_FIXED: Final = ("run_dir", "seed", "env", "eval")
_STARTING: Final = ("model", "warm_start")


def _usable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", name):
        raise ValueError("a method is named by letters, digits, '_', '.', '+' and '-', as its folder is")
    return name


def _all_different(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("seeds must differ from each other")
    return seeds


class Comparison(Section):
    """Methods × seeds."""

    base: Path
    """Run configuration that all methods share, relative to this file."""
    common: dict[str, Any] = Field(default_factory=dict)
    """What all runs change in ``base``."""
    methods: dict[Annotated[str, AfterValidator(_usable_name)], dict[str, Any]] = Field(min_length=1)
    """What each method changes besides; the first is the one that the others are compared with."""
    seeds: Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(_all_different)] = (0, 1, 2, 3, 4)
    """One run per method and seed; runs of the same seed see the same tasks."""
    shared_warm_start: bool = True
    """Whether the start is made once per seed and used by all methods, or by each run itself."""
    warm_start_seed: int | None = Field(default=None, ge=0)
    """Seed of one shared start for all seeds; null makes one per seed."""
    jobs: int = Field(default=1, ge=1)
    """Runs at the same time, each on one thread."""
    threshold: float = Field(default=0.5, gt=0, le=1)
    """Dev success whose first reaching is reported, in iterations."""
    out: Path = Path("runs/compare")
    """Folder of the comparison; must be new or empty unless resuming."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of the comparison.

    Attributes:
        method: Its method's name.
        config: Its resolved configuration; ``run_dir`` and ``seed`` are in it.
        start: The shared start that it needs, or None.
    """

    method: str
    config: RunConfig
    start: RunConfig | None

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.config.seed

    @property
    def name(self) -> str:
        """Method and seed in a word."""
        return f"{self.method}/{self.seed}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A comparison and all its runs.

    Attributes:
        comparison: What was asked for.
        runs: Seed by seed, the methods of a seed in the order of the file.
    """

    comparison: Comparison
    runs: tuple[PlannedRun, ...]

    @property
    def starts(self) -> tuple[RunConfig, ...]:
        """The shared starts, each once."""
        return tuple({run.start.run_dir: run.start for run in self.runs if run.start}.values())

    @property
    def config_hash(self) -> str:
        """Twelve hex digits that change with anything that decides a result; folders do not."""
        runs = [
            {
                "method": run.method,
                "config": run.config.model_dump(mode="json", exclude={"run_dir", "model"}),
                "start": (run.start or run.config).model_dump(mode="json", exclude={"run_dir"}),
            }
            for run in self.runs
        ]
        return hashlib.sha256(json.dumps(runs, sort_keys=True).encode()).hexdigest()[:12]


def load_plan(path: Path, *, jobs: int | None = None) -> Plan:
    """Read a comparison and resolve all its runs.

    Args:
        path: YAML file of a ``Comparison``.
        jobs: Another number of processes than the file's.

    Raises:
        ConfigError: If a file cannot be read, a key is unknown or a value out of range, or a method
            changes what must be equal in all runs; names the file, the method and the key.
    """
    tree = read_mapping(path)
    methods = tree.get("methods")
    if isinstance(methods, Mapping):
        tree["methods"] = {name: {} if changes is None else changes for name, changes in methods.items()}
    if jobs is not None:
        tree["jobs"] = jobs
    comparison = validated(Comparison, tree, str(path))
    base = merge(read_tree(path.parent / comparison.base), comparison.common)
    for method, changes in comparison.methods.items():
        _require_pairable(comparison, method, changes, path)
    runs = tuple(
        _plan_run(comparison, base, method, seed, path)
        for seed in comparison.seeds
        for method in comparison.methods
    )
    if runs[0].config.eval.test_tasks == 0:
        raise ConfigError(
            f"{path.parent / comparison.base}: a comparison needs test results. Set eval.test_tasks above 0."
        )
    return Plan(comparison, runs)


def _require_pairable(comparison: Comparison, method: str, changes: Mapping[str, Any], path: Path) -> None:
    """Refuse changes after which runs of one seed were no pairs."""
    for key in changes:
        where = f"{path}: methods.{method}.{key}"
        if key in _FIXED:
            raise ConfigError(f"{where}: all methods share {', '.join(_FIXED)}. Set it in common.")
        if comparison.shared_warm_start and key in _STARTING:
            raise ConfigError(
                f"{where}: the start is shared, so no method has its own. "
                "Set it in common, or shared_warm_start: false."
            )


def _plan_run(
    comparison: Comparison, base: Mapping[str, Any], method: str, seed: int, path: Path
) -> PlannedRun:
    """Resolve one run, on its shared start if there is one."""
    shared = {"seed": seed, "threads": 1, "run_dir": str(comparison.out / "runs" / method / str(seed))}
    tree = {**merge(base, comparison.methods[method]), **shared}
    config = validated(RunConfig, tree, f"{path}, methods.{method}")
    needs_start = config.warm_start.enabled or config.model.path is None
    if not (comparison.shared_warm_start and needs_start):
        return PlannedRun(method, config, None)
    start_seed = seed if comparison.warm_start_seed is None else comparison.warm_start_seed
    folder = comparison.out / "warm_start" / str(start_seed)
    start = validated(
        RunConfig, {**base, "seed": start_seed, "threads": 1, "run_dir": str(folder)}, str(comparison.base)
    )
    made = folder / ("warm_start" if start.warm_start.enabled else "model")
    changes = {"model": {"path": str(made)}, "warm_start": {"enabled": False}}
    return PlannedRun(method, validated(RunConfig, merge(tree, changes), str(path)), start)
