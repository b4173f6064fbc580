"""Two processes train as one does, and when one of them is lost the other stops and says so."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from free_ports import free_port
from istar_trainer.checkpoint import list_checkpoints, load_checkpoint
from istar_trainer.distributed.watchdog import EXIT_CODE
from tiny_run import write_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
MODULE = ["-m", "istar_trainer", "train"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port={port}"]
ATOL = 1e-4
"""fp32 sums in another order, through some hundred updates."""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def train(*arguments: object, launcher: Sequence[str] = TORCHRUN) -> str:
    """Train to the end and return what was printed."""
    start = [word.format(port=free_port()) for word in launcher]
    done = subprocess.run(
        [sys.executable, *start, *MODULE, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=900,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def stop(process: subprocess.Popen[str]) -> None:
    """Kill a process that still runs, and close its pipe."""
    process.kill()
    process.wait()
    if process.stderr is not None:
        process.stderr.close()


@contextmanager
def two_processes(*arguments: object) -> Iterator[list[subprocess.Popen[str]]]:
    """Start two processes without a launcher that would stop one for the other."""
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    with ExitStack() as stack:
        processes = []
        for rank in "01":
            process = subprocess.Popen(
                [sys.executable, *MODULE, *map(str, arguments)],
                env={**ENVIRONMENT, **place, "RANK": rank, "LOCAL_RANK": rank},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(stop, process)
            processes.append(process)
        yield processes


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_close(actual, expected, where: str) -> None:
    """Compare nested plain values and tensors; numbers may differ by rounding."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, rtol=0, atol=ATOL, msg=lambda text: f"{where}: {text}")
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key in expected:
            if not str(key).startswith("time/"):
                assert_close(actual[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), where
        for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_close(one, other, f"{where}[{number}]")
    elif isinstance(expected, float):
        assert math.isclose(actual, expected, rel_tol=1e-3, abs_tol=ATOL), f"{where}: {actual} != {expected}"
    else:
        assert actual == expected, where


def assert_same_training(actual: Path, expected: Path) -> None:
    """Compare metrics, credit, evaluations, the states of all optimizers and the trained weights."""
    for name in ("metrics.jsonl", "credits.jsonl", "eval.jsonl"):
        assert_close(records(actual / name), records(expected / name), name)
    pairs = [line["pairs/num"] for line in records(expected / "metrics.jsonl")]
    assert sum(pairs) > 0, "nothing was learnt from pairs, so nothing was compared"
    one, other = (load_checkpoint(list_checkpoints(path / "checkpoints")[-1]) for path in (actual, expected))
    for learner in ("policy", "prm"):
        found, wanted = one[1]["learners"][learner], other[1]["learners"][learner]
        assert_close(found["weights"], wanted["weights"], learner)
        assert_close(found["optimizer"]["state"], wanted["optimizer"]["state"], f"{learner}'s optimizer")
    weights = (load_file(path / "policy" / "model.safetensors") for path in (actual, expected))
    assert_close(*weights, "policy")
    assert (actual / "report.html").is_file()


def wait_for_checkpoint(folder: Path, processes: Sequence[subprocess.Popen[str]]) -> None:
    end = time.monotonic() + 600
    while not (list_checkpoints(folder / "checkpoints") if folder.is_dir() else []):
        assert time.monotonic() < end
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with a configuration, which every run of this module shares."""
    folder = tmp_path_factory.mktemp("distributed")
    divide_all = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
    write_config(
        folder / "tiny.yaml",
        iterations=3,
        checkpoint={"every": 1},
        eval={"test_tasks": 0},
        learner={"deepspeed": {"settings": divide_all}},
    )
    return folder


@pytest.fixture(scope="module")
def alone(home) -> Path:
    """The run of one process."""
    train(home / "tiny.yaml", "--run-dir", home / "alone", launcher=[])
    return home / "alone"


@pytest.mark.parametrize("backend", ["torch", "zero-1", "zero-2", "zero-3"])
def test_two_processes_train_as_one_does(home, alone, backend):
    options = []
    if backend != "torch":
        pytest.importorskip("deepspeed", reason="needs the extra istar-trainer[deepspeed]")
        options = ["--learner.backend=deepspeed", f"--learner.deepspeed.stage={backend[-1]}"]
    said = train(home / "tiny.yaml", "--run-dir", home / backend, *options)
    assert said.count("training 3/3") == 1  # only one of them speaks
    assert_same_training(home / backend, alone)


def test_two_processes_that_merge_full_dialogues_train_as_one_does(home):
    dialogue = ["--env.window=None", "--seed=1"]  # with seed 0 one draw is on the edge of two tokens
    train(home / "tiny.yaml", "--run-dir", home / "dialogue-alone", *dialogue, launcher=[])
    train(home / "tiny.yaml", "--run-dir", home / "dialogue", *dialogue)
    assert_same_training(home / "dialogue", home / "dialogue-alone")


@pytest.mark.parametrize("lost", [0, 1])
def test_when_a_process_is_killed_the_other_stops_with_a_report_and_the_run_goes_on_later(home, alone, lost):
    folder = home / f"killed-{lost}"
    options = ["--run-dir", folder, "--learner.watchdog-s=120"]
    with two_processes(home / "tiny.yaml", *options) as processes:
        wait_for_checkpoint(folder, processes)
        processes[lost].kill()
        began = time.monotonic()
        _, errors = processes[1 - lost].communicate(timeout=240)
    assert time.monotonic() - began < 120
    assert processes[1 - lost].returncode not in (0, -signal.SIGKILL)
    assert f"rank {1 - lost} of 2" in errors
    assert f"rank {lost}: " in errors
    assert "killed: by the kernel if memory ran out (signal 9" in errors
    assert "--resume" in errors
    assert (folder / "watchdog" / f"rank-{1 - lost}.txt").is_file()
    other = ["--learner.backend=deepspeed"] if lost and find_spec("deepspeed") else []
    train(home / "tiny.yaml", *options, *other, "--resume", launcher=TORCHRUN if lost else [])
    assert_same_training(folder, alone)


def test_when_a_process_hangs_the_other_ends_within_the_watchdogs_time_with_a_report(home, alone):
    folder = home / "hung"
    with two_processes(home / "tiny.yaml", "--run-dir", folder, "--learner.watchdog-s=60") as processes:
        wait_for_checkpoint(folder, processes)
        processes[1].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        _, errors = processes[0].communicate(timeout=240)
    assert time.monotonic() - began < 120
    assert processes[0].returncode == EXIT_CODE
    assert "rank 0 of 2 made no progress for 60 s (learner.watchdog_s)" in errors
    assert "Current thread" in errors
    train(home / "tiny.yaml", "--run-dir", folder, "--learner.watchdog-s=900", "--resume", launcher=[])
    assert_same_training(folder, alone)


def test_a_launcher_ends_the_run_when_a_process_is_killed(home):
    folder = home / "launched"
    launcher = [word.format(port=free_port()) for word in TORCHRUN]
    with subprocess.Popen(
        [sys.executable, *launcher, *MODULE, home / "tiny.yaml", "--run-dir", folder, "--iterations", "500"],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for_checkpoint(folder, [process])
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        _, errors = process.communicate(timeout=240)
    assert process.returncode != 0
    assert "of 2" in errors
    assert list_checkpoints(folder / "checkpoints")
