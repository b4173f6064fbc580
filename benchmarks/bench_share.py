"""How much of an iteration the model takes. Run with `python -m pytest benchmarks/bench_share.py -s`.

Counted are generation, forward passes with log-softmax, backward passes and optimizer steps; the rest is
environments, judging, prompts, batches, advantages, records. Seconds are CPU time.
"""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from istar_trainer import model
from istar_trainer.config import RunConfig
from istar_trainer.config_files import read_tree
from istar_trainer.folder import RunFolder
from istar_trainer.learner import TorchLearner, TorchModel
from istar_trainer.pipeline import prepare_policy, use_threads
from istar_trainer.progress import Progress
from istar_trainer.sampler import LocalSampler
from istar_trainer.setup import make_run
from istar_trainer.train import train

ROOT = Path(__file__).parents[1]
ITERATIONS = 1
BAR = 0.85
PARTS = {
    "generation": (LocalSampler, "generate"),
    "forward": (TorchModel, "forward"),
    "log-softmax": (model, "_by_chunks"),
    "backward": (TorchLearner, "accumulate"),
    "optimizer": (TorchLearner, "step"),
}


def configure(name: str, folder: Path) -> RunConfig:
    tree = read_tree(ROOT / f"configs/{name}.yaml")
    warm = {"episodes": 100, "eval_every": 60, "eval_tasks": 20, "target_success": 0.01, "max_epochs": 4}
    return RunConfig.model_validate(
        {
            **tree,
            "run_dir": str(folder),
            "threads": 1,
            "iterations": ITERATIONS,
            "warm_start": {**tree["warm_start"], **warm},
            "eval": {"every": 1000, "dev_tasks": 1, "test_tasks": 0},
            "checkpoint": {"every": 1000},
        }
    )


@pytest.mark.parametrize("name", ["tiny_cpu", "webshop_istar_tiny"])
def test_share_of_an_iteration_that_the_model_takes(name, tmp_path, monkeypatch):
    seconds = dict.fromkeys(PARTS, 0.0)

    def timed(part: str, function: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **options)
            finally:
                seconds[part] += time.process_time() - start

        return run

    threads, config = torch.get_num_threads(), configure(name, tmp_path / "run")
    use_threads(1)
    with Progress() as progress:
        folder = RunFolder(config.run_dir, config, resume=False)
        run = make_run(config, folder, prepare_policy(config, folder, progress), progress, resume=False)
        for part, (owner, attribute) in PARTS.items():
            monkeypatch.setattr(owner, attribute, timed(part, getattr(owner, attribute)))
        start = time.process_time()
        train(run)
        whole = time.process_time() - start
        run.close()
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    shares = {part: found / whole for part, found in seconds.items()}
    print(f"\n{name}: {whole / ITERATIONS:.1f} s an iteration, the model {sum(shares.values()):.1%}", shares)
    assert sum(shares.values()) >= BAR
