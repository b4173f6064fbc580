"""Pictures of a comparison, drawn with matplotlib (extra ``report``).

Colours are those of Okabe and Ito, told apart by colour-blind readers. Figures are made without pyplot,
so nothing global changes and no display is needed; equal comparisons give equal bytes.
"""

import io
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from istar_envs.errors import MissingAsset
from istar_judges.agreement.attacks import MAX_RISE
from istar_judges.agreement.raters import POINTS
from istar_judges.agreement.trust import Comparison, Trust

BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
INK, FAINT = "#3b4252", "#d9dde4"
_SPREAD: Final = 0.18
"""How far points with equal whole scores are moved apart, in points."""


def require_matplotlib() -> None:
    """Refuse to draw without matplotlib.

    Raises:
        MissingAsset: If it is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingAsset(
            'plots need matplotlib (istar-judge agreement, option out). Install "istar-judges[report]".'
        ) from error


def draw_agreement(comparison: Comparison, judge: Trust, reference: str) -> Any | None:
    """Draw judged against true scores with the means of the calibration bins; None without any."""
    judged, true = comparison.scores[judge.name], comparison.scores[reference]
    known = np.isfinite(judged) & np.isfinite(true)
    if not known.any():
        return None
    figure, axes = _canvas(f"Judged against {reference}")
    axes.plot([0, POINTS], [0, POINTS], color=INK, linewidth=0.8, linestyle=":", zorder=1)
    x, y = true[known], judged[known] + _apart(int(known.sum()))
    axes.scatter(x, y, s=13, color=BLUE, alpha=0.3, linewidths=0, label="one seat of one episode")
    rows = judge.calibration[reference]
    means = ([row.true for row in rows], [row.judged for row in rows])
    axes.plot(
        *means, color=ORANGE, marker="o", markersize=4, linewidth=1.4, label="mean of each judged score bin"
    )
    _scale(axes, x="true goal, points", y="judged, points")
    axes.set_xlim(-0.4, POINTS + 0.4)
    axes.set_ylim(-0.4, POINTS + 0.4)
    _legend(axes)
    return figure


def draw_length(comparison: Comparison, judge: Trust) -> Any | None:
    """Draw the judged score against the words a seat said, with the means of thirds; None without words."""
    judged, words = comparison.scores[judge.name], comparison.observations.words
    known = np.isfinite(judged) & np.isfinite(words)
    if not known.any():
        return None
    figure, axes = _canvas("Score and length")
    x, y = words[known], judged[known] + _apart(int(known.sum()))
    axes.scatter(x, y, s=13, color=BLUE, alpha=0.3, linewidths=0)
    for is_first, third in zip((True, False, False), judge.thirds, strict=False):
        ends = [third.low, third.high]
        label = "mean of each third" if is_first else None
        axes.plot(ends, [third.judged] * 2, color=ORANGE, linewidth=2.2, label=label)
        if np.isfinite(third.true):
            label = "its true mean" if is_first else None
            axes.plot(ends, [third.true] * 2, color=GREEN, linewidth=1.4, linestyle="--", label=label)
    _scale(axes, x="words said", y="judged, points")
    axes.set_ylim(-0.4, POINTS + 0.4)
    _legend(axes)
    return figure


def draw_attacks(judge: Trust) -> Any | None:
    """Draw what each attack adds, with its interval and the limit; None if there was no attack."""
    if not judge.rises:
        return None
    figure, axes = _canvas("What attacks add")
    names, rises = list(judge.rises), list(judge.rises.values())
    places = np.arange(len(names))[::-1]
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.axvline(MAX_RISE, color=ORANGE, linewidth=1.0, linestyle="--", label=f"limit {MAX_RISE}")
    colours = [ORANGE if rise.value > MAX_RISE else BLUE for rise in rises]
    axes.barh(places, [rise.value for rise in rises], height=0.5, color=colours)
    axes.hlines(places, [r.low for r in rises], [r.high for r in rises], color=INK, linewidth=1.2)
    _scale(axes, x="points added to the score", y="")
    axes.set_yticks(places, names)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    _legend(axes)
    return figure


def draw_all(comparison: Comparison) -> dict[tuple[str, str], Any]:
    """Draw every picture that there are numbers for.

    Returns:
        Figures by (judge, name of the picture): ``against-REFERENCE``, ``length`` and ``attacks``.

    Raises:
        MissingAsset: If matplotlib is not installed.
    """
    require_matplotlib()
    drawn: dict[tuple[str, str], Any] = {}
    for judge in comparison.judges:
        for reference in comparison.references:
            drawn[judge.name, f"against-{reference}"] = draw_agreement(comparison, judge, reference)
        drawn[judge.name, "length"] = draw_length(comparison, judge)
        drawn[judge.name, "attacks"] = draw_attacks(judge)
    return {key: figure for key, figure in drawn.items() if figure is not None}


def inline_svg(figure: Any, prefix: str, colours: Mapping[str, str]) -> str:
    """Return a figure as an ``<svg>`` element for a web page.

    Args:
        figure: What was drawn.
        prefix: Put before every id, so that no two pictures of a page share one.
        colours: What to write for each colour of the picture, such as ``var(--ink)``.
    """
    svg = encode(figure, "svg").decode()
    for pattern, text in _UNWANTED_ON_A_PAGE:
        svg = re.sub(pattern, text, svg, flags=re.DOTALL)
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{prefix}", svg)
    for colour, shown in colours.items():
        svg = svg.replace(colour, shown)
    return svg


def encode(figure: Any, form: str) -> bytes:
    """Encode a figure as ``svg`` or ``png``."""
    import matplotlib as mpl

    out = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "istar", "font.family": "sans-serif"}):
        date = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(out, format=form, dpi=160, metadata=date)
    return out.getvalue()


_UNWANTED_ON_A_PAGE: Final = (
    (r"^.*?<svg ", '<svg role="img" '),
    (r"<metadata>.*?</metadata>|<style.*?</style>", ""),
    (r' id="(?:[A-Za-z0-9.]+_)+\d+"', ""),
    (r"font-family: [^;]+; ", ""),
)


def _canvas(title: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4, 3.1), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=10, color=INK, fontweight="bold", pad=20)
    axes.tick_params(colors=INK, labelsize=8.5, length=0)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    return figure, axes


def _scale(axes: Any, *, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)


def _legend(axes: Any) -> None:
    axes.legend(
        fontsize=8,
        frameon=False,
        labelcolor=INK,
        ncols=2,
        loc="lower left",
        bbox_to_anchor=(-0.02, 0.98),
        columnspacing=1.2,
    )


def _apart(count: int) -> Any:
    """Return small shifts that keep equal whole scores from covering each other; always the same ones."""
    golden = 0.6180339887498949
    return (np.arange(count) * golden % 1.0 - 0.5) * 2 * _SPREAD
