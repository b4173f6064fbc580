"""Snapshots as vLLM reads them: whole models, untied, in the right precision."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from builders import FLOAT32, make_lm
from istar_trainer.config_lora import LoraConfig
from istar_trainer.config_sampler import VllmSamplerConfig
from istar_trainer.lora import Backbone
from istar_trainer.vllm.build import make_vllm_sampler, snapshot_folder, text_logprobs
from istar_trainer.vllm.snapshots import is_tied, write_snapshot
from istar_trainer.weights import copy_weights, load_weights

IDS = [5, 6, 7, 8, 9, 3, 4]


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
