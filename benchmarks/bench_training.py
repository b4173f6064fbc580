"""What step credit costs. Run with `python -m pytest benchmarks/bench_training.py -s`.

The sizes are those of configs/tiny_cpu.yaml. The policy's learning rate is 0, so that every method plays
the same games and reads the same rows; reward models learn. Methods take turns iteration by iteration,
and ratios are medians over iterations, which keeps other work on the machine out of them.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
import torch

from istar_trainer.config import RunConfig
from istar_trainer.config_files import read_tree
from istar_trainer.folder import RunFolder
from istar_trainer.metrics import read_metrics
from istar_trainer.pipeline import prepare_policy, use_threads
from istar_trainer.progress import Progress
from istar_trainer.setup import Run, make_run
from istar_trainer.train import train

ITERATIONS = 6
BASE = read_tree(Path(__file__).parents[1] / "configs/tiny_cpu.yaml")
CENTRED = BASE["credit"]
CREDITS = {"rloo": "none", "istar as published": "istar", "istar of the quickstart": CENTRED}
BAR = 2.0
"""Counted in forward passes, a backward pass as two, training costs 4 without step credit, 9 with iStar and
10 with centres, less what groups without pairs spare it; playing costs all the same."""

Seconds = dict[str, list[dict[str, float]]]


def configure(folder: Path, credit: object) -> RunConfig:
    tree = {
        **BASE,
        "run_dir": str(folder),
        "threads": 1,
        "iterations": 0,
        "algorithm": {"type": "rloo", "loss": {"aggregation": "trajectory_mean"}},
        "credit": credit,
        "warm_start": {**BASE["warm_start"], "eval_every": 20, "eval_tasks": 60},
        "learner": {**BASE["learner"], "lr": 0.0},
        "eval": {"every": 1000, "dev_tasks": 1, "test_tasks": 0},
        "checkpoint": {"every": 1000},
        "shown_trajectories": 0,
    }
    return RunConfig.model_validate(tree)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seconds]:
    """Seconds of the parts of each iteration, by method."""
    root, threads = tmp_path_factory.mktemp("training"), torch.get_num_threads()
    use_threads(1)
    with Progress() as progress:
        first = configure(root / "start", "none")
        start = prepare_policy(first, RunFolder(first.run_dir, first, resume=False), progress)
        runs = {
            name: start_run(root / str(n), start, credit) for n, (name, credit) in enumerate(CREDITS.items())
        }
        for iteration in range(1, ITERATIONS + 1):
            for run in runs.values():
                run.config = run.config.model_copy(update={"iterations": iteration})
                train(run)
        for run in runs.values():
            run.close()
    yield {name: read_metrics(run.folder.path / "metrics.jsonl") for name, run in runs.items()}
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def start_run(folder: Path, start: Path, credit: object) -> Run:
    config = configure(folder, credit)
    return make_run(config, RunFolder(folder, config, resume=False), start, Progress(), resume=False)


def training(values: dict[str, float]) -> float:
    return values["time/iteration_s"] - values["time/rollout_s"] - values["time/judge_s"]


@pytest.mark.parametrize("credit", [name for name in CREDITS if name != "rloo"])
def test_an_iteration_with_step_credit_against_one_without(measured: Seconds, credit: str) -> None:
    plain, credited = measured["rloo"], measured[credit]
    assert [v["env/return_mean"] for v in plain] == [v["env/return_mean"] for v in credited]
    pairs = list(zip(credited, plain, strict=True))
    whole = median(a["time/iteration_s"] / b["time/iteration_s"] for a, b in pairs)
    part = median(training(a) / training(b) for a, b in pairs)
    seconds = [median(v["time/iteration_s"] for v in values) for values in (credited, plain)]
    print(
        f"\n{credit}: {seconds[0]:.2f} s an iteration, {seconds[1]:.2f} s without, {whole:.2f}× "
        f"(bar {BAR}×); training alone {part:.2f}×"
    )
    assert whole <= BAR
