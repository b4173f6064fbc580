"""What the run folders of a comparison hold, as arrays over tasks; nothing else is read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from istar_envs.episode import Episode, read_episodes
from istar_envs.errors import ConfigError
from istar_trainer.compare.plan import Plan, PlannedRun
from istar_trainer.compare.statistics import area_under
from istar_trainer.config import RunConfig
from istar_trainer.metrics import read_metrics
from istar_trainer.report.records import EvalRecord, read_lines, read_object


@dataclass(frozen=True, slots=True)
class RunResult:
    """One finished run.

    Attributes:
        method: Its method.
        seed: Its seed.
        task_ids: The test list.
        values: What was measured, by name (``MEASURES``): one value per test task, or a single one.
        test: Evaluation of the trained policy on the test list.
        dev: Evaluations on the way, oldest first.
        made_by: Commit and package versions that the run was made by.
    """

    method: str
    seed: int
    task_ids: tuple[str, ...]
    values: Mapping[str, Float[np.ndarray, " tasks"]]
    test: EvalRecord
    dev: tuple[EvalRecord, ...]
    made_by: Mapping[str, object]

    @property
    def curve(self) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
        """Iterations of the evaluations on the way, and their success."""
        return np.array([float(r.iteration) for r in self.dev]), np.array([r.rate for r in self.dev])


def start_is_made(config: RunConfig) -> bool:
    """Whether a shared start is complete."""
    return (config.run_dir / ("warm_start" if config.warm_start.enabled else "model")).is_dir()


def is_finished(config: RunConfig) -> bool:
    """Whether a run is complete, its last evaluation and report included."""
    if not (config.run_dir / "report.html").is_file():
        return False
    return any(record.label == "after" for record in _evals(config.run_dir))


def read_results(plan: Plan) -> list[RunResult]:
    """Read all finished runs.

    Raises:
        ConfigError: If a file is missing or broken, or the runs were tested on different tasks.
    """
    results = [read_result(run) for run in plan.runs if is_finished(run.config)]
    for result in results:
        if result.task_ids != results[0].task_ids:
            raise ConfigError(
                f"{result.method}/{result.seed} was tested on other tasks than {results[0].method}/"
                f"{results[0].seed}, so they are no pair. Carry both out again in another out."
            )
    return results


def read_result(run: PlannedRun) -> RunResult:
    """Read one finished run.

    Raises:
        ConfigError: If a file is missing or broken; names it.
    """
    folder = run.config.run_dir
    evals, metrics = _evals(folder), read_metrics(folder / "metrics.jsonl")
    env = read_object(folder / "env.json") or {}
    before, after = (_episodes(folder, label) for label in ("before", "after"))
    dev = tuple(record for record in evals if record.split == "dev")
    iterations = np.array([float(r.iteration) for r in dev])
    rates = np.array([r.rate for r in dev])
    values = {
        "start": _of([e.success for e in before]),
        "success": _of([e.success for e in after]),
        "score": _of([e.score for e in after]),
        "steps": _of([len(e.transitions) for e in after]),
        "curve": _of([area_under(iterations, rates) if dev else math.nan]),
        "seconds": _of([_total(metrics, "time/iteration_s") + _total(metrics, "time/eval_s")]),
        "tokens": _of([_total(metrics, "rollout/tokens_generated")]),
    }
    return RunResult(
        method=run.method,
        seed=run.seed,
        task_ids=tuple(e.task_id for e in after),
        values=values,
        test=next(record for record in reversed(evals) if record.label == "after"),
        dev=dev,
        made_by={"commit": env.get("commit"), "versions": env.get("versions", {})},
    )


def _evals(folder: Path) -> list[EvalRecord]:
    return read_lines(folder / "eval.jsonl", EvalRecord) or []


def _episodes(folder: Path, label: str) -> list[Episode]:
    return list(read_episodes(folder / "episodes" / f"{label}.jsonl"))


def _of(values: Sequence[float]) -> Float[np.ndarray, " tasks"]:
    return np.asarray(values, dtype=np.float64)


def _total(metrics: Sequence[Mapping[str, float]], name: str) -> float:
    """Add a metric up over the iterations; a missing or unknown value counts nothing."""
    return sum(v for record in metrics if math.isfinite(v := record.get(name, 0.0)))
