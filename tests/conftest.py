"""Shapes and types of the tensor modules are checked at run time while the tests run."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # transformers imports deepspeed, which says what it found

# equal draws in every run, however slow; --hypothesis-profile=default draws others
settings.load_profile("ci")

SHAPE_CHECKED = (
    "masked",
    "implicit_reward",
    "attribution",
    "advantages",
    "state_credit",
    "step_credit",
    "losses",
    "gae",
    "batch",
    "head",
    "packing",
    "model",
    "sampler",
    "learner",
    "vision",
)

install_import_hook([f"istar_trainer.{name}" for name in SHAPE_CHECKED], "beartype.beartype")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Sokoban model and tokenizer in Hugging Face layout."""
    import istar_envs
    from istar_trainer.tiny import init_tiny

    out = tmp_path_factory.mktemp("tiny") / "model"
    env = istar_envs.make("istar/Sokoban-v0")
    return init_tiny(
        env, out, template="bare-v1", window=0, hidden_size=16, num_layers=1, num_heads=2, seed=0
    )


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_folder):
    """The tokenizer of ``tiny_folder``."""
    from istar_trainer.weights import load_model

    return load_model(tiny_folder)[1]


@pytest.fixture
def _restore_torch():
    """Give back torch's global settings, which a run changes."""
    import torch

    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 16 MiB, seen through the process that has it."""
    mount = "mount -t tmpfs -o size=16m tmpfs /mnt && echo ready && read _"
    with subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", mount], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        if owner.stdout.readline() != b"ready\n":
            pytest.skip("no file system can be mounted here")
        yield Path("/proc", str(owner.pid), "root", "mnt")
        owner.stdin.close()


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny run that was never interrupted."""
    import torch

    from istar_trainer.pipeline import run_training
    from istar_trainer.progress import Progress
    from tiny_run import tiny_config

    folder = tmp_path_factory.mktemp("finished") / "run"
    threads = torch.get_num_threads()
    try:
        with Progress() as progress:
            run_training(tiny_config(folder), resume=False, progress=progress)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    return folder
