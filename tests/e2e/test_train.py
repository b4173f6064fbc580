"""Training as a user starts it: the command, what it shows, what it leaves, and that it learns."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from istar_trainer.metrics import wilson_interval
from tiny_run import write_config

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
ISTAR = Path(sys.executable).with_name("istar")


def istar(*words: object) -> subprocess.CompletedProcess[str]:
    command = [str(ISTAR), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_shows_its_progress_and_leaves_a_report(tmp_path):
    config = write_config(tmp_path / "tiny.yaml", iterations=2)
    done = istar("train", config, "--run-dir", tmp_path / "run", "--seed", 3)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "training 2/2" in done.stdout
    for word in ("ETA", "success", "step reward", "PRM pairs", "warm start", "random play", "optimal play"):
        assert word in done.stdout
    report = tmp_path / "run" / "report.html"
    assert str(report) in done.stdout.replace("\n", "")
    assert report.read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 3
    assert len(records(tmp_path / "run" / "metrics.jsonl")) == 2
    again = istar("train", config, "--run-dir", tmp_path / "run", "--seed", 3)
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert "Use --resume" in again.stderr


def test_help_comes_without_loading_torch():
    program = (
        "import sys; from istar_trainer.cli import run; code = run(['--help']); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize("credit", ["none", "istar"])
def test_training_raises_success_on_one_move_levels(tmp_path, credit):
    config = write_config(
        tmp_path / "c.yaml",
        run_dir=str(tmp_path / "run"),
        iterations=30,
        env={"kwargs": {"max_moves": 1, "max_steps": 1}},
        model={"hidden_size": 32, "num_layers": 2},
        warm_start={"episodes": 40, "max_epochs": 12, "target_success": 1.0, "lr": 5e-3, "batch_size": 20},
        rollout={"num_tasks": 16, "group_size": 8},
        learner={"lr": 3e-3},
        prm={"lr": 3e-3, "updates_per_iteration": 3},
        eval={"every": 30, "dev_tasks": 5, "test_tasks": 0},
    )
    done = istar("train", config, "--credit", credit)
    assert done.returncode == 0, done.stderr
    rates = [record["env/success_rate"] for record in records(tmp_path / "run" / "metrics.jsonl")]
    num = 3 * 128
    before, after = (round(sum(part) / 3 * num) for part in (rates[:3], rates[-3:]))
    # three seeds of each rose from 5–10% to 23–27%
    assert wilson_interval(after, num)[0] > wilson_interval(before, num)[1], rates


@pytest.mark.slow
def test_the_quickstart_raises_held_out_success(tmp_path):
    done = istar("train", ROOT / "configs" / "tiny_cpu.yaml", "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    evaluations = {record["label"]: record for record in records(tmp_path / "run" / "eval.jsonl")}
    before, after = evaluations["before"], evaluations["after"]
    assert before["n"] == after["n"] >= 400
    intervals = [wilson_interval(record["success"], record["n"]) for record in (before, after)]
    assert intervals[1][0] > intervals[0][1], intervals
    assert after["success"] / after["n"] - before["success"] / before["n"] >= 0.15
    assert after["success"] / after["n"] > after["baselines"]["random"]
    for record in records(tmp_path / "run" / "metrics.jsonl"):
        assert record["prm/grad_norm"] > 0 or record["pairs/num"] == 0
