"""The self-check passes on a healthy installation and notices a sampler that disagrees."""

import io

import pytest
import torch
from rich.console import Console

from istar_trainer import cli, doctor
from istar_trainer.learner import TorchLearner


def shown(table) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_a_healthy_installation_passes_every_check():
    checks = doctor.check_update_with_lr_zero()
    assert all(is_well for _, is_well in checks.values()), checks
    assert checks["largest |ratio − 1| before the update"][0] == 0
    assert checks["largest weight change at lr = 0"][0] == 0
    assert 0 < checks["largest |Δ logprob| sampler – learner"][0] < 1e-4


def test_the_table_names_versions_devices_and_checks():
    table, is_well = doctor.examine()
    assert is_well
    text = shown(table)
    assert f"torch {torch.__version__}" in text
    for word in ("python", "cpus", "gpus", "share clipped", "ok"):
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


def test_the_command_takes_no_arguments(capsys):
    with pytest.raises(SystemExit) as error:
        cli.run(["doctor", "now"])
    assert error.value.code == 2
    assert "now" in capsys.readouterr().err
