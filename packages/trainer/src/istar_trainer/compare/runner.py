"""Carries the runs of a comparison out in child processes, a few at a time.

A run that was killed goes on from its checkpoint and one that is finished is left alone, so a
comparison that was killed anywhere goes on with ``resume``. A run that fails stops no other.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from istar_envs.errors import ConfigError
from istar_trainer.compare.display import Display
from istar_trainer.compare.plan import Plan
from istar_trainer.compare.results import is_finished, start_is_made
from istar_trainer.config import RunConfig
from istar_trainer.folder import require_same
from istar_trainer.metrics import write_atomically

_LOCK: Final = ".lock"
_POLL_S: Final = 0.2
_LOCK_WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """One child process.

    Attributes:
        name: What people call it.
        command: Command of ``istar``.
        config: Its configuration.
        iterations: Iterations to wait for; 0 if it does not count them.
    """

    name: str
    command: str
    config: RunConfig
    iterations: int

    @property
    def log(self) -> Path:
        """What it printed, beside its folder."""
        return self.config.run_dir.with_name(f"{self.config.run_dir.name}.log")

    def iterations_done(self) -> int:
        """Count the iterations that its run folder holds."""
        metrics = self.config.run_dir / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if self.iterations and metrics.exists() else 0


def carry_out(plan: Plan, *, resume: bool, display: Display) -> dict[str, str]:
    """Carry out what is not there yet: shared starts first, then the runs.

    Args:
        plan: What to do.
        resume: Go on with what is in ``plan.comparison.out``.
        display: Shows how far everything is.

    Returns:
        The reason of each run that failed, by ``method/seed``.

    Raises:
        ConfigError: If the folder cannot be used, is used by another process, or holds runs of
            another configuration.
    """
    out, jobs = plan.comparison.out, plan.comparison.jobs
    with _only_one(out) as lock:
        _require_usable(plan, resume=resume)
        starts = [Job(f"warm start {s.seed}", "sft", s, 0) for s in plan.starts if not start_is_made(s)]
        failed_starts = _run_all(starts, jobs, lock, display, title="warm starts", total=len(plan.starts))
        failed = {
            run.name: f"its {name} failed: {failed_starts[name]}"
            for run in plan.runs
            if run.start and (name := f"warm start {run.start.seed}") in failed_starts
        }
        todo = [run for run in plan.runs if run.name not in failed and not is_finished(run.config)]
        runs = [Job(run.name, "train", run.config, run.config.iterations) for run in todo]
        return failed | _run_all(runs, jobs, lock, display, title="runs", total=len(plan.runs))


def _run_all(
    jobs: Sequence[Job], limit: int, lock: int, display: Display, *, title: str, total: int
) -> dict[str, str]:
    """Run jobs, at most ``limit`` at the same time; returns why jobs failed."""
    if not jobs:
        return {}
    waiting, running, failed = deque(jobs), dict[str, tuple[Job, subprocess.Popen[bytes]]](), {}
    display.begin(title, total, done=total - len(jobs))
    with contextlib.ExitStack() as children:
        while waiting or running:
            while waiting and len(running) < limit:
                job = waiting.popleft()
                process = children.enter_context(_start(job, lock))
                children.callback(process.kill)
                running[job.name] = (job, process)
                display.started(job.name, job.iterations)
            time.sleep(_POLL_S)
            for job, process in list(running.values()):
                code = process.poll()
                if code is None:
                    display.advanced(job.name, job.iterations_done())
                    continue
                del running[job.name]
                if code:
                    failed[job.name] = _reason(job, code)
                display.ended(job.name, failed.get(job.name))
    return failed


def _start(job: Job, lock: int) -> subprocess.Popen[bytes]:
    """Start a job with its resolved configuration beside its folder."""
    config_file = job.log.with_suffix(".yaml")
    job.log.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(config_file, yaml.safe_dump(job.config.model_dump(mode="json"), sort_keys=False))
    words = ["-m", "istar_trainer.compare.child", job.command, str(config_file), "--resume"]
    with job.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            pass_fds=(lock,),
            start_new_session=True,
        )


def _reason(job: Job, code: int) -> str:
    """Say why a job failed: the signal that killed it, or the last line that it printed."""
    if code < 0:
        return f"killed by signal {-code}" + (
            ", as the kernel does when memory runs out" if code == -9 else ""
        )
    lines = [
        line for line in job.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
    ]
    return f"{lines[-1].strip() if lines else f'exit code {code}'} (see {job.log})"


@contextlib.contextmanager
def _only_one(out: Path) -> Iterator[int]:
    """Hold the folder's lock; children hold it too, so none of a killed comparison is still at work."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / _LOCK).open("w")
    except OSError as error:
        raise ConfigError(f"cannot use out {out}: {error.strerror}. Choose another folder.") from error
    with file:
        end = time.monotonic() + _LOCK_WAIT_S
        while not _locked(file.fileno()):
            if time.monotonic() > end:
                raise ConfigError(
                    f"another istar compare is at work in {out}. Wait until it ends, or choose another out."
                )
            time.sleep(_POLL_S)
        yield file.fileno()


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _require_usable(plan: Plan, *, resume: bool) -> None:
    """Refuse a folder with something else in it, and runs of another configuration."""
    out = plan.comparison.out
    if not resume and any(path.name != _LOCK for path in out.iterdir()):
        raise ConfigError(f"out {out} is not empty. Use --resume to go on with it, or another folder.")
    for config in (*plan.starts, *(run.config for run in plan.runs)):
        stored = config.run_dir / "config.json"
        if stored.exists():
            require_same(stored, config)
            planned = json.loads(stored.read_text(encoding="utf-8"))["iterations"]
            if planned != config.iterations:
                raise ConfigError(
                    f"cannot go on with {config.run_dir}: it was planned for {planned} iterations, now for "
                    f"{config.iterations}. Use the same number, or another out."
                )
