"""A run that is killed and resumed ends as one that was never interrupted, bit for bit."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from same_run import assert_same_run
from tiny_run import write_config

pytestmark = pytest.mark.e2e
KILL_SWITCH = Path(__file__).with_name("kill_switch.py")

MOMENTS = {
    "in the warm start": "istar_trainer.sft:clone:30",
    "before the first evaluation": "istar_trainer.pipeline:evaluate_test:1",
    "in the first rollout": "istar_trainer.sampler:LocalSampler._read_prompts:20",
    "in the second pass of the PRM": "istar_trainer.prm:ImplicitPrm._second_pass:3",
    "between two minibatches": "istar_trainer.update:_accumulate:6",
    "before the metrics are written": "istar_trainer.metrics:MetricsLog.write:9",
    "between metrics and checkpoint": "istar_trainer.setup:Run.save:2",
    "inside a checkpoint": "istar_trainer.checkpoint:seal:2",
    "after a checkpoint's rename": "istar_trainer.checkpoint:sync:2",
    "before the last evaluation": "istar_trainer.pipeline:evaluate_test:2",
}


def start(
    config: Path, folder: Path, *, moment: str | None = None, resume: bool = True
) -> subprocess.Popen[bytes]:
    """Start training, with a function whose n-th call kills the process if a moment is given."""
    entry = [str(KILL_SWITCH), moment] if moment else ["-c", "from istar_trainer.cli import main; main()"]
    command = [sys.executable, *entry, "train", str(config), "--run-dir", str(folder)]
    return subprocess.Popen(
        [*command, *(["--resume"] if resume else [])], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[bytes]) -> int:
    _, errors = process.communicate(timeout=1800)
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    return process.returncode


def num_lines(folder: Path) -> int:
    """Iterations that a run has recorded."""
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.is_file() else 0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, "the process ended too early"
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def config(tmp_path) -> Path:
    return write_config(tmp_path / "tiny.yaml")


def test_a_run_killed_again_and_again_ends_like_one_that_was_not(tmp_path, config, finished_run):
    folder = tmp_path / "run"
    inside_the_second_checkpoint = "istar_trainer.checkpoint:seal:1"
    moments = [MOMENTS["in the warm start"], MOMENTS["between two minibatches"], inside_the_second_checkpoint]
    for number, moment in enumerate(moments):
        assert finish(start(config, folder, moment=moment, resume=number > 0)) == -signal.SIGKILL
    assert num_lines(folder) == 4
    process = start(config, folder)
    wait_for(lambda: num_lines(folder) != 4, process)  # back to the checkpoint after 2 iterations
    wait_for(lambda: num_lines(folder) >= 3, process)
    process.kill()
    assert finish(process) == -signal.SIGKILL
    assert finish(start(config, folder)) == 0
    assert_same_run(folder, finished_run)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS.keys())
def test_a_run_killed_once_at_any_moment_ends_like_one_that_was_not(tmp_path, config, finished_run, moment):
    folder = tmp_path / "run"
    assert finish(start(config, folder, moment=moment, resume=False)) == -signal.SIGKILL
    assert finish(start(config, folder)) == 0
    assert_same_run(folder, finished_run)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2])
def test_a_run_killed_from_outside_ends_like_one_that_was_not(tmp_path, config, finished_run, delay):
    folder = tmp_path / "run"
    process = start(config, folder, resume=False)
    wait_for(lambda: num_lines(folder) >= 3, process)
    time.sleep(delay)
    process.kill()
    finish(process)
    assert finish(start(config, folder)) == 0
    assert_same_run(folder, finished_run)
