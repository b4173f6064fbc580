"""What saves memory changes no result beyond its arithmetic, alone and in whole runs."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from builders import EOS, RecordingLearner, assert_same_tensors, gradients, make_lm, make_scene
from istar_envs.errors import ConfigError
from istar_trainer.checkpoint import list_checkpoints, load_checkpoint
from istar_trainer.config import RunConfig
from istar_trainer.config_files import validated
from istar_trainer.critic import state_values, with_value_head
from istar_trainer.folder import RunFolder
from istar_trainer.footprint import multiply_in_bfloat16, recompute_layers
from istar_trainer.learner import Optimization
from istar_trainer.metrics import read_metrics
from istar_trainer.pipeline import run_training
from istar_trainer.progress import Progress
from istar_trainer.sampler import LocalSampler, Request
from istar_trainer.setup import make_run
from tiny_run import tiny_config, tiny_tree

BFLOAT16 = 0.06
"""Logprobs in bfloat16 are within this of those in fp32."""


def learner_of(model, *, temperature: float = 1.0) -> RecordingLearner:
    return RecordingLearner(
        model, Optimization(1e-2, 0.0, 1e9), temperature=temperature, micro_batch_tokens=100
    )


def small_lm(**options) -> torch.nn.Module:
    """Weights of ordinary size, unlike those of ``make_lm``, whose rounding grows with them."""
    model = make_lm(**options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.div_(5)
    return model


def bytes_kept(model) -> int:
    """Bytes of the activations that a forward pass keeps for backward."""
    total = 0

    def note(value: Tensor) -> Tensor:
        nonlocal total
        total += 0 if isinstance(value, torch.nn.Parameter) else value.nbytes
        return value

    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        model(input_ids=torch.arange(3, 23).repeat(4, 1))
    return total


def test_layers_computed_again_give_the_same_gradients_and_keep_less():
    scene, found, kept = make_scene(), [], []
    for is_recomputed in (False, True):
        model = make_lm(layers=4)
        if is_recomputed:
            recompute_layers(model)
        kept.append(bytes_kept(model))
        learner = learner_of(model)
        learner.backward(scene.batch, lambda out, _rows: -out.logprobs().sum() / 40)
        found.append(gradients(model))
    assert_same_tensors(found[1], found[0])
    assert kept[1] < kept[0] / 3


def test_a_model_that_computes_layers_again_still_samples_with_its_cache():
    requests = [Request((3, 4, 5), seed) for seed in range(4)]
    plain, changed = make_lm(layers=2), make_lm(layers=2)
    recompute_layers(changed)
    found = [
        LocalSampler(model, eos_token_id=EOS, max_new_tokens=6).generate(requests, temperature=1.0)
        for model in (plain, changed)
    ]
    assert found[0] == found[1]


def test_products_in_bfloat16_leave_weights_gradients_and_logprobs_in_fp32():
    scene, model = make_scene(), small_lm(layers=2)
    expected = learner_of(small_lm(layers=2)).logprobs(scene.batch)
    multiply_in_bfloat16(model)
    learner = learner_of(model)
    logprobs = learner.logprobs(scene.batch)
    learner.backward(scene.batch, lambda out, _rows: -out.logprobs().sum() / 40)
    assert not torch.equal(logprobs, expected)
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=BFLOAT16)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {g.dtype for g in gradients(model).values()} == {torch.float32}
    in_pieces = RecordingLearner(
        model, learner.optimization, temperature=1.0, micro_batch_tokens=100, logits_mib=0
    )
    torch.testing.assert_close(in_pieces.logprobs(scene.batch), logprobs, rtol=0, atol=BFLOAT16)


@pytest.mark.parametrize("is_stored", [False, True])
def test_values_of_a_critic_are_fp32_although_its_layers_are_not(is_stored):
    model = make_lm()
    multiply_in_bfloat16(model)
    critic = with_value_head(model.bfloat16() if is_stored else model)
    with torch.no_grad():
        critic.lm_head.weight.fill_(0.1)
        critic.lm_head.bias.fill_(1000.0)  # bfloat16 knows 1000 and 1004, and nothing between
    scene = make_scene()
    values = state_values(learner_of(critic), scene.batch)[scene.batch.response_mask]
    assert len(values.unique()) > len(values) // 4


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> dict:
    """Sections that start from a model on disk, and play little."""
    config = tiny_config(tmp_path_factory.mktemp("start") / "run", iterations=0, eval={"test_tasks": 0})
    with Progress() as progress:
        run_training(config, resume=False, progress=progress)
    return {
        "iterations": 2,
        "warm_start": {"enabled": False},
        "eval": {"every": 2, "dev_tasks": 2, "test_tasks": 0},
        "model": {"path": str(config.run_dir / "warm_start"), "lora": {"rank": 4}},
        "prm": {"lr": 1e-2, "reference": "frozen"},
        "learner": {"lr": 1e-3},
    }


def train(folder: Path, sections: dict, **changes: dict) -> Path:
    merged = {key: {**sections.get(key, {}), **value} for key, value in changes.items()}
    with Progress() as progress:
        run_training(tiny_config(folder, **{**sections, **merged}), resume=False, progress=progress)
    return folder


def untimed(folder: Path) -> list[dict]:
    records = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in record.items() if not k.startswith("time/")} for record in records]


def newest_state(folder: Path) -> dict:
    return load_checkpoint(list_checkpoints(folder / "checkpoints")[-1])[1]["learners"]


@pytest.mark.usefixtures("_restore_torch")
def test_a_run_on_a_shared_base_is_the_run_on_two(start, tmp_path):
    apart = train(tmp_path / "apart", start)
    shared = train(
        tmp_path / "shared", start, prm={"backbone": "shared"}, model={"gradient_checkpointing": True}
    )
    for record, expected in zip(untimed(shared), untimed(apart), strict=True):
        assert record == pytest.approx(expected, rel=1e-6, nan_ok=True)
        assert expected["pairs/num"] > 0
    one, other = newest_state(shared), newest_state(apart)
    for name in ("policy", "prm"):
        assert_same_tensors(one[name]["weights"], other[name]["weights"])
        assert all("lora_" in key for key in one[name]["weights"])
        assert any(value.any() for key, value in one[name]["weights"].items() if "lora_B" in key)
    weights = [load_file(run / "policy/model.safetensors") for run in (shared, apart)]
    assert_same_tensors(*weights)
    before = load_file(Path(start["model"]["path"]) / "model.safetensors")
    assert any(not torch.equal(weights[0][name], value) for name, value in before.items())
    assert (shared / "policy/adapter/adapter_model.safetensors").is_file()


@pytest.mark.usefixtures("_restore_torch")
def test_a_run_with_adapters_is_restored_from_its_checkpoint(start, tmp_path):
    folder = train(tmp_path / "run", start, prm={"backbone": "shared"})
    sections = {**start, "prm": {**start["prm"], "backbone": "shared"}}
    config = tiny_config(folder, **sections)
    run = make_run(
        config, RunFolder(folder, config, resume=True), Path(config.model.path), Progress(), resume=True
    )
    state = newest_state(folder)
    assert run.iteration == 2
    assert {name: learner.snapshot().keys() for name, learner in run.learners.items()} == {
        name: learner["weights"].keys() for name, learner in state.items()
    }
    for name, learner in run.learners.items():
        assert_same_tensors(learner.snapshot(), state[name]["weights"])
    run.close()


@pytest.mark.usefixtures("_restore_torch")
@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_run_in_bfloat16_samples_what_it_learns_from(start, tmp_path, lora):
    folder = train(
        tmp_path / "run", start, model={"dtype": "bfloat16", "lora": lora}, algorithm={"type": "ppo"}
    )
    for record in untimed(folder):
        assert record["mismatch/abs_max"] < 1.0
        assert record["ratio/first_minibatch_max_dev"] < 0.1
        assert record["policy/grad_norm"] > 0
        assert record["critic/grad_norm"] > 0
    weights = [learner["weights"] for learner in newest_state(folder).values()]
    assert len(weights) == 3
    assert {value.dtype for some in weights for value in some.values()} == {torch.float32}


@pytest.mark.parametrize("changes", [{}, {"model": {"lora": {}}, "prm": {"init": "somewhere"}}])
def test_a_shared_base_needs_adapters_and_no_weights_of_its_own(changes):
    sections = {**changes, "prm": {"backbone": "shared", **changes.get("prm", {})}}
    with pytest.raises(ConfigError, match=r"prm.backbone: shared.*model.lora.*prm.init"):
        validated(RunConfig, tiny_tree(**sections), "x.yaml")
