"""Snapshots as vLLM reads them: whole models, untied, in the right precision."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import istar_envs
from builders import FLOAT32, make_lm
from istar_trainer.config_lora import LoraConfig
from istar_trainer.config_sampler import VllmSamplerConfig
from istar_trainer.lora import Backbone
from istar_trainer.tiny import init_tiny
from istar_trainer.vllm.build import make_vllm_sampler, snapshot_folder, text_logprobs
from istar_trainer.vllm.snapshots import is_tied, snapshot_tensors, write_snapshot
from istar_trainer.weights import copy_weights, load_model, load_weights
from vision_models import older_class

IDS = [5, 6, 7, 8, 9, 3, 4]


@pytest.fixture(scope="module")
def seeing_folder(tmp_path_factory) -> Path:
    """A tiny Qwen2.5-VL with its tokenizer."""
    env = istar_envs.make("istar/VisualSokoban-v0")
    shape = {"hidden_size": 64, "num_layers": 2, "num_heads": 2}
    path = init_tiny(env, tmp_path_factory.mktemp("seeing"), template="bare-v1", window=0, **shape, seed=0)
    env.close()
    return path


def write(model: torch.nn.Module, folder: Path, dtype: str = "auto") -> Path:
    folder.mkdir()
    write_snapshot(model, model.state_dict(), folder, beside=folder.parent, dtype=dtype)
    return folder


def test_a_tied_model_is_handed_over_with_an_output_layer_of_its_own(tmp_path):
    model = make_lm(layers=2)
    assert is_tied(model)
    folder = write(model, tmp_path / "one")
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
    tensors = load_file(folder / "model.safetensors")
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert text_logprobs(again, IDS) == pytest.approx(text_logprobs(model, IDS), abs=FLOAT32)


def test_a_model_in_several_files_is_untied_too(tmp_path, monkeypatch):
    model = make_lm(layers=2)
    save = model.save_pretrained
    monkeypatch.setattr(model, "save_pretrained", lambda *args, **kw: save(*args, **kw, max_shard_size="4KB"))
    folder = write(model, tmp_path / "many")
    assert len(list(folder.glob("*.safetensors"))) > 2
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert text_logprobs(again, IDS) == pytest.approx(text_logprobs(model, IDS), abs=FLOAT32)


def test_the_weights_that_are_given_are_written_and_not_the_models_own(tmp_path):
    model, other = make_lm(seed=0), make_lm(seed=1)
    before = copy_weights(model)
    write_snapshot(model, other.state_dict(), tmp_path, beside=tmp_path, dtype="auto")
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert text_logprobs(again, IDS) == pytest.approx(text_logprobs(other, IDS), abs=FLOAT32)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_tied_model_is_handed_over_at_once_with_the_weights_that_its_learner_names(tmp_path):
    """Not with those of the model, of which a process may hold only its share."""
    model, whole = make_lm(seed=0), make_lm(seed=1)
    sampler = make_vllm_sampler(
        VllmSamplerConfig(url="http://127.0.0.1:9", dtype="float32"),
        model,
        tmp_path,
        tmp_path / "run",
        weights=whole.state_dict,
        eos_token_id=2,
        max_prompt_tokens=8,
        max_new_tokens=8,
    )
    (found,) = (tmp_path / "run/snapshots").glob("*/model.safetensors")
    assert torch.equal(load_file(found)["lm_head.weight"], whole.lm_head.weight)
    sampler.close()


@pytest.mark.parametrize("kind", ["qwen2", "qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("is_reloaded", [False, True])
def test_tensors_that_are_sent_have_the_names_and_values_of_a_written_snapshot(
    tmp_path, seeing_folder, kind, is_reloaded
):
    """Models with eyes are saved by other names than their own; what is sent is not copied before."""
    model = make_lm(layers=2) if kind == "qwen2" else load_model(seeing_folder)[0]
    if kind == "qwen2_vl":
        model = older_class(model.config)
    assert model.config.model_type == kind
    if is_reloaded:
        model.save_pretrained(tmp_path / "start")
        model = type(model).from_pretrained(tmp_path / "start", dtype=torch.float32)
    weights = model.state_dict()
    sent = snapshot_tensors(model, weights)
    written = load_file(write(model, tmp_path / "one") / "model.safetensors")
    assert sent.keys() == written.keys()
    assert all(torch.equal(value, written[name]) for name, value in sent.items())
    assert "lm_head.weight" in sent
    own = {value.data_ptr() for value in weights.values()}
    assert all(value.data_ptr() in own for value in sent.values())


def test_an_untied_models_own_output_layer_is_sent(tmp_path):
    model = make_lm()
    config = type(model.config)(**{**model.config.to_dict(), "tie_word_embeddings": False})
    untied = type(model)(config)
    sent = snapshot_tensors(untied, untied.state_dict())
    assert sent.keys() == load_file(write(untied, tmp_path / "one") / "model.safetensors").keys()
    assert torch.equal(sent["lm_head.weight"], untied.lm_head.weight)
    assert not torch.equal(sent["lm_head.weight"], sent["model.embed_tokens.weight"])


@pytest.mark.parametrize("sees", [True, False])
def test_an_image_processor_goes_along(tmp_path, sees):
    if sees:
        (tmp_path / "preprocessor_config.json").write_text("{}")
    folder = write(make_lm(), tmp_path / "one")
    assert (folder / "preprocessor_config.json").is_file() == sees


def test_the_precision_is_the_samplers(tmp_path):
    folder = write(make_lm(), tmp_path / "half", dtype="bfloat16")
    assert {t.dtype for t in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}


def test_the_score_of_a_text_is_that_of_its_tokens_after_the_first():
    model = make_lm()
    logits = model(input_ids=torch.tensor([IDS])).logits[0].detach()
    expected = [float(logits[i].log_softmax(-1)[IDS[i + 1]]) for i in range(len(IDS) - 1)]
    assert text_logprobs(model, IDS) == pytest.approx(expected, abs=FLOAT32)


def test_runs_that_share_a_folder_for_snapshots_do_not_meet_there(tmp_path):
    one, other = (snapshot_folder(Path("/dev/shm/istar"), tmp_path / name) for name in ("a", "b"))
    assert one != other
    assert one.parent == other.parent == Path("/dev/shm/istar")
    assert snapshot_folder(None, tmp_path) == tmp_path.resolve() / "snapshots"


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
def test_of_a_model_with_an_adapter_the_adapter_alone_is_written_in_the_layout_of_peft(tmp_path):
    from peft import PeftModel

    model = Backbone(make_lm(layers=2), LoraConfig(rank=3), seed=0).adapted()
    assert not is_tied(model)
    moved = {name: torch.full_like(value, 0.1) for name, value in model.state_dict().items()}
    write_snapshot(model, moved, tmp_path, beside=tmp_path, dtype="auto")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    again = PeftModel.from_pretrained(make_lm(layers=2), tmp_path)
    assert text_logprobs(again, IDS) != pytest.approx(text_logprobs(model, IDS), abs=1e-3)
    load_weights(model, moved)
    assert text_logprobs(again, IDS) == pytest.approx(text_logprobs(model, IDS), abs=FLOAT32)
