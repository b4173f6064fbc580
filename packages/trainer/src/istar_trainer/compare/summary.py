"""What a comparison found: every number of the table, and plain words where the sample is too small."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from istar_trainer.compare.plan import Plan
from istar_trainer.compare.results import RunResult
from istar_trainer.compare.statistics import (
    Estimate,
    Signs,
    bootstrap_mean,
    bootstrap_share,
    first_reaching,
    seeds_needed,
    sign_counts,
    student_interval,
)

MEASURES: Final = ("success", "score", "curve", "start", "steps", "seconds", "tokens")
"""Test success and score, mean dev success over the curve, test success of the start, steps of a test
episode, seconds of training, tokens sampled in training."""
SHARES: Final = ("success", "score", "curve", "start")
"""Measures in [0, 1]."""
PAIRED: Final = ("success", "score", "curve", "steps")
"""Measures whose paired differences are reported."""
_ORACLE: Final = "oracle"


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in numbers.

    Attributes:
        seed: Its seed.
        successes: Test tasks solved.
        num_tasks: Test tasks.
        interval: 95% Wilson interval of the success rate: this policy on other tasks.
        means: Mean of every measure.
        iterations_to_threshold: First evaluated iteration with so much dev success; None if none.
    """

    seed: int
    successes: int
    num_tasks: int
    interval: tuple[float, float]
    means: Mapping[str, float]
    iterations_to_threshold: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A method against the first method, on the seeds that both finished.

    Attributes:
        seeds: Those seeds.
        paired: Mean difference of each of ``PAIRED``.
        student: Student's interval of the success difference; None for one seed.
        signs: Test tasks on which it was better, worse, equal.
        seeds_needed: Seeds that would show a success difference of this size with 80% chance, roughly.
        headroom: Share of the oracle's lead over the first method in test success that it gains; None
            where there is no oracle or its lead cannot be told from 0.
        curve_headroom: The same for mean dev success over the curve.
    """

    seeds: tuple[int, ...]
    paired: Mapping[str, Estimate]
    student: Estimate | None
    signs: Signs
    seeds_needed: int | None
    headroom: Estimate | None
    curve_headroom: Estimate | None


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One method in numbers.

    Attributes:
        name: Its name.
        runs: Its finished runs.
        means: Mean of every measure over runs; intervals over seeds and tasks.
        difference: Against the first method; None for the first method itself and where no seed is shared.
    """

    name: str
    runs: tuple[RunRow, ...]
    means: Mapping[str, Estimate]
    difference: Difference | None

    @property
    def iterations_to_threshold(self) -> tuple[float, int]:
        """Median over runs, infinite if half of them never got there, and how many did."""
        found = [run.iterations_to_threshold for run in self.runs]
        reached = [float("inf") if value is None else float(value) for value in found]
        return float(np.median(reached)), sum(value is not None for value in found)


def summarize(plan: Plan, results: Sequence[RunResult]) -> tuple[MethodRow, ...]:
    """Work the results out, method by method.

    Args:
        plan: The comparison; methods without a finished run are left out.
        results: Finished runs.
    """
    names = list(plan.comparison.methods)
    by_method = {name: {r.seed: r for r in results if r.method == name} for name in names}
    first = by_method[names[0]]
    oracle = next((by_method[name] for name in names[1:] if _ORACLE in name), {})
    rows = []
    for name in names:
        own = by_method[name]
        if not own:
            continue
        rows.append(
            MethodRow(
                name,
                tuple(_run_row(result, plan.comparison.threshold) for result in own.values()),
                {measure: _mean(own, measure) for measure in MEASURES},
                _difference(own, first, oracle) if own is not first else None,
            )
        )
    return tuple(rows)


def _mean(runs: Mapping[int, RunResult], measure: str) -> Estimate:
    """Average a measure over runs; the interval of a share stays inside [0, 1]."""
    found = bootstrap_mean(_values(runs, list(runs), measure))
    return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0)) if measure in SHARES else found


def _run_row(result: RunResult, threshold: float) -> RunRow:
    return RunRow(
        seed=result.seed,
        successes=result.test.success,
        num_tasks=result.test.n,
        interval=result.test.interval,
        means={name: float(values.mean()) for name, values in result.values.items()},
        iterations_to_threshold=first_reaching(*result.curve, threshold),
    )


def _difference(
    own: Mapping[int, RunResult], first: Mapping[int, RunResult], oracle: Mapping[int, RunResult]
) -> Difference | None:
    """Compare two methods on the seeds that both finished."""
    seeds = [seed for seed in own if seed in first]
    if not seeds:
        return None
    apart = {m: _values(own, seeds, m) - _values(first, seeds, m) for m in PAIRED}
    by_seed = apart["success"].mean(axis=1)
    return Difference(
        seeds=tuple(seeds),
        paired={measure: bootstrap_mean(values) for measure, values in apart.items()},
        student=student_interval(apart["success"]),
        signs=sign_counts(apart["success"]),
        seeds_needed=seeds_needed(by_seed),
        headroom=_headroom(own, first, oracle, "success"),
        curve_headroom=_headroom(own, first, oracle, "curve"),
    )


def _headroom(
    own: Mapping[int, RunResult],
    first: Mapping[int, RunResult],
    oracle: Mapping[int, RunResult],
    measure: str,
) -> Estimate | None:
    seeds = [seed for seed in own if seed in first and seed in oracle]
    if not seeds or own is oracle:
        return None
    base = _values(first, seeds, measure)
    return bootstrap_share(_values(own, seeds, measure) - base, _values(oracle, seeds, measure) - base)


def _values(
    runs: Mapping[int, RunResult], seeds: Sequence[int], measure: str
) -> Float[np.ndarray, "seeds tasks"]:
    return np.stack([runs[seed].values[measure] for seed in seeds])


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that is written down.

    Attributes:
        title: Name of the comparison.
        lead: What was compared, in a sentence.
        rows: Methods in numbers; at least one.
        remarks: What the sample can and cannot tell.
        failures: Runs without a result and why, by ``method/seed``.
        threshold: Dev success whose first reaching is shown.
        about: What was asked for and what it ran on.
    """

    title: str
    lead: str
    rows: tuple[MethodRow, ...]
    remarks: tuple[str, ...]
    failures: Mapping[str, str]
    threshold: float
    about: Mapping[str, Any]


def find(
    plan: Plan, results: Sequence[RunResult], failures: Mapping[str, str], about: Mapping[str, Any]
) -> Findings:
    """Work out what finished runs show.

    Args:
        plan: The comparison.
        results: Finished runs; at least one.
        failures: Why the others have no result, by ``method/seed``.
        about: What it ran on.
    """
    rows, asked = summarize(plan, results), plan.comparison
    return Findings(
        title=f"istar compare: {asked.out.resolve().name}",
        lead=(
            f"{len(rows)} methods × {len(asked.seeds)} seeds, {len(results)} of {len(plan.runs)} runs "
            f"finished, {len(results[0].task_ids)} test tasks each. Intervals: 95%, by bootstrap over seeds, "
            "then tasks."
        ),
        rows=rows,
        remarks=tuple(_remarks(rows, next(iter(asked.methods)), results)),
        failures=failures,
        threshold=asked.threshold,
        about={"config_hash": plan.config_hash, **about, "comparison": asked.model_dump(mode="json")},
    )


def _remarks(rows: Sequence[MethodRow], first: str, results: Sequence[RunResult]) -> Iterator[str]:
    """Say in sentences what the sample can and cannot tell."""
    if rows[0].name != first:
        yield f"{first} has no result, so nothing is compared with it."
    kinds = {json.dumps(result.made_by, sort_keys=True) for result in results}
    if len(kinds) > 1:
        yield f"The runs were made by {len(kinds)} different commits or package versions; see their env.json."
    differences = {row.name: row.difference for row in rows if row.difference}
    for name, difference in differences.items():
        yield _verdict(name, difference, first)
    if any(len(row.runs) == 1 for row in rows):
        yield "Intervals of a single run speak of other tasks, not of other seeds. Add seeds."
    if len(differences) > 1:
        yield (
            f"{len(differences)} differences at 95%: if no method differed, at least one would still "
            f"exclude 0 with a chance of up to {1 - 0.95 ** len(differences):.0%}."
        )


def _verdict(name: str, difference: Difference, first: str) -> str:
    """Say whether a method can be told from the first one by its test success."""
    gap, student, num = difference.paired["success"], difference.student, len(difference.seeds)
    word = "better" if gap.value > 0 else "worse"
    shown = f"{100 * gap.value:+.1f} points on {num} seed{'s' if num != 1 else ''}, bootstrap {_range(gap)}"
    shown += f", Student {_range(student)}" if student else ""
    excluding = [gap.excludes_zero, student is not None and student.excludes_zero]
    if all(excluding):
        return f"{name} is {word} than {first}: {shown}."
    needed = difference.seeds_needed
    advice = f" About {needed} seeds would show a difference of this size." if (needed or 0) > num else ""
    if any(excluding):
        return f"{name} may be {word} than {first}; only one interval excludes 0: {shown}.{advice}"
    return f"{name} cannot be told from {first}: {shown}.{advice}"


def _range(estimate: Estimate) -> str:
    return f"[{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"
