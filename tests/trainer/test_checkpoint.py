"""Checkpoints are complete or absent, and say what is wrong with them."""

import errno
import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from istar_trainer.checkpoint import list_checkpoints, load_checkpoint, newest_intact, save_checkpoint
from istar_trainer.errors import CheckpointMismatch, DiskFailed

STATE = {"learners": {"policy": {"weights": {"w": torch.arange(6.0)}}}, "credit": {"pair_acc": [0.5, 1.0]}}


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path):
    weights = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e-30
    path = save_checkpoint(tmp_path, 7, {**STATE, "w": weights}, keep=1)
    iteration, state = load_checkpoint(path)
    assert iteration == 7
    assert torch.equal(state["w"], weights)
    assert state["credit"] == STATE["credit"]
    assert torch.equal(state["learners"]["policy"]["weights"]["w"], torch.arange(6.0))


def test_only_the_newest_are_kept_oldest_first(tmp_path):
    for iteration in (2, 10, 9, 100):
        save_checkpoint(tmp_path, iteration, STATE, keep=2)
    assert [load_checkpoint(path)[0] for path in list_checkpoints(tmp_path)] == [10, 100]


def test_a_checkpoint_of_the_same_iteration_is_replaced(tmp_path):
    save_checkpoint(tmp_path, 3, {"x": 1}, keep=2)
    path = save_checkpoint(tmp_path, 3, {"x": 2}, keep=2)
    assert list_checkpoints(tmp_path) == [path]
    assert load_checkpoint(path)[1] == {"x": 2}


def test_what_is_not_finished_does_not_count(tmp_path):
    save_checkpoint(tmp_path, 1, STATE, keep=2)
    unsealed = tmp_path / "iteration-00000002"
    unsealed.mkdir()
    (unsealed / "state.pt").write_bytes(b"half")
    (tmp_path / ".iteration-00000003.part").mkdir()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["iteration-00000001"]
    assert list_checkpoints(tmp_path / "nothing") == []


def test_a_leftover_of_a_killed_writer_is_overwritten(tmp_path):
    leftover = tmp_path / ".iteration-00000004.part"
    leftover.mkdir()
    (leftover / "rubbish").write_bytes(b"x")
    path = save_checkpoint(tmp_path, 4, STATE, keep=1)
    assert not leftover.exists()
    assert sorted(p.name for p in path.iterdir()) == ["seal.json", "state.pt"]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-10])


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [truncate, flip_a_byte])
def test_damaged_weights_are_named_with_a_way_out(tmp_path, damage):
    path = save_checkpoint(tmp_path, 5, STATE, keep=1)
    damage(path / "state.pt")
    with pytest.raises(
        CheckpointMismatch, match=r"iteration-00000005 is damaged: state\.pt.*Remove this folder"
    ):
        load_checkpoint(path)


@pytest.mark.parametrize("seal", ["", "{", "[]", '{"iteration": 5}', '{"iteration": "x", "sha256": []}'])
def test_a_broken_seal_is_named_with_a_way_out(tmp_path, seal):
    path = save_checkpoint(tmp_path, 5, STATE, keep=1)
    (path / "seal.json").write_text(seal)
    with pytest.raises(
        CheckpointMismatch, match=r"iteration-00000005 is damaged: seal\.json.*Remove this folder"
    ):
        load_checkpoint(path)


def test_missing_weights_are_named_with_a_way_out(tmp_path):
    path = save_checkpoint(tmp_path, 5, STATE, keep=1)
    (path / "state.pt").unlink()
    with pytest.raises(CheckpointMismatch, match=r"is damaged: state\.pt cannot be read.*Remove this folder"):
        load_checkpoint(path)


def test_a_sealed_file_that_holds_no_state_is_named(tmp_path):
    from hashlib import sha256

    path = save_checkpoint(tmp_path, 5, STATE, keep=1)
    (path / "state.pt").write_bytes(b"something else")
    seal = {"iteration": 5, "sha256": {"state.pt": sha256(b"something else").hexdigest()}}
    (path / "seal.json").write_text(json.dumps(seal))
    with pytest.raises(CheckpointMismatch, match="is damaged: it holds something else"):
        load_checkpoint(path)


def missing(path):
    path.unlink()


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("name", ["state.pt", "seal.json"])
@pytest.mark.parametrize("harm", [truncate, flip_a_byte, missing, empty])
def test_a_damaged_checkpoint_is_named_put_aside_and_the_one_before_it_taken(tmp_path, caplog, harm, name):
    paths = [save_checkpoint(tmp_path, iteration, STATE, keep=3) for iteration in (1, 2, 3)]
    before = {path: (path / "state.pt").read_bytes() for path in paths[:2]}
    harm(paths[2] / name)
    assert newest_intact(tmp_path) == paths[1]
    (record,) = caplog.records
    said = record.getMessage()
    assert record.levelname == "WARNING"
    assert f"{paths[2]} is damaged: {name}" in said or "state.pt does not match" in said
    assert said.endswith("kept as damaged-iteration-00000003; the run goes back to iteration-00000002")
    assert (tmp_path / "damaged-iteration-00000003").is_dir()
    assert list_checkpoints(tmp_path) == paths[:2]
    assert all((path / "state.pt").read_bytes() == content for path, content in before.items())
    caplog.clear()
    assert newest_intact(tmp_path) == paths[1]
    assert not caplog.records


def test_what_is_put_aside_makes_way_for_the_next_damage_of_the_same_checkpoint(tmp_path):
    save_checkpoint(tmp_path, 1, STATE, keep=2)
    for _ in range(2):
        flip_a_byte(save_checkpoint(tmp_path, 2, STATE, keep=2) / "state.pt")
        assert newest_intact(tmp_path) == tmp_path / "iteration-00000001"
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_guessed_if_every_checkpoint_is_damaged(tmp_path):
    assert newest_intact(tmp_path / "nothing") is None
    paths = [save_checkpoint(tmp_path, iteration, STATE, keep=2) for iteration in (1, 2)]
    for path in paths:
        truncate(path / "state.pt")
    for _ in range(2):
        with pytest.raises(
            CheckpointMismatch, match=r"-00000002 is damaged.*no earlier one is intact.*Restore"
        ):
            newest_intact(tmp_path)
    assert sorted(tmp_path.iterdir()) == paths


def test_too_little_memory_to_load_is_not_taken_for_damage(tmp_path, monkeypatch):
    path = save_checkpoint(tmp_path, 1, STATE, keep=1)
    monkeypatch.setattr(torch, "load", lambda *_args, **_options: torch.empty(2**48))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        load_checkpoint(path)


def test_a_full_disk_keeps_the_earlier_checkpoints(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, STATE, keep=1)

    def no_space(_handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(DiskFailed, match=r"cannot write .*iteration-00000002: No space left.*--resume"):
        save_checkpoint(tmp_path, 2, STATE, keep=1)
    monkeypatch.undo()
    (kept,) = list_checkpoints(tmp_path)
    assert load_checkpoint(kept)[0] == 1


def test_a_full_disk_while_the_weights_are_written_is_explained(tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / ".iteration-00000002.part").mkdir()
    with pytest.raises(DiskFailed, match=r"cannot write .*iteration-00000002: No space"):
        save_checkpoint(full, 2, {"x": _Unwritable()}, keep=1)


class _Unwritable:
    def __reduce__(self):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_place_that_is_no_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskFailed, match=r"cannot write .*file"):
        save_checkpoint(tmp_path / "file", 1, STATE, keep=1)


@pytest.mark.parametrize("moment", [1, 2, 3, 4])
def test_a_writer_killed_at_any_fsync_leaves_complete_checkpoints_only(tmp_path, moment):
    program = f"""
import os, signal
from pathlib import Path
from istar_trainer.checkpoint import save_checkpoint

folder, calls, fsync = Path({str(tmp_path)!r}), [], os.fsync
save_checkpoint(folder, 1, {{"x": 1}}, keep=1)

def kill(handle):
    calls.append(handle)
    if len(calls) == {moment}:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(handle)

os.fsync = kill
save_checkpoint(folder, 2, {{"x": 2}}, keep=1)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    checkpoints = [load_checkpoint(path) for path in list_checkpoints(tmp_path)]
    complete = [(1, {"x": 1})] if moment < 4 else [(1, {"x": 1}), (2, {"x": 2})]
    assert checkpoints == complete
