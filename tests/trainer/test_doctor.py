"""The self-check passes on a healthy installation and notices a sampler that disagrees."""

import io

import pytest
import torch
from rich.console import Console

from fake_vllm import FakeVllm
from istar_trainer import cli, doctor
from istar_trainer.config_sampler import LocalSamplerConfig, VllmSamplerConfig
from istar_trainer.errors import StaleSnapshot
from istar_trainer.learner import TorchLearner
from model_brain import ModelBrain


def shown(table) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("env_id", ["istar/Sokoban-v0", "istar/VisualSokoban-v0"])
def test_a_healthy_installation_passes_every_check(env_id):
    checks = doctor.check_update_with_lr_zero(env_id=env_id)
    assert all(is_well for _, is_well in checks.values()), checks
    assert checks["largest |ratio − 1| before the update"][0] == 0
    assert checks["largest weight change at lr = 0"][0] == 0
    assert 0 < checks["largest |Δ logprob| sampler – learner"][0] < 1e-4


def test_the_table_names_versions_devices_and_checks():
    table, is_well = doctor.examine()
    assert is_well
    text = shown(table)
    assert f"torch {torch.__version__}" in text
    for word in (
        "python",
        "cpus",
        "gpus",
        "share clipped",
        "sampler local, text",
        "sampler local, pictures",
        "ok",
    ):
        assert word in text
    assert "WRONG" not in text


def test_a_learner_that_disagrees_with_the_sampler_is_noticed(monkeypatch, capsys):
    right = TorchLearner.logprobs
    monkeypatch.setattr(TorchLearner, "logprobs", lambda self, batch: right(self, batch) * 1.3)
    checks = doctor.check_update_with_lr_zero()
    assert not checks["largest |Δ logprob| sampler – learner"][1]
    assert not checks["largest |ratio − 1| before the update"][1]
    assert cli.run(["doctor"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_the_command_ends_with_0_on_a_healthy_installation(capsys):
    assert cli.run(["doctor"]) == 0
    assert "istar doctor" in capsys.readouterr().out


def test_the_command_takes_no_other_arguments(capsys):
    with pytest.raises(SystemExit) as error:
        cli.run(["doctor", "now"])
    assert error.value.code == 2
    assert "now" in capsys.readouterr().err


def check_vllm(brain: ModelBrain, intercept=lambda path, body: None):
    server = FakeVllm(brain, intercept=intercept)
    try:
        return doctor.check_update_with_lr_zero(
            VllmSamplerConfig(url=server.url, dtype="float32", concurrency=2)
        )
    finally:
        server.kill()


def test_a_server_is_checked_like_the_sampler_in_this_process():
    checks = check_vllm(ModelBrain())
    assert all(is_well for _, is_well in checks.values()), checks


def test_a_server_that_forgets_the_temperature_is_noticed():
    checks = check_vllm(ModelBrain(temperature=1.0))
    assert not checks["largest |Δ logprob| sampler – learner"][1]


def test_a_server_that_keeps_its_weights_is_noticed():
    reloads = []

    def keep(path, body):
        reloads.append(path == "/collective_rpc")
        return (200, {"results": [None]}) if path == "/collective_rpc" and sum(reloads) > 1 else None

    with pytest.raises(StaleSnapshot, match="given snapshot 1"):
        check_vllm(ModelBrain(), keep)


def test_vllm_is_checked_where_it_is_installed_or_named(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert doctor.available_samplers(None) == [LocalSamplerConfig()]
    assert doctor.available_samplers(tmp_path)[1].python == tmp_path
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    assert [sampler.type for sampler in doctor.available_samplers(None)] == ["local", "vllm"]
