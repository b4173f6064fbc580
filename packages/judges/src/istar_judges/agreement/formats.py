"""Estimates as people read them, on a terminal and on a page."""

import math
from collections.abc import Mapping, Sequence

from istar_judges.agreement.statistics import Estimate
from istar_judges.agreement.trust import Comparison, Trust, warnings_of

UNKNOWN = "–"


def number(value: float, digits: int = 2, *, sign: bool = False) -> str:
    """Write a number; a dash if it is unknown.

    Example:
        >>> number(0.123), number(float("nan")), number(1.5, sign=True)
        ('0.12', '–', '+1.50')
    """
    if not math.isfinite(value):
        return UNKNOWN
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    is_zero = float(text) == 0.0
    return text.lstrip("+-") if is_zero else text.replace("-", "−")


def interval(estimate: Estimate, digits: int = 2) -> str:
    """Write the interval of an estimate as ``0.71 … 0.83``; nothing if it is unknown."""
    if not math.isfinite(estimate.low):
        return ""
    return f"{number(estimate.low, digits)} … {number(estimate.high, digits)}"


def percent(value: float) -> str:
    """Write a share as percents; a dash if it is unknown."""
    return f"{100 * value:.0f}%" if math.isfinite(value) else UNKNOWN


def causes(failures: Mapping[str, int]) -> str:
    """Write why verdicts are missing, as ``2 timeout, 1 refused``."""
    return ", ".join(f"{count} {status}" for status, count in sorted(failures.items()))


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows in columns, the first one left and the others right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def terminal_report(comparison: Comparison) -> str:
    """Write what a comparison says for a terminal: one table of judges, one of pairs, and the warnings."""
    num, scenarios = len(comparison.observations.keys), comparison.num_scenarios
    parts = [f"{num} observations in {scenarios} scenarios; 95% intervals by bootstrap over scenarios"]
    parts.append(text_table([_HEAD, *(_row(judge) for judge in comparison.judges)]))
    rows = [
        (
            f"{row.first} / {row.second}",
            str(row.spearman.num),
            number(row.spearman.value),
            interval(row.spearman),
            number(row.kappa.value),
            interval(row.kappa),
            number(row.difference.value, sign=True),
            percent(row.contradictions.value),
        )
        for row in (*(row for judge in comparison.judges for row in judge.against), *comparison.pairs)
    ]
    if rows:
        head = ("agreement", "n", "Spearman", "", "kappa", "", "difference", "contradict")
        parts.append(text_table([head, *rows]))
    warnings = [f"! {judge.name}: {text}" for judge in comparison.judges for text in warnings_of(judge)]
    parts += ["\n".join(warnings)] if warnings else []
    return "\n\n".join(parts)


_HEAD = (
    "judge",
    "n",
    "failed",
    "mean",
    "seat gap",
    "first is worth",
    "length",
    "flips",
    "noise",
    "worst attack",
)


def _row(judge: Trust) -> tuple[str, ...]:
    worst = max(judge.rises.items(), key=lambda item: item[1].value, default=None)
    return (
        judge.name,
        str(judge.num),
        causes(judge.failures) or "0",
        number(judge.mean.value),
        number(judge.seat_gap.value, sign=True),
        number(judge.order_gap.value, sign=True),
        number(judge.length.value, sign=True),
        percent(judge.flip_rate.value),
        number(judge.noise),
        UNKNOWN if worst is None else f"{worst[0]} {number(worst[1].value, sign=True)}",
    )
