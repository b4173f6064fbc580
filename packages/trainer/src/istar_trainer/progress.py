"""What a person sees while training runs, and the table at its end.

On a terminal a live bar; elsewhere one plain line an iteration. Nothing here computes a metric.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from istar_trainer.metrics import Record
from istar_trainer.report.formats import clock_time, percent_range, score_range
from istar_trainer.report.records import EvalRecord, are_apart, baselines_of, before_and_after


class Progress:
    """Shows how far a run is and how it does; use it as a context manager.

    Args:
        console: Where to write; standard output by default.
        clock: Seconds from any start; replaced in tests.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(highlight=False)
        self._clock = clock
        self._values: dict[str, float] = {}
        self._label = "training"
        self._total = self._first = self._done = 0
        self._started = clock()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Return the display itself; nothing is shown before ``start``."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state of the bar on the screen."""
        self._stop()

    def start(self, total_iterations: int, completed: int = 0, label: str = "training") -> None:
        """Begin a phase.

        Args:
            total_iterations: Iterations of the whole phase.
            completed: Iterations done before, when a run is resumed; they do not count for the ETA.
            label: Name of the phase.
        """
        self._stop()
        self._label, self._total = label, total_iterations
        self._first = self._done = completed
        self._started = self._clock()
        self._values = {}
        if self._console.is_terminal:
            self._live = Live(self._view(), console=self._console, refresh_per_second=2)
            self._live.start()

    def update(self, iteration: int, values: Record) -> None:
        """Show a finished iteration.

        Args:
            iteration: Counted from 0.
            values: Its metrics; what is not among them keeps its latest value.
        """
        self._values.update(values)
        self._done = iteration + 1
        if self._live is not None:
            self._live.update(self._view(), refresh=True)
        else:
            self._print(f"{self._label} {self._position()} · {describe(self._values)}".removesuffix(" · "))

    def note(self, text: str) -> None:
        """Print a line of its own, above the bar."""
        self._print(text)

    def summary_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """End the bar and print the table of held-out success; see the function of the same name."""
        self._stop()
        self._console.print(summary_table(rows))

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _position(self) -> str:
        """Say where the run is and how long the rest takes at the pace so far."""
        place = f"{self._done}/{self._total}"
        fresh = self._done - self._first
        if fresh <= 0:
            return place
        left = (self._clock() - self._started) / fresh * max(self._total - self._done, 0)
        return f"{place} · ETA {clock_time(left)}"

    def _view(self) -> Group:
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(self._total, 1), completed=self._done, width=30)
        head.add_row(Text(self._label, style="bold"), bar, Text(self._position()))
        return Group(head, Text(describe(self._values), style="dim"))


def describe(values: Record) -> str:
    """Write the metrics that matter while waiting; what is missing or not finite is left out.

    Example:
        >>> describe({"env/success_rate": 0.421, "prm/pair_acc": 0.7})
        'success 42.1% · PRM pairs 70.0%'
    """
    shown = {name: value for name, value in values.items() if math.isfinite(value)}
    parts = []
    for name, label, form in _SHOWN:
        if name in shown:
            parts.append(f"{label} {shown[name]:{form}}")
    if "eval/success_rate" in shown:
        part = f"held-out {shown['eval/success_rate']:.1%}"
        if {"eval/success_low", "eval/success_high"} <= shown.keys():
            part += f" [{percent_range(shown['eval/success_low'], shown['eval/success_high'])}]"
        parts.append(part)
    return " · ".join(parts)


_SHOWN: Final = (
    ("env/success_rate", "success", ".1%"),
    ("step_reward/mean", "step reward", "+.4f"),
    ("prm/pair_acc", "PRM pairs", ".1%"),
    ("sft/loss", "loss", ".4f"),
    ("sft/dev_success_rate", "dev success", ".1%"),
)


def summary_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Lay out held-out success before and after training beside the baselines.

    Args:
        rows: Evaluation records as in ``eval.jsonl`` (``label``, ``split``, ``success``, ``n``,
            ``mean_steps``, ``baselines``), in the order to show.

    Returns:
        A table with the 95% Wilson interval of each rate, random play first and optimal play last.

    Raises:
        pydantic.ValidationError: If a row lacks a field.
    """
    evals = [EvalRecord.model_validate(row) for row in rows]
    table = Table(title="held-out success", caption=_gain(evals))
    for heading in ("policy", "success", "95% interval", "tasks", "mean score", "mean steps"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    baselines = baselines_of(evals)
    optimal = baselines.pop("optimal play", None)
    for name, rate in baselines.items():
        table.add_row(name, f"{rate:.1%}")
    for record in evals:
        steps = "" if record.mean_steps is None else f"{record.mean_steps:.1f}"
        name = f"{record.label} ({record.split})"
        interval, score = (
            percent_range(*record.interval),
            score_range(record.mean_score, record.score_interval),
        )
        table.add_row(name, f"{record.rate:.1%}", interval, str(record.n), score, steps)
    if optimal is not None:
        table.add_row("optimal play", f"{optimal:.1%}")
    return table


def _gain(evals: Sequence[EvalRecord]) -> str | None:
    """Say how far success moved, if both ends are there."""
    ends = before_and_after(evals)
    if ends is None:
        return None
    before, after = ends
    relation = "are apart" if are_apart(before, after) else "overlap"
    return f"{100 * (after.rate - before.rate):+.1f} points; the intervals {relation}"
