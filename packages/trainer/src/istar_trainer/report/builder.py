"""Builds ``report.html``: one file that shows a run without network, script or other files.

The headline with its intervals and baselines, warnings, curves, a few trajectories with the credit of
each step, and all settings. A part whose file is missing says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from istar_trainer.metrics import Record, warn_if_contradictory, write_atomically
from istar_trainer.plots import BLUE, CHARTS, FAINT, GREEN, INK, ORANGE, inline_svg
from istar_trainer.report.formats import clock_time, percent_range, score_range
from istar_trainer.report.records import (
    EvalRecord,
    RunRecords,
    are_apart,
    baselines_of,
    before_and_after,
    read_run,
)
from istar_trainer.report.trajectories import trajectories_html

PAGE_COLOURS: Final = {
    "#ffffff": "none",
    INK: "var(--soft)",
    FAINT: "var(--line)",
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
}
"""What a page writes for the colours of a picture, so that they follow its light or dark style."""


def build_report(run_dir: Path) -> Path:
    """Write the report of a run.

    Args:
        run_dir: A run folder: ``config.json``, ``env.json``, ``metrics.jsonl``, ``eval.jsonl``,
            ``credits.jsonl`` and ``images/``, each of which may be missing.

    Returns:
        The path of ``report.html`` in that folder; an older report is replaced.

    Raises:
        ConfigError: If the folder is missing, a file in it is broken, or it cannot be written.
    """
    run = read_run(run_dir)
    page = Template(_shipped("template.html")).substitute(
        style=page_style(),
        title=escape(f"istar run: {run_dir.resolve().name}"),
        lead=_lead(run.evals),
        headline=_headline(run.evals),
        facts=_facts(run),
        warnings=_warnings(run.metrics or ()),
        curves=_curves(run.metrics, run.evals or ()),
        trajectories=_trajectories(run, run_dir / "images"),
        settings=_settings(run),
    )
    path = run_dir / "report.html"
    write_atomically(path, page)
    return path


def page_style() -> str:
    """Return the style sheet that all pages of the trainer share."""
    return _shipped("style.css")


def _shipped(name: str) -> str:
    return files("istar_trainer.report").joinpath(name).read_text(encoding="utf-8")


def _missing(name: str) -> str:
    return f'<p class="soft">{escape(name)} is not in the run folder, so there is nothing to show here.</p>'


def _lead(evals: Sequence[EvalRecord] | None) -> str:
    """Say in one line how far held-out success moved."""
    ends = before_and_after(evals or ())
    if ends is None:
        return '<p class="soft">This run has no evaluation both before and after training.</p>'
    before, after = ends
    points = 100 * (after.rate - before.rate)
    apart = "lie apart" if are_apart(before, after) else "overlap"
    return (
        f'<p class="lead">{before.rate:.1%} <span class="arrow">→</span> {after.rate:.1%} '
        f'<span class="gain{" loss" if points < 0 else ""}">{points:+.1f} points</span></p>'
        f'<p class="soft">success on {after.n} held-out tasks ({escape(after.split)}) before and after '
        f"training; the 95% intervals {apart}</p>"
    )


def _headline(evals: Sequence[EvalRecord] | None) -> str:
    """Lay out baselines and the evaluations before and after training, worst baseline first."""
    if not evals:
        return _missing("eval.jsonl")
    baselines = baselines_of(evals)
    optimal = baselines.pop("optimal play", None)
    rows = [_baseline_row(name, rate) for name, rate in baselines.items()]
    rows += [_eval_row(record) for record in before_and_after(evals) or evals[-1:]]
    if optimal is not None:
        rows.append(_baseline_row("optimal play", optimal))
    return (
        '<div class="wide"><table><thead><tr><th>policy</th><th>success</th><th>95% interval</th>'
        '<th class="track"></th><th>tasks</th><th>mean score</th><th>steps</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _eval_row(record: EvalRecord) -> str:
    low, high = record.interval
    steps = "" if record.mean_steps is None else f"{record.mean_steps:.1f}"
    score = score_range(record.mean_score, record.score_interval)
    return (
        f"<tr><td>{escape(record.label)} training</td><td>{record.rate:.1%}</td>"
        f'<td class="number">{percent_range(low, high)}</td><td class="track"><span>'
        f'<i style="left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%"></i>'
        f'<b style="left:{100 * record.rate:.1f}%"></b></span></td><td>{record.n}</td>'
        f'<td class="number">{score}</td><td>{steps}</td></tr>'
    )


def _baseline_row(name: str, rate: float) -> str:
    return (
        f'<tr class="soft"><td>{escape(name)}</td><td>{rate:.1%}</td><td></td><td class="track"><span>'
        f'<b class="baseline" style="left:{100 * rate:.1f}%"></b></span></td><td></td><td></td><td></td></tr>'
    )


def _facts(run: RunRecords) -> str:
    """Show what a reader asks first: what was trained, how, for how long."""
    config, env = run.config or {}, run.env or {}
    metrics = run.metrics or ()
    seconds = sum(record.get("time/iteration_s", 0.0) for record in metrics)
    size = env.get("num_parameters")
    facts = {
        "environment": _named(config.get("env")),
        "model size": f"{size:,} parameters" if isinstance(size, int) else None,
        "algorithm": _named(config.get("algorithm")),
        "step credit": _named(config.get("credit")),
        "iterations": str(len({record["iteration"] for record in metrics})) if metrics else None,
        "time in iterations": clock_time(seconds) if seconds else None,
        "seed": _named(config.get("seed")),
        "commit": str(env.get("commit") or "")[:12],
    }
    shown = "".join(
        f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items() if value
    )
    return f'<dl class="facts">{shown}</dl>' if shown else _missing("config.json")


def _named(value: Any) -> str | None:
    """Name a setting: itself, or the kind that a section of settings declares."""
    if isinstance(value, Mapping):
        return next((str(value[key]) for key in ("type", "kind", "id", "name") if key in value), None)
    return None if value is None else str(value)


def _warnings(metrics: Sequence[Record]) -> str:
    """Show each contradiction once, with the iteration where it first appeared."""
    first: dict[str, str] = {}
    for i, record in enumerate(metrics):
        for text in warn_if_contradictory(record, metrics[:i]):
            first.setdefault(text.partition(":")[0], f"iteration {record['iteration']}: {text}")
    return "".join(f'<p class="warning">{escape(text)}</p>' for text in first.values())


def _curves(metrics: Sequence[Record] | None, evals: Sequence[EvalRecord]) -> str:
    if metrics is None:
        return _missing("metrics.jsonl")
    records = [*metrics, *_dev_points(metrics, evals)]
    drawn = [(chart, inline_svg(chart, records, PAGE_COLOURS)) for chart in CHARTS]
    figures = [
        f'<figure aria-label="{escape(chart.title)}">{svg}</figure>'
        for chart, svg in drawn
        if svg is not None
    ]
    return f'<div class="charts">{"".join(figures)}</div>' if figures else "<p>No metric has a value yet.</p>"


def _dev_points(metrics: Sequence[Record], evals: Sequence[EvalRecord]) -> Iterator[Record]:
    """Yield evaluations on the way as metrics, unless the metrics hold them."""
    if any("eval/success_rate" in record for record in metrics):
        return
    for record in evals:
        if record.split == "dev":
            low, high = record.interval
            yield {
                "iteration": record.iteration,
                "eval/success_rate": record.rate,
                "eval/success_low": low,
                "eval/success_high": high,
            }


def _trajectories(run: RunRecords, images: Path) -> str:
    if run.credits is None:
        return _missing("credits.jsonl")
    return trajectories_html(run.credits, images) if run.credits else "<p>No trajectory was recorded.</p>"


def _settings(run: RunRecords) -> str:
    parts = []
    for name, data in (("config.json", run.config), ("env.json", run.env)):
        if data is None:
            parts.append(_missing(name))
            continue
        rows = "".join(
            f"<tr><td><code>{escape(key)}</code></td><td>{escape(value)}</td></tr>"
            for key, value in _flat(data)
        )
        table = f'<table class="settings"><tbody>{rows}</tbody></table>'
        parts.append(f"<details><summary>{name}</summary>{table}</details>")
    return "".join(parts)


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted names and values of nested settings."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
