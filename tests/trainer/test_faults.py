"""A full disk and too little memory are told in one text, whichever library met them."""

import errno
import os

import pytest
import torch

from builders import make_learner, make_scene
from istar_envs.episode import RecentImages
from istar_trainer.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from istar_trainer.errors import DiskFailed, OutOfMemory
from istar_trainer.faults import explained, writing
from istar_trainer.folder import RunFolder
from istar_trainer.pictures import save_tokenizer
from istar_trainer.pipeline import make_once
from istar_trainer.sampler import LocalSampler, Request
from istar_trainer.weights import load_model
from tiny_run import tiny_config


def ballast(disk, *, leave: int) -> None:
    """Fill a disk up to so many bytes."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "ballast").write_bytes(bytes(free - leave))


@pytest.mark.parametrize("room", [0, 8192, 65536, 262144])
def test_a_full_disk_leaves_the_earlier_checkpoint_and_no_half_one(small_disk, room):
    state = {"weights": [torch.full((1000,), float(n)) for n in range(100)]}
    folder = small_disk / "checkpoints"
    save_checkpoint(folder, 1, {"x": 1}, keep=2)
    ballast(small_disk, leave=room)
    with pytest.raises(DiskFailed, match=r"cannot write .*iteration-00000002: No space left.*--resume"):
        save_checkpoint(folder, 2, state, keep=2)
    assert [path.name for path in folder.iterdir()] == ["iteration-00000001"]
    assert load_checkpoint(list_checkpoints(folder)[-1]) == (1, {"x": 1})
    (small_disk / "ballast").unlink()
    _, found = load_checkpoint(save_checkpoint(folder, 2, state, keep=2))
    assert all(torch.equal(*pair) for pair in zip(found["weights"], state["weights"], strict=True))


@pytest.mark.parametrize("room", [0, 8192])
@pytest.mark.parametrize("what", ["model", "tokenizer"])
def test_a_full_disk_leaves_no_half_model(small_disk, tiny_folder, what, room):
    model, tokenizer = load_model(tiny_folder)

    def make(out):
        model.save_pretrained(out) if what == "model" else save_tokenizer(tokenizer, out)

    ballast(small_disk, leave=room)
    with pytest.raises(DiskFailed, match=r"cannot write .*made: No space left"):
        make_once(small_disk / "made", make)
    assert not (small_disk / "made").exists()
    (small_disk / "ballast").unlink()
    make_once(small_disk / "made", make)
    assert (small_disk / "made" / "seal.json").is_file()


@pytest.mark.parametrize("write", ["append", "keep_images"])
def test_a_full_disk_is_told_by_the_run_folder(small_disk, write):
    folder = RunFolder(small_disk / "run", tiny_config(small_disk / "run"), resume=False)
    images = RecentImages()
    key = images.put(bytes(5000))
    ballast(small_disk, leave=0)
    writers = {
        "append": lambda: folder.append("eval.jsonl", [{"iteration": 0, "text": "x" * 5000}]),
        "keep_images": lambda: folder.keep_images([key], images),
    }
    with pytest.raises(DiskFailed, match=r"cannot write .*run/(eval\.jsonl|images): No space left"):
        writers[write]()


def ask_for_too_much(*_arguments, **_options):
    """Ask torch's own allocator for more memory than any machine has."""
    torch.empty(2**48)


def draw(learner, _scene):
    LocalSampler(learner.model, eos_token_id=0, max_new_tokens=3).generate(
        [Request((1, 2, 3), 0)], temperature=1.0
    )


def score(learner, scene):
    learner.logprobs(scene.batch)


def learn(learner, scene):
    learner.backward(scene.batch, lambda out, _rows: -out.logprobs().sum())


@pytest.mark.parametrize(
    ("work", "part", "remedy"),
    [
        (draw, "drawing replies", "sampler.kept_mib"),
        (score, "scoring tokens", "learner.micro_batch_tokens"),
        (learn, "learning from a batch", "learner.micro_batch_tokens"),
    ],
)
def test_too_little_memory_says_where_how_much_and_what_to_lower(work, part, remedy):
    scene, learner = make_scene(), make_learner()
    learner.model.model.layers[0].register_forward_pre_hook(ask_for_too_much)
    assert_told(lambda: work(learner, scene), part, remedy)


def test_too_little_memory_for_the_optimizer_or_a_whole_model_is_told_too(tiny_folder, monkeypatch):
    scene, learner = make_scene(), make_learner()
    learn(learner, scene)
    learner.optimizer.register_step_pre_hook(ask_for_too_much)
    assert_told(learner.step, "updating weights", "the number of processes")
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", ask_for_too_much)
    assert_told(lambda: load_model(tiny_folder), "loading a model", "the number of processes")


def assert_told(work, part, remedy):
    with pytest.raises(OutOfMemory) as error:
        explained(lambda _argv: work())([])
    text = str(error.value)
    size = 2**48 * 4
    assert text.startswith(f"out of memory while {part} ({size} bytes more were asked for). Lower {remedy}")
    assert "--resume" in text
    assert "istar plan" in text


@pytest.mark.parametrize(
    ("error", "size"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has"), "20.00 GiB"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), None),
        (MemoryError("Unable to allocate 7.45 GiB for an array"), "7.45 GiB"),
        (MemoryError(), None),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), None),
    ],
)
def test_every_library_is_understood_when_it_runs_out_of_memory(error, size):
    def fail(_argv):
        raise error

    with pytest.raises(OutOfMemory) as found:
        explained(fail)([])
    assert (size is None) == ("asked for" not in str(found.value))
    assert size is None or f"({size} more were asked for)" in str(found.value)


def test_a_disk_that_fills_up_under_any_other_writer_is_told_with_the_file(small_disk):
    def fail(_argv):
        os.posix_fallocate(os.open(small_disk / "big", os.O_CREAT | os.O_WRONLY), 0, 2**30)

    def copy(_argv):
        raise OSError(errno.ENOSPC, "No space left on device", "source", None, "target")

    with pytest.raises(DiskFailed, match="cannot write a file: No space left"):
        explained(fail)([])
    with pytest.raises(DiskFailed, match="cannot write target: No space left"):
        explained(copy)([])


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), RuntimeError("shape mismatch"), ConnectionRefusedError(111, "refused"), KeyError(1)],
)
def test_what_is_no_fault_of_the_machine_is_left_as_it_is(error, tmp_path):
    def fail(_argv=None):
        raise error

    with pytest.raises(type(error)) as found:
        explained(fail)([])
    assert found.value is error
    with pytest.raises(type(error)) as found, writing(tmp_path):
        fail()
    assert found.value is error


def test_an_error_that_follows_a_handled_one_of_the_disk_is_not_taken_for_it(tmp_path):
    def fail():
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            return {}["a fault of ours"]

    with pytest.raises(KeyError), writing(tmp_path):
        fail()
