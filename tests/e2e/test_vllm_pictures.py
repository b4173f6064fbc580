"""Policies that see, sampled by the real vLLM: ids, pictures and all weights line up.

The environment with vLLM's CPU build is made by ``scripts/make_vllm_venv.sh`` on first use.
"""

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seeing_run
from istar_trainer.config import EnvConfig, RunConfig
from istar_trainer.config_lora import LoraConfig
from istar_trainer.factories import make_env
from istar_trainer.lora import Backbone
from istar_trainer.pictures import PlacedPicture, reader_of
from istar_trainer.sampler import Request
from istar_trainer.tiny import init_tiny
from istar_trainer.vllm.build import text_logprobs
from istar_trainer.weights import load_model
from small_vllm import SMALL, small_sampler
from vision_models import older_class

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("_restore_torch")]
SERVED = {"mode": "server", "env": SMALL}
BF16_MEAN, BF16_MAX = 0.01, 0.04
"""|Δ logprob| in nats that bf16 explains; 0.003 and 0.014 were measured."""


def tree(run_dir: Path, *, window: int | None, dtype: str = "float32", **sampler: Any) -> dict[str, Any]:
    return seeing_run.seeing_tree(
        run_dir,
        env={"id": "istar/VisualSokoban-v0", "window": window},
        sampler={"type": "vllm", "dtype": dtype, **sampler},
    )


def assert_seen_as_the_learner_sees(
    run_dir: Path, *, mean: float = 1e-5, largest: float = 1e-4
) -> list[dict[str, Any]]:
    """Sampler and learner agree to rounding, so weights or pictures that did not arrive would show.

    Args:
        run_dir: Of a run that shook its weights.
        mean: Of |Δ logprob|; the bounds are for fp32 if not given.
        largest: Largest |Δ logprob|.

    Returns:
        The metrics of its iterations.
    """
    metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["rollout/snapshot_id"] for line in metrics] == [0, 1, 2]
    for line in metrics:
        assert line["rollout/failed_frac"] == 0
        assert line["mismatch/abs_mean"] < mean
        assert line["mismatch/abs_max"] < largest
    looks = json.loads((run_dir / seeing_run.LOOKS).read_text())
    for look in looks:
        assert largest_gap(*look["vllm"]) > 1e-2, "the pictures made no difference"
    for one, other in pairwise(looks):
        assert largest_gap(one["vllm"][0], other["vllm"][0]) > 1e-2, "the weights did not change"
        assert other["vllm"][0] == pytest.approx(one["learner_next"], abs=largest)
    return metrics


def largest_gap(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("transfer", ["files", "broadcast"])
def test_a_server_draws_from_the_boards_that_the_learner_sees(tmp_path, python, caplog, transfer):
    sampler = {"python": str(python), "transfer": transfer, **SERVED}
    config = RunConfig.model_validate(tree(tmp_path / "run", window=0, **sampler))
    seeing_run.train_shaken(config)
    assert_seen_as_the_learner_sees(tmp_path / "run")
    assert "it is started again" not in caplog.text, "features of old weights were asked for"


def test_in_bf16_boards_are_seen_within_its_band(tmp_path, python):
    given = tree(tmp_path / "run", window=0, dtype="bfloat16", python=str(python), **SERVED)
    seeing_run.train_shaken(RunConfig.model_validate(given))
    metrics = assert_seen_as_the_learner_sees(tmp_path / "run", mean=BF16_MEAN, largest=BF16_MAX)
    assert all(line["mismatch/abs_max"] > 1e-4 for line in metrics), "this was not bf16"


def test_an_engine_in_the_trainers_process_reads_growing_dialogues_with_pictures(tmp_path, python):
    config = tmp_path / "run.json"
    config.write_text(json.dumps(tree(tmp_path / "run", window=None, mode="engine")))
    subprocess.run(
        [python, seeing_run.__file__, config],
        check=True,
        env={**os.environ, **SMALL},
        timeout=3600,
        cwd=tmp_path,
    )
    assert_seen_as_the_learner_sees(tmp_path / "run")


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft reads it
@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_an_adapter_on_the_vision_tower_is_loaded_too(tmp_path, python, kind):
    env = make_env(EnvConfig(id="istar/VisualSokoban-v0"), "train")
    shape = {"hidden_size": 64, "num_layers": 1, "num_heads": 2}
    path = init_tiny(env, tmp_path / "base", template="bare-v1", window=0, **shape, seed=0)
    env.close()
    base, tokenizer = load_model(path)
    if kind == "qwen2_vl":
        base = older_class(base.config)
        base.save_pretrained(path)
    reader = reader_of(tokenizer)
    pixels = np.random.default_rng(0).integers(0, 256, (56, 84, 3), np.uint8)
    shown = (PlacedPicture(reader.read(pixels), 1),)
    ids = [5, *[reader.token_id] * 6, 6, 7, 8]
    model = Backbone(base, LoraConfig(rank=3, alpha=24), seed=0).adapted()
    sampler = small_sampler(model, tokenizer, path, tmp_path / "run", python=python, env=SMALL)
    noise = torch.Generator().manual_seed(0)
    before = text_logprobs(model, ids, shown)
    try:
        for snapshot_id, part in enumerate((".visual.", "lora_"), start=1):
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if parameter.requires_grad and part in name:
                        parameter.add_(torch.randn(parameter.shape, generator=noise))
            sampler.load(model.state_dict(), snapshot_id)
            sampler.generate([Request(ids, seed, shown) for seed in range(4)], temperature=1.0)
            after = text_logprobs(model, ids, shown)
            assert sampler.backend.prompt_logprobs(ids, shown) == pytest.approx(after, abs=1e-4)
            assert largest_gap(after, before) > 1e-2
            before = after
    finally:
        sampler.close()
