"""The smallest whole run that exercises everything, for the tests of the pipeline and the command line."""

import copy
from pathlib import Path
from typing import Any

import yaml

from istar_trainer.config import RunConfig
from istar_trainer.config_files import merge

TINY: dict[str, Any] = {
    "iterations": 6,
    "threads": 1,
    "env": {"kwargs": {"levels": "istar-6x6-1", "max_moves": 2, "max_steps": 4}},
    "model": {"hidden_size": 16, "num_layers": 1, "num_heads": 2},
    "warm_start": {
        "episodes": 60,
        "batch_size": 32,
        "max_epochs": 30,
        "lr": 1e-2,
        "target_success": 0.3,
        "eval_every": 20,
        "eval_tasks": 10,
    },
    "rollout": {"num_tasks": 4, "group_size": 4, "max_response_tokens": 5},
    "learner": {"lr": 1e-3, "minibatches": 2},
    "prm": {"lr": 1e-3},
    "eval": {"every": 2, "dev_tasks": 6, "test_tasks": 6},
    "checkpoint": {"every": 2, "keep": 2},
    "shown_trajectories": 2,
}
"""Two box pushes at most on 6×6 boards; the warm start gives legal moves, so that pairs exist."""


def tiny_tree(**changes: Any) -> dict[str, Any]:
    """Plain values of the tiny run with some sections changed."""
    return merge(copy.deepcopy(TINY), changes)


def tiny_config(run_dir: Path, **changes: Any) -> RunConfig:
    return RunConfig.model_validate(tiny_tree(run_dir=str(run_dir), **changes))


def write_config(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(tiny_tree(**changes)), encoding="utf-8")
    return path
