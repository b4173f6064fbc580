"""Dev success of each method over the iterations, as one picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from istar_envs.errors import ConfigError
from istar_trainer.compare.results import RunResult
from istar_trainer.plots import BLUE, GREEN, INK, ORANGE, dress, figure_bytes

PURPLE, SKY, BROWN = "#cc79a7", "#56b4e9", "#a6761d"
_COLOURS: Final = (INK, BLUE, ORANGE, GREEN, PURPLE, SKY, BROWN)
_LINES: Final = ("-", "--", "-.", ":")


def method_curve(
    runs: Sequence[RunResult],
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    """Average dev success over the runs of a method.

    Args:
        runs: At least one.

    Returns:
        Iterations that all runs were evaluated at, mean success, and its standard error over runs
        (0 for a single run).
    """
    points = [dict(zip(*(axis.tolist() for axis in run.curve), strict=True)) for run in runs]
    iterations = sorted(set(points[0]).intersection(*points[1:]))
    values = np.array([[point[i] for i in iterations] for point in points]).reshape(len(runs), -1)
    error = values.std(axis=0, ddof=1) / len(runs) ** 0.5 if len(runs) > 1 else np.zeros(len(iterations))
    return np.array(iterations), values.mean(axis=0), error


def draw_curves(results: Sequence[RunResult], methods: Sequence[str]) -> Any:
    """Draw the mean of each method that has a finished run, with a band of one standard error.

    Args:
        results: Finished runs.
        methods: Names in the order of the legend.

    Returns:
        A ``matplotlib.figure.Figure``.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, method in enumerate(methods):
        runs = [result for result in results if result.method == method]
        if not runs:
            continue
        iterations, mean, error = method_curve(runs)
        colour, line = _COLOURS[number % len(_COLOURS)], _LINES[number % len(_LINES)]
        axes.plot(iterations, mean, line, color=colour, linewidth=1.6, marker="o", markersize=3, label=method)
        axes.fill_between(iterations, mean - error, mean + error, color=colour, alpha=0.12, linewidth=0)
    dress(axes, "Dev success: mean over seeds ± its standard error", "share")
    axes.legend(fontsize=8, frameon=False, labelcolor=INK, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def save_curves(figure: Any, folder: Path) -> None:
    """Save the picture as ``curves.png`` and ``curves.svg``.

    Raises:
        ConfigError: If the folder cannot be written.
    """
    try:
        for form in ("png", "svg"):
            (folder / f"curves.{form}").write_bytes(figure_bytes(figure, form))
    except OSError as error:
        raise ConfigError(
            f"cannot write curves to {folder} ({error.strerror}). Free space, or choose another out."
        ) from error
