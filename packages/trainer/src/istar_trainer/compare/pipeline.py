"""A whole comparison: carry the runs out, read their folders, write what they show."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from istar_envs.errors import ConfigError
from istar_trainer.compare.curves import draw_curves, save_curves
from istar_trainer.compare.display import Display
from istar_trainer.compare.page import build_page
from istar_trainer.compare.plan import Plan
from istar_trainer.compare.results import RunResult, read_results
from istar_trainer.compare.runner import carry_out
from istar_trainer.compare.summary import Findings, MethodRow, find
from istar_trainer.compare.tables import (
    difference_table,
    glance_table,
    markdown_table,
    method_table,
    run_table,
)
from istar_trainer.folder import describe_machine
from istar_trainer.metrics import write_atomically
from istar_trainer.pipeline import check_names


def compare(plan: Plan, *, resume: bool, display: Display) -> bool:
    """Carry a comparison out, or on, and write ``compare.json``, ``.md``, ``.html`` and ``curves``.

    Args:
        plan: What to do.
        resume: Go on with what is in ``plan.comparison.out``.
        display: Shows how far everything is.

    Returns:
        Whether every run has a result.

    Raises:
        ConfigError: If the folder cannot be used, or no run has a result; names the reasons.
    """
    out = plan.comparison.out
    for run in plan.runs[: len(plan.comparison.methods)]:
        check_names(run.config)
    started = time.monotonic()
    failures = carry_out(plan, resume=resume, display=display)
    results = read_results(plan)
    if not results:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        raise ConfigError(f"no run of {out} has a result. {reasons}")
    findings = find(plan, results, failures, _about(results, time.monotonic() - started))
    write_findings(findings, out, draw_curves(results, list(plan.comparison.methods)))
    display.show("test success", glance_table(findings.rows))
    for text in (*findings.remarks, *_without_result(failures), f"report: {out / 'compare.html'}"):
        display.note(text)
    return not failures


def write_findings(findings: Findings, out: Path, figure: Any) -> None:
    """Write what finished runs show.

    Args:
        findings: What to write.
        out: Folder of the comparison.
        figure: As ``draw_curves`` returns it.

    Raises:
        ConfigError: If a file cannot be written.
    """
    numbers = {
        **findings.about,
        "methods": [_numbers(row) for row in findings.rows],
        "remarks": findings.remarks,
        "failures": findings.failures,
    }
    save_curves(figure, out)
    write_atomically(out / "compare.json", json.dumps(_finite(numbers), indent=2) + "\n")
    write_atomically(out / "compare.md", markdown(findings))
    write_atomically(out / "compare.html", build_page(findings, figure))


def markdown(findings: Findings) -> str:
    """Write the findings as Markdown: methods, differences, remarks, runs."""
    rows = findings.rows
    tables = [method_table(rows, findings.threshold), difference_table(rows), run_table(rows)]
    methods, differences, runs = map(markdown_table, tables)
    said = "".join(f"- {text}\n" for text in (*findings.remarks, *_without_result(findings.failures)))
    return "\n".join((f"{findings.lead}\n", methods, differences, said, runs))


def _about(results: Sequence[RunResult], elapsed_s: float) -> dict[str, Any]:
    """Say what the comparison ran on and what it took; the time of earlier calls is not in ``elapsed_s``."""
    return {
        "elapsed_s": round(elapsed_s, 1),
        "run_commits": sorted({str(result.made_by["commit"]) for result in results}),
        "training_s": round(sum(float(result.values["seconds"].sum()) for result in results), 1),
        **describe_machine(),
    }


def _without_result(failures: Mapping[str, str]) -> list[str]:
    return [f"no result: {name}: {reason}" for name, reason in failures.items()]


def _numbers(row: MethodRow) -> dict[str, Any]:
    median, reached = row.iterations_to_threshold
    return {**asdict(row), "iterations_to_threshold": {"median": median, "reached": reached}}


def _finite(value: Any) -> Any:
    """Replace numbers that JSON cannot hold by null."""
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
