"""Names of all metrics, the log that takes them, and what their values warn of.

The names live in ``metrics.toml``; a name that is not there cannot be logged. The log is JSON lines
and, if asked, TensorBoard. Not here: how a metric is computed (beside its formula) and how it is drawn.
"""

import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from istar_envs.errors import ConfigError, suggest

Record = Mapping[str, float]
"""One line of ``metrics.jsonl``: ``iteration`` and named values; NaN where a value was not finite."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What a logged number means.

    Attributes:
        name: ``family/name``.
        unit: Unit in a word; ``share`` is a number in [0, 1].
        meaning: What is counted, or averaged over what.
        healthy: The range that a good run shows, in words.
    """

    name: str
    unit: str
    meaning: str
    healthy: str


_TABLES: Final[dict[str, Any]] = tomllib.loads(
    files("istar_trainer").joinpath("metrics.toml").read_text(encoding="utf-8")
)
METRICS: Final[Mapping[str, Metric]] = MappingProxyType(
    {name: Metric(name, **entry) for name, entry in _TABLES["metrics"].items()}
)
"""Every metric that a run may log, by name."""


def metrics_markdown() -> str:
    """Write the page ``docs/metrics.md`` from the table of names."""
    lines = [
        "# Metrics",
        "",
        "Every name that `metrics.jsonl` may hold, one JSON object a line: `iteration` (counted from 0) and"
        " the values of that iteration. A value that was not finite is `null`. This page is written from"
        " `packages/trainer/src/istar_trainer/metrics.toml`; a test compares the two.",
    ]
    for family, what in _TABLES["families"].items():
        lines += [
            "",
            f"## {family}",
            "",
            what,
            "",
            "| name | unit | meaning | healthy |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{metric.name}` | {metric.unit} | {metric.meaning} | {metric.healthy} |"
            for metric in METRICS.values()
            if metric.name.startswith(f"{family}/")
        ]
    lines += ["", "## Warnings", "", "Values that contradict the method print one of these, by name."]
    for name, entry in _TABLES["warnings"].items():
        lines += ["", f"### {name}", "", f"**When:** {entry['rule']}", "", entry["means"], "", entry["do"]]
    return "\n".join(lines) + "\n"


def mean_interval(values: Sequence[float], z: float = 1.959964) -> tuple[float, float]:
    """Normal interval of a mean.

    Args:
        values: One per task; at least one.
        z: Half-width in standard errors; 95% by default.

    Returns:
        Lower and upper end; equal for a single value.
    """
    mean = sum(values) / len(values)
    spread = sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)
    half = z * math.sqrt(spread / len(values))
    return mean - half, mean + half


def wilson_interval(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Interval for a success rate that stays honest near 0 and 1 and for small counts.

    Args:
        successes: Number of successes.
        n: Number of tries; 0 gives the whole range.
        z: Normal quantile; the default gives 95%.

    Returns:
        Lower and upper end, both in [0, 1].

    Raises:
        ValueError: Unless 0 <= successes <= n.

    Example:
        >>> low, high = wilson_interval(8, 10)
        >>> round(low, 4), round(high, 4)
        (0.4902, 0.9433)
    """
    if not 0 <= successes <= n:
        raise ValueError(f"need 0 <= successes <= n, got {successes} of {n}")
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    centre = rate + z * z / (2 * n)
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == n else (centre + spread) / scale
    return low, high


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step: readers and crashes see the old text or the new, never a part.

    Raises:
        ConfigError: If the file cannot be written.
    """
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        partial.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error


class MetricsLog:
    """Takes the values of each iteration: ``metrics.jsonl`` always, TensorBoard if asked.

    An existing file is continued; a last line that a killed writer left unfinished is dropped first.

    Args:
        folder: The run folder; created if it is not there.
        tensorboard: Also write event files to ``folder/tensorboard``.
        resume_at: Drop what was logged at this iteration or later, so that a resumed run ends with the
            file of an uninterrupted one.

    Raises:
        ConfigError: If the folder cannot be written, the file is broken, or TensorBoard is wanted but not
            installed.
    """

    def __init__(self, folder: Path, tensorboard: bool = False, resume_at: int | None = None) -> None:
        self.path = folder / "metrics.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path.touch()
        except OSError as error:
            raise _unwritable(self.path, error) from error
        lines = _complete_lines(self.path)
        kept = [line for line, record in lines if resume_at is None or record["iteration"] < resume_at]
        write_atomically(self.path, "".join(line + "\n" for line in kept))
        self._board = _summary_writer(folder / "tensorboard", resume_at) if tensorboard else None

    def write(self, iteration: int, values: Record) -> None:
        """Append one record; it is on disk when this returns.

        Args:
            iteration: Counted from 0.
            values: By metric name; a value that is not finite is written as null.

        Raises:
            ValueError: If a name is not in ``METRICS``.
            ConfigError: If the file cannot be written.
        """
        record: dict[str, float | None] = {"iteration": iteration}
        for name, value in values.items():
            if name not in METRICS:
                raise ValueError(f"unknown metric {name!r}.{suggest(name, METRICS)} Names: metrics.toml.")
            record[name] = float(value) if math.isfinite(value) else None
        try:
            with self.path.open("a", encoding="utf-8") as out:
                out.write(json.dumps(record) + "\n")
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from error
        if self._board is not None:
            for name in values:
                self._board.add_scalar(name, float(values[name]), iteration)
            self._board.flush()

    def close(self) -> None:
        """Close the TensorBoard writer, if there is one; twice is fine."""
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> Self:
        """Return the log itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the log."""
        self.close()


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read a metrics file.

    A last line without its line end that does not parse is what a killed run leaves; it is ignored.

    Args:
        path: A ``metrics.jsonl``.

    Returns:
        One record a line, in file order; null values come back as NaN.

    Raises:
        ConfigError: If the file cannot be read or another line is broken; names the line.
    """
    return [record for _, record in _complete_lines(path)]


def warn_if_contradictory(values: Record, history: Sequence[Record]) -> list[str]:
    """Find values that contradict the method (spec §9, "Rule").

    Args:
        values: The current iteration's values.
        history: Earlier records, oldest first, without the current one.

    Returns:
        One text for each warning: ``name: what happened, with the values. See docs/metrics.md#name.`` The
        name is stable, so that a caller can show each warning once.
    """
    found = {}
    num_pairs = values.get("pairs/num", 0.0)
    if num_pairs > 0 and values.get("prm/grad_norm") == 0:
        found["prm-without-gradient"] = f"prm/grad_norm is 0 with pairs/num = {num_pairs:g}"
    clipped = values.get("ratio/first_minibatch_clip_frac", 0.0)
    if clipped > 0:
        found["clipped-before-update"] = f"ratio/first_minibatch_clip_frac is {clipped:.4g}, must be 0"
    if values.get("judge/canary_drifted", 0.0) > 0:
        names = ("judge/canary_shift", "judge/canary_changed_frac", "judge/canary_failed_frac")
        found["judge-drift"] = ", ".join(f"{n} is {values[n]:.3g}" for n in names if n in values)
    for trend in _TRENDS:
        mean = _latest_mean(trend, [*history, values]) if trend.names[0] in values else None
        if mean is not None and trend.is_bad(mean):
            shown = " − ".join(trend.names)
            found[trend.warning] = f"{shown} is {mean:.3g} on average over {_WINDOW} iterations"
    return [f"{name}: {what}. See docs/metrics.md#{name}." for name, what in found.items()]


_WINDOW: Final = 20


@dataclass(frozen=True, slots=True)
class _Trend:
    """A warning about the mean of a value, or of the difference of two, over the latest iterations."""

    warning: str
    names: tuple[str, ...]
    is_bad: Callable[[float], bool]

    def value(self, record: Record) -> float:
        first, *rest = (record.get(name, math.nan) for name in self.names)
        return first - sum(rest)


_TRENDS: Final = (
    _Trend("prm-worse-than-chance", ("prm/pair_acc",), lambda mean: mean < 0.45),
    _Trend("prm-overfits", ("prm/pair_acc_in_sample", "prm/pair_acc"), lambda mean: mean > 0.4),
    _Trend("prm-saturated", ("prm/saturation",), lambda mean: mean < 0.001),
    _Trend("credit-within-noise", ("step_reward/std", "adv/std_floor"), lambda mean: mean < 0),
    _Trend("credit-at-chance", ("prm/fresh_state_auc",), lambda mean: mean < 0.5),
    _Trend("credit-of-states", ("credit/state_frac",), lambda mean: mean > 0.95),
    _Trend("credit-follows-length", ("prm/corr_len",), lambda mean: abs(mean) > 0.8),
    _Trend("credit-follows-time", ("prm/corr_step_index",), lambda mean: abs(mean) > 0.8),
)


def _latest_mean(trend: _Trend, records: Sequence[Record]) -> float | None:
    """Average the latest finite values of a trend; None if there are too few."""
    found: list[float] = []
    for record in reversed(records):
        value = trend.value(record)
        if math.isfinite(value):
            found.append(value)
            if len(found) == _WINDOW:
                return sum(found) / _WINDOW
    return None


def _complete_lines(path: Path) -> list[tuple[str, dict[str, float]]]:
    """Return each complete line of a metrics file with its record."""
    try:
        *lines, tail = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"cannot read metrics: {path} ({error.strerror}). Check the path.") from error
    found = []
    for number, line in enumerate([*lines, tail], start=1):
        try:
            if line.strip():
                found.append((line.decode(), _record(line)))
        except ValueError as error:
            if number > len(lines):
                break
            raise ConfigError(
                f"{path}, line {number}: not a metrics record: {error}. Each line must be one JSON object "
                f'with "iteration" and numbers; remove the line or restore the file.'
            ) from error
    return found


def _record(line: bytes) -> dict[str, float]:
    """Parse one line; raises ValueError if it is not a record."""
    data = json.loads(line)
    if not isinstance(data, dict) or not isinstance(data.get("iteration"), int):
        raise ValueError('no object with a whole number "iteration"')
    for name, value in data.items():
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"{name} is {value!r}, not a number")
    return {name: math.nan if value is None else value for name, value in data.items()}


def _summary_writer(folder: Path, resume_at: int | None) -> Any:
    """Open TensorBoard event files, hiding what a resumed run writes again."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "TensorBoard output is switched on but tensorboard is not installed. "
            'Run pip install "istar-trainer[tensorboard]" or switch it off.'
        ) from error
    return SummaryWriter(str(folder), purge_step=resume_at)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot write {path} ({error.strerror}). Free space, or choose a run folder that can be written; "
        "a run goes on with --resume."
    )
