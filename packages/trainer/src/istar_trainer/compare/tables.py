"""The findings of a comparison as rows of text: for Markdown, the terminal and the page."""

import math
from collections.abc import Sequence
from typing import Final

from istar_trainer.compare.statistics import Estimate
from istar_trainer.compare.summary import MethodRow
from istar_trainer.report.formats import clock_time, percent_range

Row = tuple[str, ...]
"""One text per column."""

RUN_HEADER: Final = (
    "method",
    "seed",
    "success",
    "95% Wilson",
    "score",
    "dev curve",
    "steps",
    "time",
)


def method_table(rows: Sequence[MethodRow], threshold: float) -> list[Row]:
    """Lay out one line per method, under a header.

    Args:
        rows: As ``summarize`` returns them; at least one.
        threshold: Dev success whose first reaching is shown.
    """
    header = (
        "method",
        "runs",
        "start",
        "success",
        "95%",
        "score",
        "dev curve",
        f"iterations to {threshold:.0%}",
        "steps",
        "time a run",
        "tokens a run",
    )
    return [header, *(_method_row(row) for row in rows)]


def glance_table(rows: Sequence[MethodRow]) -> list[Row]:
    """Lay out what fits on a narrow screen: success, and how it differs from the first method's."""
    header = ("method", "success", "95%", f"against {rows[0].name}", "95%")
    return [header, *(_glance_row(row) for row in rows)]


def difference_table(rows: Sequence[MethodRow]) -> list[Row]:
    """Lay out how each method differs from the first, under a header; only the header for one method."""
    header = (
        f"against {rows[0].name}",
        "seeds",
        "success, points",
        "95% bootstrap",
        "95% Student",
        "score, points",
        "dev curve, points",
        "better / worse / equal",
        "of the oracle's lead",
        "of its lead on the curve",
        "seeds needed",
    )
    return [header, *(_difference_row(row) for row in rows if row.difference)]


def run_table(rows: Sequence[MethodRow]) -> list[Row]:
    """Lay out one line per run, under a header."""
    return [
        RUN_HEADER,
        *(
            (
                row.name,
                str(run.seed),
                f"{run.successes}/{run.num_tasks} = {run.means['success']:.1%}",
                percent_range(*run.interval),
                f"{100 * run.means['score']:.1f}",
                _percent(run.means["curve"]),
                f"{run.means['steps']:.1f}",
                clock_time(run.means["seconds"]),
            )
            for row in rows
            for run in row.runs
        ),
    ]


def markdown_table(table: Sequence[Row]) -> str:
    """Write a table in Markdown; the first row is the header."""
    header, *rows = (tuple(cell.replace("|", "\\|") for cell in row) for row in table)
    lines = [header, tuple("---" if i == 0 else "--:" for i in range(len(header))), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _method_row(row: MethodRow) -> Row:
    means = row.means
    median, reached = row.iterations_to_threshold
    return (
        row.name,
        str(len(row.runs)),
        f"{means['start'].value:.1%}",
        f"{means['success'].value:.1%}",
        percent_range(means["success"].low, means["success"].high),
        f"{100 * means['score'].value:.1f}",
        _percent(means["curve"].value),
        f"{f'{median:g}' if math.isfinite(median) else 'never'} ({reached}/{len(row.runs)})",
        f"{means['steps'].value:.1f}",
        clock_time(means["seconds"].value),
        f"{means['tokens'].value:,.0f}",
    )


def _glance_row(row: MethodRow) -> Row:
    _, runs, _, success, interval, *_ = _method_row(row)
    points, bootstrap = _difference_row(row)[2:4] if row.difference else ("", "")
    return (f"{row.name} ({runs})", success, interval, points, bootstrap)


def _difference_row(row: MethodRow) -> Row:
    found = row.difference
    if found is None:
        return (row.name,)
    success = found.paired["success"]
    return (
        row.name,
        str(len(found.seeds)),
        f"{100 * success.value:+.1f}",
        _points_range(success),
        _points_range(found.student),
        _points(found.paired["score"]),
        _points(found.paired["curve"]),
        f"{found.signs.better} / {found.signs.worse} / {found.signs.equal}",
        _share(found.headroom),
        _share(found.curve_headroom),
        str(found.seeds_needed or "–"),
    )


def _percent(share: float) -> str:
    return f"{share:.1%}" if math.isfinite(share) else "–"


def _share(estimate: Estimate | None) -> str:
    return f"{estimate.value:.0%} [{estimate.low:.0%}, {estimate.high:.0%}]" if estimate else "–"


def _points(estimate: Estimate) -> str:
    return f"{100 * estimate.value:+.1f} [{_points_range(estimate)}]"


def _points_range(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}"
