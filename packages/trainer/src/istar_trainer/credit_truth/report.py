"""Shows how true credits are: a table for the terminal, ``scores.json``, a picture and a page."""

import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from istar_envs.errors import ConfigError
from istar_judges.agreement.statistics import Estimate
from istar_trainer.credit_truth.evaluation import CreditTruth, Score
from istar_trainer.credit_truth.statistics import MEASURES
from istar_trainer.credit_truth.truth import played
from istar_trainer.metrics import write_atomically
from istar_trainer.plots import BLUE, FAINT, GREEN, INK, ORANGE, figure_bytes, page_svg
from istar_trainer.report.builder import PAGE_COLOURS, page_style

_WIDE: Final = 120
_STYLES: Final = {"good": "green", "bad": "red", "soft": "dim", "plain": ""}
_COLOURS: Final = {"advantage": BLUE, "step part": ORANGE, "step reward": GREEN}


def write_report(found: CreditTruth, folder: Path) -> Path:
    """Write ``scores.json``, ``steps.jsonl``, ``scores.png`` and ``index.html``.

    Args:
        found: What was found.
        folder: Where they go; made if it is not there, and older ones are replaced.

    Returns:
        The page.

    Raises:
        ConfigError: If the folder cannot be written.
    """
    figure = draw_scores(found.scores)
    page = folder / "index.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "scores.json", json.dumps(as_json(found), indent=2) + "\n")
        write_atomically(folder / "steps.jsonl", "".join(json.dumps(r) + "\n" for r in step_records(found)))
        (folder / "scores.png").write_bytes(figure_bytes(figure, "png"))
        write_atomically(page, _page(found, figure))
    except OSError as error:
        raise ConfigError(f"cannot write to {folder} ({error.strerror}). Choose another --out.") from error
    return page


def as_json(found: CreditTruth) -> dict[str, Any]:
    """Return everything as plain values; what is not known becomes None."""
    return {
        **{name: _finite(value) for name, value in found.facts.items()},
        "left_out": found.left_out,
        "measures": {name: {"meaning": m.meaning, "chance": m.chance} for name, m in MEASURES.items()},
        "scores": [
            {
                "method": score.credit.method,
                "part": score.credit.part,
                **{name: _plain(value, score.gains[name]) for name, value in score.values.items()},
            }
            for score in found.scores
        ],
    }


def step_records(found: CreditTruth) -> Iterator[dict[str, Any]]:
    """Yield every step with its true advantage and what each credit gave it."""
    steps = [(t, number) for _, t in played(found.recorded.groups) for number in range(len(t.steps))]
    for row, (trajectory, number) in enumerate(steps):
        transition = trajectory.episode.transitions[number]
        yield {
            "trajectory": trajectory.id,
            "task_id": trajectory.episode.task_id,
            "step": number,
            "state_key": transition.state_key,
            "action": transition.action,
            "advantage": float(found.truth.advantages[row]),
            "error": float(found.truth.errors[row]),
            "credits": {
                f"{s.credit.method}: {s.credit.part}": float(s.credit.values[row]) for s in found.scores
            },
        }


def score_table(found: CreditTruth, width: int) -> Group:
    """Lay the scores out for the terminal, under what was played and how the truth was found.

    Args:
        found: What was found.
        width: Columns of the terminal; a narrow one shows no intervals.
    """
    table = Table(box=None, pad_edge=False, collapse_padding=True, padding=(0, 1))
    table.add_column("credit")
    for measure in MEASURES.values():
        table.add_column(measure.title.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for score in found.scores:
        cells = [_cell(score.values[name], score.gains[name]) for name in MEASURES]
        shown = [
            Text(f"{value}\n{interval}" if width >= _WIDE else value, style=_STYLES[tone])
            for value, interval, tone in cells
        ]
        table.add_row(f"{score.credit.method} [dim]{score.credit.part}[/dim]", *shown)
    left_out = [Text(f"{name} is left out: {reason}") for name, reason in found.left_out.items()]
    return Group(Text(_headline(found.facts)), Text(_caption(found.facts)), *left_out, table)


def draw_scores(scores: Sequence[Score]) -> Any:
    """Draw every measure of every credit with its interval, on a new ``matplotlib.figure.Figure``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.0 + 1.5 * len(MEASURES), 1.2 + 0.22 * len(scores)), layout="constrained")
    panels = figure.subplots(1, len(MEASURES), sharey=True)
    places = list(range(len(scores)))[::-1]
    for axes, (name, measure) in zip(panels, MEASURES.items(), strict=True):
        axes.axvline(measure.chance, color=INK, linewidth=0.8, linestyle=":")
        for place, score in zip(places, scores, strict=True):
            value, colour = score.values[name], _COLOURS[score.credit.part]
            if math.isfinite(value.low):
                axes.hlines(place, value.low, value.high, color=colour, linewidth=1.6)
            axes.plot([value.value], [place], "o", color=colour, markersize=3.5)
        axes.set_title(measure.title, loc="left", fontsize=9, color=INK, fontweight="bold")
        axes.set_xlim((-1.1, 1.1) if measure.chance == 0 else (-0.05, 1.05))
        ticks = (-1, 0, 1) if measure.chance == 0 else (0, 0.5, 1)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.tick_params(colors=INK, labelsize=8, length=0)
        axes.grid(axis="x", color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    panels[0].set_ylim(-0.7, len(scores) - 0.3)
    panels[0].set_yticks(places, [_name(score) for score in scores])
    return figure


def _page(found: CreditTruth, figure: Any) -> str:
    template = Template(
        files("istar_trainer.credit_truth").joinpath("template.html").read_text(encoding="utf-8")
    )
    return template.substitute(
        style=page_style(),
        lead=escape(_headline(found.facts)),
        truth=escape(_caption(found.facts)),
        left_out="".join(
            f'<p class="warning">{escape(f"{name} is left out: {reason}")}</p>'
            for name, reason in found.left_out.items()
        ),
        picture=page_svg(figure, PAGE_COLOURS),
        scores=_html_table(found),
        measures="".join(
            f"<dt><b>{escape(m.title)}</b> (chance {m.chance:g})</dt><dd>{escape(m.meaning)}</dd>"
            for m in MEASURES.values()
        ),
        facts="".join(
            f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>"
            for name, value in found.facts.items()
        ),
    )


def _html_table(found: CreditTruth) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in ("credit", *(m.title for m in MEASURES.values())))
    rows = []
    for score in found.scores:
        cells = [_cell(score.values[name], score.gains[name]) for name in MEASURES]
        shown = "".join(
            f'<td class="{tone}">{v}<br><span class="soft small">{i}</span></td>' for v, i, tone in cells
        )
        rows.append(f"<tr><td>{escape(_name(score))}</td>{shown}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _headline(facts: dict[str, Any]) -> str:
    return (
        f"{facts['run']} after {facts['iteration']} iterations ({facts['env']}): {facts['steps']:,} steps of "
        f"{facts['trajectories']} trajectories of {facts['groups']} tasks, {facts['success_rate']:.0%} solved"
    )


def _caption(facts: dict[str, Any]) -> str:
    return (
        f"Truth {facts['truth']}. {facts['good_steps']} steps are clearly good, {facts['bad_steps']} clearly "
        f"bad; {1 - facts['truth_reliability']:.0%} of the variance of the truth is error. Intervals: 95% "
        "bootstrap over tasks; ▲ and ▼: above and below outcome only on the same resamples."
    )


def _name(score: Score) -> str:
    return f"{score.credit.method} · {score.credit.part}"


def _cell(value: Estimate, gain: Estimate) -> tuple[str, str, str]:
    """Write a value, its interval, and the tone that says whether it is above or below outcome only."""
    if not math.isfinite(value.value):
        return "–", "", "soft"
    interval = f"{value.low:.2f}…{value.high:.2f}" if math.isfinite(value.low) else ""
    mark, tone = ("▲ ", "good") if gain.low > 0 else ("▼ ", "bad") if gain.high < 0 else ("", "plain")
    return f"{mark}{value.value:.2f}", interval, tone


def _plain(value: Estimate, gain: Estimate) -> dict[str, float | None]:
    numbers = {
        "value": value.value,
        "low": value.low,
        "high": value.high,
        "gain": gain.value,
        "gain_low": gain.low,
        "gain_high": gain.high,
    }
    return {name: _finite(number) for name, number in numbers.items()}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
