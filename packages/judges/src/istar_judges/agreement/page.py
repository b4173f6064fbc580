"""Lays a comparison out as one HTML page that needs no network, script or other file."""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final

from istar_judges.agreement.attacks import MAX_RISE
from istar_judges.agreement.formats import causes, interval, number, percent
from istar_judges.agreement.plots import BLUE, FAINT, GREEN, INK, ORANGE, inline_svg
from istar_judges.agreement.statistics import Estimate
from istar_judges.agreement.trust import Agreement, Comparison, Trust, warnings_of
from istar_judges.sotopia import GOAL_THRESHOLD

_COLOURS: Final = {
    "#ffffff": "none",
    INK: "var(--soft)",
    FAINT: "var(--line)",
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
}


def build_page(comparison: Comparison, figures: Mapping[tuple[str, str], Any]) -> str:
    """Lay out the page.

    Args:
        comparison: What was found.
        figures: As ``draw_all`` returns them.
    """
    num = len(comparison.observations.keys)
    names = [judge.name for judge in comparison.judges]
    template = Template(files("istar_judges.agreement").joinpath("template.html").read_text(encoding="utf-8"))
    return template.substitute(
        lead=escape(f"{', '.join(names)} on {num} seats of episodes in {comparison.num_scenarios} scenarios"),
        glance=_table(_GLANCE, [_glance(judge) for judge in comparison.judges]),
        matrix=_matrix(comparison),
        agreement=_table(_PAIR, [_pair(row) for row in _all_pairs(comparison)]),
        judges="".join(_judge(judge, comparison.references, figures) for judge in comparison.judges),
        threshold=f"{GOAL_THRESHOLD:g}",
        references=_references(comparison.references),
        limit=f"{MAX_RISE:g}",
    )


_GLANCE: Final = (
    "judge",
    "verdicts",
    "failed",
    "mean",
    "kappa",
    "seat gap",
    "first is worth",
    "length",
    "flips",
    "noise",
    "worst attack",
)
_PAIR: Final = ("raters", "both rated", "Spearman", "kappa", "difference, points", "contradict on success")


def _glance(judge: Trust) -> list[str]:
    found = warnings_of(judge)
    tag = _tag(
        f"{len(found)} warning{'s' if len(found) > 1 else ''}" if found else "no warning", is_good=not found
    )
    worst = max(judge.rises.items(), key=lambda item: item[1].value, default=None)
    low, high = judge.bounds
    bounds = (
        f"{escape(causes(judge.failures))}<br>mean {number(low)} … {number(high)}" if judge.failures else ""
    )
    kappa = judge.against[0].kappa if judge.against else Estimate(math.nan)
    return [
        f"{escape(judge.name)}{tag}",
        str(judge.num),
        f"{sum(judge.failures.values())}<small>{bounds}</small>",
        _cell(judge.mean),
        _cell(kappa),
        _cell(judge.seat_gap, sign=True),
        _cell(judge.order_gap, sign=True),
        _cell(judge.length, sign=True),
        percent(judge.flip_rate.value),
        number(judge.noise),
        "–" if worst is None else f"{number(worst[1].value, sign=True)}<small>{escape(worst[0])}</small>",
    ]


def _pair(row: Agreement) -> list[str]:
    return [
        f"{escape(row.first)} · {escape(row.second)}",
        str(row.spearman.num),
        _cell(row.spearman),
        _cell(row.kappa),
        _cell(row.difference, sign=True),
        percent(row.contradictions.value),
    ]


def _all_pairs(comparison: Comparison) -> Iterator[Agreement]:
    for judge in comparison.judges:
        yield from judge.against
    yield from comparison.pairs


def _matrix(comparison: Comparison) -> str:
    """Show the rank correlations of all raters as a square."""
    names = list(comparison.scores)
    values = {frozenset((row.first, row.second)): row.spearman.value for row in _all_pairs(comparison)}
    rows = []
    for name in names:
        cells = [
            _heat(1.0 if name == other else values.get(frozenset((name, other)), math.nan)) for other in names
        ]
        rows.append(f"<tr><td>{escape(name)}</td>{''.join(cells)}</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in ("Spearman", *names))
    top, body = f"<thead><tr>{head}</tr></thead>", f"<tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide narrow"><table>{top}{body}</table></div>'


def _heat(value: float) -> str:
    share = max(0.0, value) * 0.45 if math.isfinite(value) else 0.0
    return f'<td class="heat" style="--share:{share:.2f}">{number(value)}</td>'


def _judge(judge: Trust, references: Sequence[str], figures: Mapping[tuple[str, str], Any]) -> str:
    found = warnings_of(judge)
    warnings = "".join(f'<p class="warning">{escape(text)}</p>' for text in found)
    drawn = "".join(
        f'<figure aria-label="{escape(name)}">{inline_svg(figure, f"f{number}-", _COLOURS)}</figure>'
        for number, ((owner, name), figure) in enumerate(figures.items())
        if owner == judge.name
    )
    tag = _tag("look closer" if found else "nothing speaks against it", is_good=not found)
    tables = "".join(_calibration(judge, reference) for reference in references)
    return (
        f'<section class="judge"><h2>{escape(judge.name)}{tag}</h2><p><code>{escape(judge.source)}</code></p>'
        f'{warnings}<div class="charts">{drawn}</div>'
        f'<div class="tables">{tables}{_length(judge)}{_attacks(judge)}{_seats(judge)}</div></section>'
    )


def _calibration(judge: Trust, reference: str) -> str:
    rows = [
        [f"{row.low:g} to {row.high:g}", str(row.num), number(row.judged), number(row.true)]
        for row in judge.calibration[reference]
    ]
    if not rows:
        return ""
    title = f"Calibration against {reference}: error {number(judge.calibration_error(reference))} points"
    return _titled(title, _table(("judged", "n", "mean judged", "mean true"), rows))


def _length(judge: Trust) -> str:
    rows = [
        [f"{third.low} to {third.high}", str(third.num), number(third.judged), number(third.true)]
        for third in judge.thirds
    ]
    if not rows:
        return ""
    matched = judge.length_given_truth
    fair = f", at equal truth {number(matched.value, sign=True)}" if matched.num else ""
    title = f"Length: correlation {number(judge.length.value, sign=True)}{fair}"
    return _titled(title, _table(("words said", "n", "mean judged", "mean true"), rows))


def _attacks(judge: Trust) -> str:
    rows = [[escape(name), str(rise.num), _cell(rise, sign=True)] for name, rise in judge.rises.items()]
    return _titled("Attacks", _table(("attack", "n", "points added"), rows)) if rows else ""


def _seats(judge: Trust) -> str:
    gaps = {
        "seat gap": judge.seat_gap,
        "seat gap, unexplained": judge.seat_gap_error,
        "being presented first": judge.order_gap,
    }
    rows = [
        [name, str(gap.num), _cell(gap, sign=True)] for name, gap in gaps.items() if math.isfinite(gap.value)
    ]
    return _titled("Seats", _table(("", "n", "points"), rows)) if rows else ""


def _references(names: Sequence[str]) -> str:
    texts = {
        "audit": "audit: what was really agreed, settled by rule from the actions alone",
        "people": "people: labels given by human readers",
    }
    listed = "; ".join(texts.get(name, name) for name in names)
    return escape(f"{listed}." if listed else "None was given, so judges are compared with each other only.")


def _cell(estimate: Estimate, *, sign: bool = False) -> str:
    around = interval(estimate)
    return number(estimate.value, sign=sign) + (f"<small>{around}</small>" if around else "")


def _tag(text: str, *, is_good: bool) -> str:
    return f'<span class="verdict {"good" if is_good else "bad"}">{text}</span>'


def _titled(title: str, table: str) -> str:
    return f"<div><h3>{escape(title)}</h3>{table}</div>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table; the cells are HTML already."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
