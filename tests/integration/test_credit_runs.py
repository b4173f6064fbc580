"""Every credit method through whole iterations: it trains, and a run that was cut goes on bit for bit."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from istar_envs.errors import ConfigError
from istar_trainer.checkpoint import list_checkpoints, load_checkpoint
from istar_trainer.config import EnvConfig
from istar_trainer.config_credits import Method
from istar_trainer.credits import CREDITS
from istar_trainer.metrics import METRICS, read_metrics
from istar_trainer.pipeline import run_training
from istar_trainer.progress import Progress
from tiny_run import tiny_config

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("_restore_torch")]
METHODS = sorted(CREDITS, key=lambda config: config.__name__)


@pytest.fixture
def warm(finished_run: Path) -> dict:
    """Sections that start from the warm-started policy of a finished run, and play little."""
    return {
        "iterations": 2,
        "model": {"path": str(finished_run / "warm_start")},
        "warm_start": {"enabled": False},
        "eval": {"every": 2, "dev_tasks": 2, "test_tasks": 0},
        "checkpoint": {"every": 1, "keep": 3},
        "algorithm": "grpo",
    }


def train(folder: Path, *, resume: bool = False, **changes) -> Path:
    with Progress() as progress:
        run_training(tiny_config(folder, **changes), resume=resume, progress=progress)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "policy" / "model.safetensors")


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.model_fields["type"].default)
def test_every_method_trains(method: type[Method], tmp_path, warm):
    run = train(tmp_path / "run", credit=method.model_fields["type"].default, **warm)
    first, second = read_metrics(run / "metrics.jsonl")
    assert second.keys() - {"iteration"} <= METRICS.keys()
    start = load_file(Path(warm["model"]["path"]) / "model.safetensors")
    assert any(not torch.equal(start[name], value) for name, value in weights(run).items())
    assert all(value.isfinite().all() for value in weights(run).values())
    judged = first.keys() | second.keys()  # the released code credits nothing before the policy has moved
    assert ("credit/state_auc" in judged) == (method.model_fields["type"].default != "none")
    if method.replaces_outcome:
        assert first["adv/share_step"] in (0.0, pytest.approx(1.0))


def test_a_cut_run_goes_on_bit_for_bit_with_a_moving_reference_a_gate_and_rehearsal(tmp_path, warm):
    gate = {"pair_acc": 0.0, "state_auc": 0.0, "window": 1}
    part = {"type": "istar", "attribution": "shifted", "center": "policy_kl", "warm_up": gate}
    sections = {
        **warm,
        "credit": {"type": "sum", "parts": ["gigpo", part]},
        "prm": {"lr": 1e-3, "reference": "ema"},
        "warm_start": {"enabled": False, "episodes": 3, "rehearsal_updates": 2},
    }
    whole = train(tmp_path / "whole", **sections)
    cut = train(tmp_path / "cut", **sections)
    for path in (cut / "checkpoints").glob("*2"):
        path.rename(tmp_path / "gone")
    for path in (cut / "policy", cut / "report.html"):
        path.rename(tmp_path / f"gone-{path.name}")
    assert len(list_checkpoints(cut / "checkpoints")) == 1
    train(cut, resume=True, **sections)
    for name, value in weights(whole).items():
        assert torch.equal(weights(cut)[name], value)
    assert [line["sft/loss"] for line in read_metrics(whole / "metrics.jsonl")] == [
        line["sft/loss"] for line in read_metrics(cut / "metrics.jsonl")
    ]
    states = [load_checkpoint(list_checkpoints(f / "checkpoints")[-1])[1] for f in (whole, cut)]
    assert states[0]["credit"] == states[1]["credit"]
    assert states[0]["learners"].keys() == {"policy", "prm", "prm_reference"}
    for learner, state in states[0]["learners"].items():
        for name, value in state["weights"].items():
            assert torch.equal(states[1]["learners"][learner]["weights"][name], value)


def test_the_reward_model_may_start_from_weights_of_its_own(tmp_path, warm, finished_run):
    sections = {**warm, "prm": {"lr": 1e-9, "init": str(finished_run / "model")}}
    run = train(tmp_path / "run", credit="istar", **sections)
    state = load_checkpoint(list_checkpoints(run / "checkpoints")[-1])[1]
    untrained = load_file(finished_run / "model" / "model.safetensors")
    for name, value in untrained.items():
        torch.testing.assert_close(state["learners"]["prm"]["weights"][name], value, rtol=0, atol=1e-6)


def test_a_reward_model_with_another_tokenizer_is_refused(tmp_path, warm, tiny_folder):
    with pytest.raises(ConfigError, match=r"prm\.init\) is not the policy's"):
        train(tmp_path / "run", credit="istar", **{**warm, "prm": {"init": str(tiny_folder)}})


@pytest.mark.parametrize("credit", ["oracle", {"type": "sum", "parts": ["gigpo", "oracle"]}])
def test_an_environment_without_an_optimum_leaves_no_run_folder_behind(tmp_path, credit, warm):
    config = tiny_config(tmp_path / "run", credit=credit, **warm)
    config = config.model_copy(update={"env": EnvConfig(id="istar/Sotopia-v0")})
    with Progress() as progress, pytest.raises(ConfigError, match="does not know its optimum"):
        run_training(config, resume=False, progress=progress)
    assert not (tmp_path / "run").exists()
