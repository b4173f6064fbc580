"""What the report reads from a run folder, checked where it enters.

Every file may be missing (the run may have ended early); a file that is there must be right.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from istar_envs.episode import Episode
from istar_envs.errors import ConfigError
from istar_trainer.metrics import read_metrics, wilson_interval


class EvalRecord(BaseModel):
    """One evaluation on a fixed list of tasks: a line of ``eval.jsonl``."""

    model_config = ConfigDict(frozen=True)

    iteration: int
    """Iterations of training that the evaluated policy has seen."""
    split: str
    """Name of the task list: ``dev`` or ``test``."""
    label: str
    """``before``, ``after``, or ``dev`` for evaluations on the way."""
    success: int = Field(ge=0)
    """Tasks solved."""
    n: int = Field(ge=0)
    """Tasks played."""
    mean_steps: float | None = None
    """Steps of an episode, averaged over all tasks."""
    mean_score: float | None = None
    """Score of an episode, 0 to 1, averaged over all tasks."""
    score_interval: tuple[float, float] | None = None
    """95% interval of ``mean_score``."""
    baselines: Mapping[str, float] = {}
    """Success rate of other players on the same tasks, by name (``random``, ``optimal``)."""

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        if self.success > self.n:
            raise ValueError(f"success={self.success} is more than n={self.n}")
        return self

    @property
    def rate(self) -> float:
        """Share of tasks solved; 0 if none was played."""
        return self.success / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson interval of the rate, 95%."""
        return wilson_interval(self.success, self.n)


def before_and_after(evals: Sequence[EvalRecord]) -> tuple[EvalRecord, EvalRecord] | None:
    """Return the latest evaluations labelled ``before`` and ``after``, or None if one is missing."""
    ends = {record.label: record for record in evals}
    return (ends["before"], ends["after"]) if {"before", "after"} <= ends.keys() else None


def are_apart(one: EvalRecord, other: EvalRecord) -> bool:
    """Whether the 95% intervals of two evaluations have no point in common."""
    return one.interval[1] < other.interval[0] or other.interval[1] < one.interval[0]


def baselines_of(evals: Sequence[EvalRecord]) -> dict[str, float]:
    """Collect the success rates of other players, named ``random play`` and so on, worst first."""
    rates = {name: rate for record in evals for name, rate in record.baselines.items()}
    return {f"{name} play": rate for name, rate in sorted(rates.items(), key=lambda item: item[1])}


class StepCredit(BaseModel):
    """What one step received."""

    model_config = ConfigDict(frozen=True)

    implicit_reward: float
    """r of the step, in β·nats."""
    credit: float
    """r after centring and attribution."""
    step_advantage: float
    """The credit compared with its group, before the factor α."""
    advantage: float
    """What the policy loss used: outcome part plus α times the step advantage."""


class CreditRecord(BaseModel):
    """One trajectory with the credit of each step: a line of ``credits.jsonl``."""

    model_config = ConfigDict(frozen=True)

    iteration: int
    group_id: int | str
    trajectory_id: int | str
    outcome: float | None
    """Judged outcome, or None without a verdict."""
    outcome_advantage: float
    """The part of the advantage that all steps share."""
    episode: Episode
    steps: tuple[StepCredit, ...]

    @model_validator(mode="after")
    def _one_credit_a_step(self) -> Self:
        if len(self.steps) != len(self.episode.transitions):
            raise ValueError(f"{len(self.steps)} credits for {len(self.episode.transitions)} transitions")
        return self


@dataclass(frozen=True, slots=True)
class RunRecords:
    """Everything that a run folder holds; None for a file that is not there."""

    config: Mapping[str, Any] | None
    env: Mapping[str, Any] | None
    metrics: Sequence[Mapping[str, float]] | None
    evals: Sequence[EvalRecord] | None
    credits: Sequence[CreditRecord] | None


def read_run(run_dir: Path) -> RunRecords:
    """Read a run folder.

    Raises:
        ConfigError: If the folder is missing or a file in it is broken; names the file and line.
    """
    if not run_dir.is_dir():
        raise ConfigError(f"no run folder at {run_dir}. Give the folder that istar train wrote.")
    metrics = run_dir / "metrics.jsonl"
    return RunRecords(
        config=read_object(run_dir / "config.json"),
        env=read_object(run_dir / "env.json"),
        metrics=read_metrics(metrics) if metrics.exists() else None,
        evals=read_lines(run_dir / "eval.jsonl", EvalRecord),
        credits=read_lines(run_dir / "credits.jsonl", CreditRecord),
    )


def read_object(path: Path) -> Mapping[str, Any] | None:
    """Read a file that holds one JSON object; None if it is not there.

    Raises:
        ConfigError: If it holds something else.
    """
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}. Restore the file or remove it.") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds no JSON object. Restore the file or remove it.")
    return data


_Line = TypeVar("_Line", bound=BaseModel)


def read_lines(path: Path, model: type[_Line]) -> list[_Line] | None:
    """Read a JSON-lines file; a last line that a killed writer left unfinished is ignored.

    Args:
        path: The file; None is returned if it is not there.
        model: What each line is.

    Raises:
        ConfigError: If a line is broken; names it.
    """
    if not path.exists():
        return None
    try:
        *lines, tail = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}. Restore the file or remove it.") from error
    found = []
    for number, line in enumerate([*lines, tail], start=1):
        try:
            if line.strip():
                found.append(model.model_validate_json(line))
        except ValidationError as error:
            if number > len(lines):
                break
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "line"
            raise ConfigError(
                f"{path}, line {number}: {where}: {first['msg']}. Remove the line or restore the file."
            ) from error
    return found
