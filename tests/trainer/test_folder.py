"""A run folder: whose run it is, what is appended to it, and how it is wound back."""

import errno
import json
import os

import pytest

from istar_envs.errors import ConfigError
from istar_trainer.config import RunConfig
from istar_trainer.errors import DiskFailed
from istar_trainer.folder import RunFolder, describe_machine, flatten
from tiny_run import tiny_config


def make_folder(path, *, resume: bool = False, **changes) -> RunFolder:
    return RunFolder(path, tiny_config(path, **changes), resume=resume)


def test_a_new_folder_holds_the_configuration_and_the_machine(tmp_path):
    folder = make_folder(tmp_path / "deep" / "run")
    config = RunConfig.model_validate_json((folder.path / "config.json").read_text())
    assert config == tiny_config(folder.path)
    machine = json.loads((folder.path / "env.json").read_text())
    assert machine.keys() == describe_machine().keys()
    assert machine["versions"]["torch"]


def test_an_empty_folder_is_as_good_as_a_new_one(tmp_path):
    (tmp_path / "run").mkdir()
    make_folder(tmp_path / "run")


def test_a_folder_in_use_needs_resume(tmp_path):
    make_folder(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"run_dir .*run is not empty\. Use --resume"):
        make_folder(tmp_path / "run")
    make_folder(tmp_path / "run", resume=True)


def test_another_configuration_cannot_resume_and_the_keys_are_named(tmp_path):
    make_folder(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"learner\.lr: 0\.001 then, 0\.5 now") as error:
        make_folder(tmp_path / "run", resume=True, learner={"lr": 0.5}, credit="none")
    assert "credit.type: 'istar' then, 'none' now" in str(error.value)
    assert "credit.gamma" not in str(error.value), "a key that only one of the types has says nothing more"


def test_more_iterations_and_a_moved_folder_can_be_resumed(tmp_path):
    make_folder(tmp_path / "run")
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    folder = make_folder(moved, resume=True, iterations=9)
    assert json.loads((folder.path / "config.json").read_text())["iterations"] == 9


def test_what_needs_less_memory_or_disk_can_be_changed_on_resume(tmp_path):
    make_folder(tmp_path / "run")
    smaller = {"micro_batch_tokens": 64, "logits_mib": 1, "packing": True, "merge_prefixes": False}
    model = {"gradient_checkpointing": True}
    make_folder(
        tmp_path / "run", resume=True, learner=smaller, model=model, checkpoint={"keep": 1, "every": 5}
    )


@pytest.mark.parametrize("content", ["{", "", "[]", "null"])
def test_damaged_facts_are_named(tmp_path, content):
    folder = make_folder(tmp_path / "run")
    (folder.path / "env.json").write_text(content)
    with pytest.raises(ConfigError, match=r"cannot read .*env\.json.*Remove it; --resume"):
        folder.add_facts(num_parameters=3)
    (folder.path / "env.json").unlink()
    make_folder(tmp_path / "run", resume=True).add_facts(num_parameters=3)
    assert json.loads((folder.path / "env.json").read_text())["num_parameters"] == 3


@pytest.mark.parametrize("content", ["{", "", "[]"])
def test_a_damaged_configuration_is_named(tmp_path, content):
    make_folder(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json"):
        make_folder(tmp_path / "run", resume=True)


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot use run_dir .*run.*Choose another folder"):
        make_folder(tmp_path / "file" / "run")


def test_records_are_appended_and_read_back(tmp_path):
    folder = make_folder(tmp_path / "run")
    assert folder.records("eval.jsonl") == []
    folder.append("eval.jsonl", [{"iteration": 0, "label": "vorher – ✓"}])
    folder.append("eval.jsonl", [{"iteration": 1}, {"iteration": 2}])
    assert folder.records("eval.jsonl") == [
        {"iteration": 0, "label": "vorher – ✓"},
        {"iteration": 1},
        {"iteration": 2},
    ]


def test_a_torn_last_line_is_ignored_wherever_it_was_cut(tmp_path):
    folder = make_folder(tmp_path / "run")
    folder.append("credits.jsonl", [{"iteration": 0}])
    whole = (folder.path / "credits.jsonl").read_bytes()
    line = json.dumps({"iteration": 1, "reply": "é"}, ensure_ascii=False).encode()
    for cut in range(len(line) + 1):
        (folder.path / "credits.jsonl").write_bytes(whole + line[:cut])
        assert folder.records("credits.jsonl") == [{"iteration": 0}]


def test_another_broken_line_is_named(tmp_path):
    folder = make_folder(tmp_path / "run")
    (folder.path / "eval.jsonl").write_bytes(b'{"iteration": 0}\n{"iterat\n')
    with pytest.raises(ConfigError, match=r"eval\.jsonl is damaged"):
        folder.records("eval.jsonl")


def test_winding_back_drops_what_came_after_the_checkpoint(tmp_path):
    folder = make_folder(tmp_path / "run")
    folder.append("eval.jsonl", [{"iteration": k} for k in (0, 2, 4)])  # iterations done
    folder.append("credits.jsonl", [{"iteration": k} for k in (1, 1, 2, 3)])  # iterations counted from 0
    folder.rewind(2)
    assert folder.records("eval.jsonl") == [{"iteration": 0}, {"iteration": 2}]
    assert folder.records("credits.jsonl") == [{"iteration": 1}, {"iteration": 1}]


def test_winding_back_removes_a_torn_line_for_good(tmp_path):
    folder = make_folder(tmp_path / "run")
    (folder.path / "eval.jsonl").write_text('{"iteration": 0}\n{"itera')
    folder.rewind(5)
    folder.append("eval.jsonl", [{"iteration": 6}])
    assert folder.records("eval.jsonl") == [{"iteration": 0}, {"iteration": 6}]


def test_a_full_disk_is_explained_and_what_was_written_stays(tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "run")
    folder.append("eval.jsonl", [{"iteration": 0}])

    def no_space(_handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(DiskFailed, match=r"cannot write .*eval\.jsonl.*No space left.*--resume"):
        folder.append("eval.jsonl", [{"iteration": 1}])
    monkeypatch.undo()
    assert folder.records("eval.jsonl")[0] == {"iteration": 0}


def test_nested_values_are_named_by_dotted_keys():
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {"a.b": 1, "a.c.d": [2], "e": None}
