"""Where models live."""

import pytest
import torch

from istar_envs.errors import ConfigError
from istar_trainer.devices import device_of, find_device, moved


def test_a_model_is_where_its_weights_are():
    assert device_of(torch.nn.Linear(2, 2)) == find_device("cpu") == torch.device("cpu")
    assert device_of(torch.nn.Linear(2, 2, device="meta")) == torch.device("meta")


def test_only_tensors_are_moved():
    inputs = {"input_ids": torch.zeros(1, 2), "attention_mask": None, "logits_to_keep": 3}
    there = moved(inputs, torch.device("meta"))
    assert there["input_ids"].device == torch.device("meta")
    assert (there["attention_mask"], there["logits_to_keep"]) == (None, 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_process_without_a_gpu_is_told(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(ConfigError, match="needs a GPU for process 3 of this machine, but torch finds 0"):
        find_device("cuda")
