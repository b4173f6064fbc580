"""Curves of a run, drawn with matplotlib: what the report shows and what is saved as PNG and SVG.

Colours are those of Okabe and Ito, told apart by colour-blind readers; line styles differ as well.
Figures are made without pyplot, so nothing global changes and no display is needed.
"""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from istar_envs.errors import ConfigError
from istar_trainer.metrics import METRICS, Record, wilson_interval

Band = Callable[[Record], tuple[float, float]]
"""Lower and upper end of the interval around a value of a record; NaN where unknown."""

BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
INK, FAINT = "#3b4252", "#d9dde4"
_STYLES: Final = {BLUE: "-", ORANGE: "--", GREEN: "-."}


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart.

    Attributes:
        metric: What is drawn.
        label: Its name in the legend.
        colour: Its colour.
        band: The interval around it, or None.
        has_points: Whether each value gets a mark; for values that are far apart.
    """

    metric: str
    label: str
    colour: str
    band: Band | None = None
    has_points: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of one or more curves over the iterations.

    Attributes:
        name: File name without ending.
        title: What a reader sees.
        curves: At least one; all in the same unit.
        level: A value to mark by a thin line (chance, zero), or None.
    """

    name: str
    title: str
    curves: tuple[Curve, ...]
    level: float | None = None

    @property
    def unit(self) -> str:
        """Unit of the vertical axis."""
        return METRICS[self.curves[0].metric].unit


def _share_band(share: str, count: str) -> Band:
    """Wilson interval of a share of a count."""

    def band(record: Record) -> tuple[float, float]:
        rate, n = record.get(share, math.nan), record.get(count, math.nan)
        if not (math.isfinite(rate) and math.isfinite(n)):
            return math.nan, math.nan
        return wilson_interval(min(round(rate * n), round(n)), round(n))

    return band


def _spread_band(mean: str, std: str) -> Band:
    """One standard deviation to both sides."""

    def band(record: Record) -> tuple[float, float]:
        centre, spread = record.get(mean, math.nan), record.get(std, math.nan)
        return centre - spread, centre + spread

    return band


def _ends_band(low: str, high: str) -> Band:
    """Two metrics that are the ends themselves."""
    return lambda record: (record.get(low, math.nan), record.get(high, math.nan))


CHARTS: Final = (
    Chart(
        "success",
        "Success, with 95% intervals",
        (
            Curve(
                "env/success_rate",
                "training tasks",
                BLUE,
                _share_band("env/success_rate", "rollout/trajectories"),
            ),
            Curve(
                "eval/success_rate",
                "held-out tasks",
                ORANGE,
                _ends_band("eval/success_low", "eval/success_high"),
                has_points=True,
            ),
        ),
    ),
    Chart(
        "pair_accuracy",
        "PRM: pairs ranked rightly",
        (
            Curve("prm/pair_acc", "fresh pairs (before learning)", BLUE),
            Curve("prm/pair_acc_in_sample", "the same pairs after", ORANGE),
        ),
        level=0.5,
    ),
    Chart("prm_loss", "PRM: pair loss", (Curve("prm/loss", "loss", BLUE),), level=math.log(2)),
    Chart(
        "step_reward",
        "Implicit step reward, mean ± std",
        (
            Curve(
                "step_reward/mean_success",
                "steps of successes",
                BLUE,
                _spread_band("step_reward/mean_success", "step_reward/std_success"),
            ),
            Curve(
                "step_reward/mean_failure",
                "steps of failures",
                ORANGE,
                _spread_band("step_reward/mean_failure", "step_reward/std_failure"),
            ),
        ),
        level=0.0,
    ),
    Chart("entropy", "Policy entropy", (Curve("policy/entropy", "entropy", BLUE),)),
    Chart(
        "episode_steps",
        "Episode length",
        (
            Curve("env/episode_steps_success", "successes", BLUE),
            Curve("env/episode_steps_failure", "failures", ORANGE),
            Curve("env/episode_steps_mean", "all", GREEN),
        ),
    ),
    Chart("invalid", "Invalid replies", (Curve("env/invalid_rate", "steps without a legal action", BLUE),)),
    Chart(
        "clipping",
        "Clipped elements",
        (
            Curve("ratio/clip_low_frac", "below 1 − ε", BLUE),
            Curve("ratio/clip_high_frac", "above 1 + ε", ORANGE),
        ),
    ),
    Chart(
        "gradients",
        "Gradient norms",
        (Curve("policy/grad_norm", "policy", BLUE), Curve("prm/grad_norm", "PRM", ORANGE)),
    ),
)
"""Every chart, in reading order; one without any value is left out."""


def plot_run(records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw every chart that has values and save each as PNG and SVG.

    Args:
        records: As ``read_metrics`` returns them.
        folder: Where the files go; created if it is not there.

    Returns:
        The files written, in reading order.

    Raises:
        ConfigError: If the folder cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart in CHARTS:
            figure = draw_chart(chart, records)
            if figure is None:
                continue
            for ending, data in (("png", figure_bytes(figure, "png")), ("svg", figure_bytes(figure, "svg"))):
                path = folder / f"{chart.name}.{ending}"
                path.write_bytes(data)
                written.append(path)
    except OSError as error:
        raise ConfigError(
            f"cannot write plots to {folder} ({error.strerror}). Choose a folder that can be written."
        ) from error
    return written


def inline_svg(chart: Chart, records: Sequence[Record], colours: Mapping[str, str]) -> str | None:
    """Draw a chart as an ``<svg>`` element for a web page.

    Args:
        chart: What to draw.
        records: As ``read_metrics`` returns them.
        colours: What to write for each colour of the picture, e.g. ``var(--ink)``.

    Returns:
        The element, without ids that would clash on a page; None if no curve has a value.
    """
    figure = draw_chart(chart, records)
    return None if figure is None else page_svg(figure, colours)


def page_svg(figure: Any, colours: Mapping[str, str]) -> str:
    """Write a figure as an ``<svg>`` element for a web page; see ``inline_svg``."""
    svg = figure_bytes(figure, "svg").decode()
    for pattern, text in _UNWANTED_ON_A_PAGE:
        svg = re.sub(pattern, text, svg, flags=re.DOTALL)
    for colour, shown in colours.items():
        svg = svg.replace(colour, shown)
    return svg


_UNWANTED_ON_A_PAGE: Final = (
    (r"^.*?<svg ", '<svg role="img" '),
    (r"<metadata>.*?</metadata>|<style.*?</style>", ""),
    (r' id="[A-Za-z0-9.]+_\d+"', ""),
    (r"font-family: [^;]+; ", ""),
)


def draw_chart(chart: Chart, records: Sequence[Record]) -> Any | None:
    """Draw a chart on a new ``matplotlib.figure.Figure``; None if no curve has a value."""
    from matplotlib.figure import Figure

    series = [(curve, *_points(curve, records)) for curve in chart.curves]
    series = [entry for entry in series if entry[1]]
    if not series:
        return None
    figure = Figure(figsize=(4.4, 2.7), layout="constrained")
    axes = figure.subplots()
    if chart.level is not None:
        axes.axhline(chart.level, color=INK, linewidth=0.8, linestyle=":")
    for curve, iterations, values, ends in series:
        _draw_curve(axes, curve, iterations, values, ends)
    has_legend = len(chart.curves) > 1
    dress(axes, chart.title, chart.unit, pad=20 if has_legend else 8)
    if has_legend:
        axes.legend(
            fontsize=8,
            frameon=False,
            labelcolor=INK,
            ncols=len(chart.curves),
            loc="lower left",
            bbox_to_anchor=(-0.02, 0.98),
            columnspacing=1.2,
        )
    return figure


def _points(
    curve: Curve, records: Sequence[Record]
) -> tuple[list[float], list[float], list[tuple[float, float]]]:
    """Return iterations, values and interval ends of the records that have a finite value."""
    found = [record for record in records if math.isfinite(record.get(curve.metric, math.nan))]
    ends = [curve.band(record) for record in found] if curve.band else []
    return [record["iteration"] for record in found], [record[curve.metric] for record in found], ends


def _draw_curve(
    axes: Any, curve: Curve, iterations: list[float], values: list[float], ends: list[tuple[float, float]]
) -> None:
    """Draw one line with its interval; a single value becomes a mark."""
    marker = "o" if curve.has_points or len(values) == 1 else None
    axes.plot(
        iterations,
        values,
        color=curve.colour,
        linestyle=_STYLES[curve.colour],
        linewidth=1.6,
        marker=marker,
        markersize=4,
        label=curve.label,
    )
    if ends and curve.has_points:
        lows, highs = zip(*ends, strict=True)
        axes.vlines(iterations, lows, highs, color=curve.colour, linewidth=1.2)
    elif ends:
        lows, highs = zip(*ends, strict=True)
        axes.fill_between(iterations, lows, highs, color=curve.colour, alpha=0.18, linewidth=0)


def dress(axes: Any, title: str, unit: str, *, pad: int = 8) -> None:
    """Set title and axes over the iterations: few lines, one colour of ink.

    Args:
        axes: Axes of matplotlib.
        title: What a reader sees.
        unit: Unit of the vertical axis; ``share`` is shown in percent.
        pad: Points between title and axes, for a legend.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_title(title, loc="left", fontsize=10, color=INK, fontweight="bold", pad=pad)
    axes.set_xlabel("iteration", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    if unit == "share":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{round(100 * share, 6):g}%"))
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.set_ylabel(unit, fontsize=9, color=INK)
    axes.tick_params(colors=INK, labelsize=8.5, length=0)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)


def figure_bytes(figure: Any, form: str) -> bytes:
    """Encode a figure as ``png`` or ``svg``; equal figures give equal bytes."""
    import matplotlib as mpl

    out = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "istar", "font.family": "sans-serif"}):
        date = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(out, format=form, dpi=160, metadata=date)
    return out.getvalue()
