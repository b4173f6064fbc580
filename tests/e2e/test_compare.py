"""``istar compare`` as a user runs it: killed once, resumed, and every number from the run folders."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from istar_trainer import cli
from istar_trainer.report.records import read_run
from tiny_run import write_config

pytestmark = pytest.mark.e2e


def write_comparison(folder: Path) -> Path:
    """Two methods × two seeds × two iterations from one shared start."""
    write_config(
        folder / "base.yaml",
        iterations=2,
        eval={"every": 1, "dev_tasks": 4, "test_tasks": 6},
        checkpoint={"every": 1},
    )
    comparison = {
        "base": "base.yaml",
        "methods": {"plain": {"credit": "none"}, "istar": None},
        "seeds": [0, 1],
        "warm_start_seed": 0,
        "threshold": 0.3,
        "out": str(folder / "out"),
    }
    path = folder / "compare.yaml"
    path.write_text(yaml.safe_dump(comparison, sort_keys=False), encoding="utf-8")
    return path


def wait_for(condition, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, "the comparison ended too early"
        assert time.monotonic() < end
        time.sleep(0.02)


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_comparison_that_was_killed_goes_on_and_compares_pairs(tmp_path, capsys):
    path, out = write_comparison(tmp_path), tmp_path / "out"
    command = [sys.executable, "-c", "from istar_trainer.cli import main; main()", "compare", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for((out / "runs/istar/0/metrics.jsonl").is_file, process)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    first = (out / "runs/plain/0/metrics.jsonl").stat()
    assert (out / "runs/plain/0/report.html").is_file()
    assert not (out / "runs/istar/0/report.html").exists()

    assert cli.run(["compare", str(path)]) == 2
    assert "is not empty. Use --resume" in capsys.readouterr().err
    assert cli.run(["compare", str(path), "--resume", "--jobs", "2"]) == 0
    assert "1 of 4 runs are there already" in capsys.readouterr().out
    assert (out / "runs/plain/0/metrics.jsonl").stat() == first

    numbers = json.loads((out / "compare.json").read_text())
    assert [row["name"] for row in numbers["methods"]] == ["plain", "istar"]
    assert numbers["methods"][1]["difference"]["seeds"] == [0, 1]
    assert numbers["failures"] == {}
    for row in numbers["methods"]:
        for run in row["runs"]:
            evals = read_run(out / "runs" / row["name"] / str(run["seed"])).evals
            after = next(record for record in evals if record.label == "after")
            assert (run["successes"], run["num_tasks"]) == (after.success, after.n)
    assert "<svg" in (out / "compare.html").read_text()
    assert (out / "compare.md").read_text().startswith("2 methods × 2 seeds, 4 of 4 runs finished")
    for seed in (0, 1):
        one, other = (out / "runs" / method / str(seed) for method in ("plain", "istar"))
        before = "episodes/before.jsonl"
        assert (one / before).read_bytes() == (other / before).read_bytes()
        sampled = [lines_of(run / "metrics.jsonl")[0]["env/return_mean"] for run in (one, other)]
        assert sampled[0] == sampled[1]
