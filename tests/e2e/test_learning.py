"""The end-to-end property: on five seeds, a tiny language model plays Sokoban better than before training.

How far iStar is from outcomes alone is reported with its interval and never asserted.
"""

from pathlib import Path

import numpy as np
import pytest
import yaml

from istar_trainer.compare.plan import Plan, load_plan
from istar_trainer.compare.results import read_results
from istar_trainer.compare.statistics import bootstrap_mean, student_interval
from istar_trainer.folder import RunFolder
from istar_trainer.pipeline import prepare_policy, run_training, use_threads
from istar_trainer.progress import Progress
from tiny_run import write_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("_restore_torch")]

METHODS = {
    "rloo": {"credit": "none"},
    "rloo+istar": {
        "credit": {
            "type": "istar",
            "step_adv_coef": 0.3,
            "attribution": "shifted_to_go",
            "center": "policy_kl",
            "groups": "with_pairs",
        }
    },
}


def write_comparison(folder: Path) -> Path:
    """Levels of up to three moves in four steps, 30 iterations of 16 × 8 from one cloned start."""
    write_config(
        folder / "base.yaml",
        iterations=30,
        env={"kwargs": {"levels": "vagen-1-5", "max_moves": 3, "max_steps": 4}},
        model={"hidden_size": 32, "num_layers": 2, "num_heads": 8},
        warm_start={
            "episodes": 200,
            "batch_size": 64,
            "lr": 2e-3,
            "target_success": 0.4,
            "eval_every": 20,
            "eval_tasks": 200,
        },
        rollout={"num_tasks": 16, "group_size": 8},
        algorithm={"type": "rloo", "loss": {"aggregation": "trajectory_mean"}},
        learner={"lr": 1e-3, "minibatches": 4, "warm_up_iterations": 4},
        prm={"lr": 2e-3, "score": "mean"},
        eval={"every": 30, "dev_tasks": 10, "test_tasks": 300, "temperature": 1.0},
    )
    comparison = {
        "base": "base.yaml",
        "methods": METHODS,
        "seeds": [0, 1, 2, 3, 4],
        "warm_start_seed": 0,
        "out": str(folder / "out"),
    }
    path = folder / "compare.yaml"
    path.write_text(yaml.safe_dump(comparison, sort_keys=False), encoding="utf-8")
    return path


def carry_out(plan: Plan) -> None:
    """Clone the start and train every run from it, in this process."""
    use_threads(1)
    with Progress() as progress:
        for start in plan.starts:
            prepare_policy(start, RunFolder(start.run_dir, start, resume=False), progress)
        for run in plan.runs:
            run_training(run.config, resume=False, progress=progress)


def over_tasks(results, method: str, measure: str) -> np.ndarray:
    """One row per seed, one column per test task."""
    return np.stack([result.values[measure] for result in results if result.method == method])


def test_a_tiny_language_model_ends_above_its_start_on_five_seeds(tmp_path, capsys):
    plan = load_plan(write_comparison(tmp_path))
    carry_out(plan)
    results = read_results(plan)
    after = {name: over_tasks(results, name, "success") for name in METHODS}
    for name, success in after.items():
        gain = success - over_tasks(results, name, "start")
        assert gain.shape == (5, 300)
        assert student_interval(gain).low > 0, name
        assert bootstrap_mean(gain).low > 0, name
    gap = student_interval(after["rloo+istar"] - after["rloo"])
    with capsys.disabled():
        print(f" rloo+istar − rloo: {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}] ", end="")
