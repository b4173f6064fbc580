"""A run on pictures that shakes all weights before each snapshot, so that none may stay behind.

Also a program, for an interpreter that has vLLM: ``python seeing_run.py CONFIG``.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from istar_trainer.config import RunConfig
from istar_trainer.pictures import PlacedPicture, reader_of
from istar_trainer.pipeline import run_training
from istar_trainer.progress import Progress
from istar_trainer.setup import Run
from istar_trainer.vllm.build import text_logprobs
from istar_trainer.weights import load_model
from tiny_run import tiny_tree

Shown = tuple[PlacedPicture, ...]
LOOKS = "looks.json"
"""What vLLM made of two pictures before each change of weights, and what the learner made of one after it."""


def seeing_tree(run_dir: Path, **changes: Any) -> dict[str, Any]:
    """Three iterations of a tiny model with eyes whose heads are wide enough for vLLM's kernels."""
    return tiny_tree(
        run_dir=str(run_dir),
        iterations=3,
        model={"hidden_size": 64, "num_layers": 1, "num_heads": 2},
        warm_start={"enabled": False},
        rollout={"num_tasks": 2},
        eval={"every": 3, "dev_tasks": 2, "test_tasks": 0},
        checkpoint={"every": 3},
        **changes,
    )


def train_shaken(config: RunConfig) -> None:
    """Train, and write what vLLM sees to the run folder."""
    publish = Run.publish_policy
    looks: list[Any] = []
    noise = torch.Generator().manual_seed(0)

    def shake_and_publish(run: Run) -> None:
        ids, first, second = two_views(run)
        seen = [run.sampler.backend.prompt_logprobs(ids, shown) for shown in (first, second)]
        with torch.no_grad():
            for parameter in run.policy.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=0.02)
        looks.append({"vllm": seen, "learner_next": text_logprobs(run.policy.model, ids, first)})
        publish(run)

    Run.publish_policy = shake_and_publish  # type: ignore[method-assign]
    try:
        run_training(config, resume=False, progress=Progress())
    finally:
        Run.publish_policy = publish  # type: ignore[method-assign]
    (config.run_dir / LOOKS).write_text(json.dumps(looks), encoding="utf-8")


def two_views(run: Run) -> tuple[list[int], Shown, Shown]:
    """Return a text and two pictures for it; placeholders around them stand for none."""
    reader = reader_of(load_model(run.config.run_dir / "model")[1])
    noise = np.random.default_rng(0).integers(0, 256, (2, 56, 84, 3), np.uint8)
    first, second = ((PlacedPicture(reader.read(pixels), 3),) for pixels in noise)
    return [5, reader.token_id, 6, *[reader.token_id] * 6, 7, reader.token_id, 8], first, second


if __name__ == "__main__":
    train_shaken(RunConfig.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8")))
