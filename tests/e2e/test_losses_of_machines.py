"""A full disk, too little memory and a damaged checkpoint end in a clear text, and the run goes on later.

A lost vLLM server is a matter of ``test_vllm.py``, a lost process one of ``test_distributed.py``.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from istar_trainer.checkpoint import list_checkpoints, load_checkpoint
from istar_trainer.metrics import read_metrics
from same_run import assert_same_run
from tiny_run import write_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SWITCH = Path(__file__).with_name("fault_switch.py")

FULL = {
    "while the model is made": "istar_trainer.pipeline:init_tiny:1",
    "in the warm start": "istar_trainer.pipeline:save_weights:1",
    "before the first evaluation is recorded": "istar_trainer.folder:RunFolder.keep_episodes:1",
    "before credit is recorded": "istar_trainer.folder:RunFolder.append:4",
    "before metrics are recorded": "istar_trainer.metrics:MetricsLog.write:9",
    "while a checkpoint is written": "istar_trainer.checkpoint:seal:2",
    "while weights of a checkpoint are written": "istar_trainer.checkpoint:save_checkpoint:2",
    "before the policy is written": "istar_trainer.pipeline:save_policy:1",
    "before the report": "istar_trainer.pipeline:build_report:1",
}


def train(config: Path, folder: Path, *options: str, fault: tuple[str, ...] = ()) -> tuple[int, str]:
    """Train with a fault, and return the exit code and what was said on standard error."""
    entry = [str(SWITCH), *fault] if fault else ["-m", "istar_trainer"]
    done = subprocess.run(
        [sys.executable, *entry, "train", str(config), "--run-dir", str(folder), *options],
        capture_output=True,
        text=True,
        timeout=1800,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "COLUMNS": "1000"},
        check=False,
    )
    return done.returncode, done.stderr


def the_text(said: str) -> str:
    """Return the one line in which the command says why it ended; warnings may come before it."""
    assert "Traceback" not in said
    *_, last = said.splitlines()
    return last


def assert_intact(folder: Path) -> None:
    """Check that every checkpoint that counts can be loaded and that no half one lies about."""
    checkpoints = folder / "checkpoints"
    for path in list_checkpoints(checkpoints):
        load_checkpoint(path)
    if checkpoints.is_dir():
        assert all(path.name.startswith("iteration-") for path in checkpoints.iterdir())


@pytest.fixture
def config(tmp_path) -> Path:
    return write_config(tmp_path / "tiny.yaml")


@pytest.mark.parametrize("moment", FULL.values(), ids=FULL.keys())
def test_a_disk_that_fills_up_at_any_moment_costs_nothing(config, small_disk, finished_run, moment):
    folder = small_disk / "run"
    code, said = train(config, folder, fault=("fill", str(small_disk), moment))
    assert code == 2, said
    line = the_text(said)
    assert line.startswith(f"istar train: cannot write {folder}/"), said
    assert "No space left on device" in line
    assert "Free space" in line
    assert "--resume" in line
    assert_intact(folder)
    saved = list_checkpoints(folder / "checkpoints")
    code, said = train(config, folder, "--resume")  # still full
    assert (code, "No space left on device" in said, "Traceback" in said) == (2, True, False), said
    assert list_checkpoints(folder / "checkpoints") == saved
    (small_disk / "ballast").unlink()
    code, said = train(config, folder, "--resume")
    assert code == 0, said
    assert_same_run(folder, finished_run)


STARVED = {
    "scoring tokens": "istar_trainer.setup:Run.old_logprobs:1",
    "learning from a batch": "istar_trainer.update:_accumulate:1",
}


@pytest.mark.parametrize(("part", "moment"), STARVED.items(), ids=STARVED.keys())
def test_a_run_without_enough_memory_says_where_and_goes_on_in_smaller_pieces(tmp_path, part, moment):
    size = {"hidden_size": 128, "num_layers": 2, "num_heads": 8}
    played = {"num_tasks": 8, "group_size": 8}
    config = write_config(tmp_path / "wide.yaml", model=size, rollout=played, eval={"test_tasks": 0})
    folder, starved = tmp_path / "run", ("starve", "4", moment)
    assert train(config, folder, "--iterations", "2")[0] == 0
    goes_on = ("--resume", "--iterations", "3")
    code, said = train(config, folder, *goes_on, fault=starved)
    assert code == 2, said
    line = the_text(said)
    assert line.startswith(f"istar train: out of memory while {part} ("), said
    assert "Lower learner.micro_batch_tokens" in line
    assert "--resume" in line
    assert_intact(folder)
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == ["iteration-00000002"]
    code, said = train(config, folder, *goes_on, "--learner.micro-batch-tokens", "64", fault=starved)
    assert code == 0, said
    assert len(read_metrics(folder / "metrics.jsonl")) == 3


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


HARMS: dict[str, Callable[[Path], object]] = {
    "flipped": flip_a_bit,
    "cut short": cut_short,
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.fixture
def finished_copy(tmp_path, finished_run) -> Path:
    """A copy of a finished run that may be harmed."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.mark.parametrize("name", ["state.pt", "seal.json"])
@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_a_run_goes_back_over_a_damaged_checkpoint_and_ends_the_same(
    config, finished_copy, finished_run, harm, name
):
    earlier, newest = list_checkpoints(finished_copy / "checkpoints")
    harm(newest / name)
    shutil.rmtree(finished_copy / "policy")
    code, said = train(config, finished_copy, "--resume")
    assert code == 0, said
    said = " ".join(said.split())
    assert f"{newest} is damaged: " in said
    assert f"It is kept as damaged-{newest.name}; the run goes back to {earlier.name}" in said
    assert_same_run(finished_copy, finished_run)


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_a_run_without_an_intact_checkpoint_stops_and_changes_nothing(config, finished_copy, harm):
    checkpoints = list_checkpoints(finished_copy / "checkpoints")
    for path in checkpoints:
        harm(path / "state.pt")
    metrics = (finished_copy / "metrics.jsonl").read_bytes()
    code, said = train(config, finished_copy, "--resume")
    assert code == 2, said
    line = the_text(said)
    assert line.startswith(f"istar train: checkpoint {checkpoints[-1]} is damaged: state.pt ")
    assert "no earlier one is intact. Restore one from a copy" in line
    assert list_checkpoints(finished_copy / "checkpoints") == checkpoints
    assert (finished_copy / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_a_damaged_start_policy_is_noticed_and_made_again(config, finished_copy, finished_run, harm):
    weights = finished_copy / "warm_start" / "model.safetensors"
    harm(weights)
    code, said = train(config, finished_copy, "--resume")
    assert code == 2, said
    line = the_text(said)
    assert line.startswith(f"istar train: {weights.parent} is damaged: model.safetensors ")
    assert "Remove this folder; --resume makes it again" in line
    shutil.rmtree(weights.parent)
    code, said = train(config, finished_copy, "--resume")
    assert code == 0, said
    assert_same_run(finished_copy, finished_run)
    assert weights.read_bytes() == (finished_run / "warm_start" / "model.safetensors").read_bytes()
