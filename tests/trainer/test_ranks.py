"""Shares of processes add up to the whole, and a process that waits in vain says so and ends."""

import re

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import assert_same_tensors, gradients, make_learner, make_lm, make_scene
from child_process import running
from istar_envs.errors import ConfigError
from istar_trainer.attempts import Task
from istar_trainer.config_distributed import DeepSpeedConfig
from istar_trainer.distributed import ranks, sharded, sharing, zero
from istar_trainer.distributed.watchdog import EXIT_CODE, Watchdog
from istar_trainer.errors import NonFiniteLoss
from istar_trainer.learner import Optimization
from tiny_run import tiny_config

OPTIMIZATION = Optimization(1e-3, 0.01, 1.0)


@pytest.fixture
def become(monkeypatch):
    """Return a function that makes this process one of several, whose sums are left to the test."""

    def be(rank: int, size: int) -> None:
        for module in (ranks, sharded):
            monkeypatch.setattr(module, "num_ranks", lambda: size)
            monkeypatch.setattr(module, "own_rank", lambda: rank)
        monkeypatch.setattr(sharded, "summed", lambda values, _place: values)

    return be


def sharded_learner() -> sharded.ShardedLearner:
    model = make_lm()
    return sharded.ShardedLearner(model, OPTIMIZATION, temperature=1.0, micro_batch_tokens=40)


def mean_loss(out, rows):
    return -(out.logprobs() * (rows[:, None] + 1)).sum() / 40


@pytest.mark.parametrize("size", [1, 2, 3, 64])
def test_values_and_gradients_of_all_shares_add_up_to_those_of_one_process(become, size):
    batch, whole = make_scene().batch, make_learner(micro_batch_tokens=40)
    loss = whole.backward(batch, mean_loss)
    found, values, passes = 0.0, torch.zeros(batch.input_ids.shape), set()
    summed = {name: torch.zeros_like(value) for name, value in gradients(whole.model).items()}
    for rank in range(size):
        become(rank, size)
        learner, called = sharded_learner(), []

        def counted(out, rows, called=called):
            called.append(len(rows))
            return mean_loss(out, rows)

        values += learner.logprobs(batch)
        found += learner.backward(batch, counted)
        passes.add(len(called))
        for name, value in gradients(learner.model).items():
            summed[name] += value
    assert len(passes) == 1  # everybody takes part in every collective
    assert found == pytest.approx(loss, abs=1e-5)
    torch.testing.assert_close(values, whole.logprobs(batch), rtol=0, atol=1e-5)
    assert_same_tensors(summed, gradients(whole.model), atol=1e-5)


def test_a_process_without_rows_has_a_gradient_of_zeros(become):
    become(5, 64)
    learner, batch = sharded_learner(), make_scene().batch
    only = torch.tensor([3])
    assert learner.backward(batch, mean_loss, only) == 0.0
    assert gradients(learner.model)
    assert all(not value.any() for value in gradients(learner.model).values())


def test_a_loss_that_is_not_finite_elsewhere_is_refused_here_too(become, monkeypatch):
    become(0, 2)
    learner, before = sharded_learner(), make_lm().state_dict()
    monkeypatch.setattr(sharded, "summed", lambda values, _place: values + torch.nan)
    with pytest.raises(NonFiniteLoss, match="the loss is nan"):
        learner.backward(make_scene().batch, mean_loss)
    assert gradients(learner.model) == {}
    assert_same_tensors(learner.snapshot(), dict(before))


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 9), keep=st.integers(1, 12))
def test_every_row_is_in_one_share_and_shares_have_similar_tokens(size, keep):
    batch = make_scene().batch
    batch = batch.select(torch.arange(min(keep, len(batch))))
    shares = sharded.row_shares(batch, size)
    assert sorted(torch.cat(shares).tolist()) == list(range(len(batch)))
    lengths = batch.attention_mask.sum(dim=1)
    fair = float(lengths.sum()) / size
    assert all(float(lengths[share].sum()) <= fair + float(lengths.max()) for share in shares)


@pytest.mark.property
@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 5), count=st.integers(0, 12))
def test_what_was_dealt_is_collected_in_its_order(size, count):
    items = list(range(count))
    assert ranks.collected([items[rank::size] for rank in range(size)]) == items


def test_every_process_plays_its_tasks_and_gets_the_groups_of_all(become, monkeypatch, tmp_path):
    class Echo(sharing.Player):
        def play(self, tasks, sampler, **_options):
            return tuple(task.id for task in tasks)

    tasks = [Task(str(number), number) for number in range(5)]
    player = object.__new__(type("Shared", (sharing.SharedPlayer, Echo), {}))
    become(1, 2)
    monkeypatch.setattr(sharing, "from_all", lambda play, _place: [("0", "2", "4"), play()])
    found = player.play(tasks, None, group_size=1, seed=0, temperature=1.0)
    assert found == ("0", "1", "2", "3", "4")


def test_the_other_processes_write_nothing(monkeypatch, tmp_path):
    sharing.open_folder(tiny_config(tmp_path / "run"), resume=False)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(sharing, "is_main", lambda: False)
    folder = sharing.open_folder(tiny_config(tmp_path / "run"), resume=True)
    folder.append("eval.jsonl", [{"iteration": 1}])
    folder.add_facts(size=1)
    folder.keep_episodes("x", [])
    folder.rewind(0)
    log = sharing.open_log(tmp_path / "elsewhere")
    log.write(0, {"no such metric": 1.0})
    log.close()
    assert sorted(tmp_path.rglob("*")) == before
    assert folder.records("eval.jsonl") == []


def test_alone_everything_is_done_at_once():
    assert ranks.from_main(lambda: 3, "x") == 3
    assert ranks.from_all(lambda: 3, "x") == [3]
    assert ranks.summed(torch.ones(2), "x").tolist() == [1, 1]
    with ranks.at("x"), pytest.raises(RuntimeError, match="gloo"):
        raise RuntimeError("gloo")


def test_processes_that_do_not_meet_are_told_how_to_start(monkeypatch, tmp_path):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"RANK.*Start them with torchrun"), ranks.joined(2, tmp_path, 1.0):
        pass


def test_a_report_says_where_every_process_was_last_seen(tmp_path):
    store = dist.HashStore()
    other = Watchdog(store, 1, 3, tmp_path, 9.0)
    other.leave("gathering of what was played")
    own = Watchdog(store, 0, 3, tmp_path, 9.0)
    own.enter("judging")
    text = own.report("waits")
    assert text.startswith("rank 0 of 3 waits.")
    assert re.search(r'rank 0: in "judging", for \d s', text)
    assert re.search(r'rank 1: busy since "gathering of what was played", for \d s', text)
    assert "rank 2: never seen" in text
    stacks = (tmp_path / "rank-0.txt").read_text()
    assert "test_a_report_says_where" in stacks
    assert "--resume" in stacks


HANG = """
import sys, time
from pathlib import Path
import torch.distributed as dist
from istar_trainer.distributed.watchdog import Watchdog
with Watchdog(dist.HashStore(), 0, 1, Path(sys.argv[1]), 1.0) as dog:
    dog.enter("a long wait")
    print("waits", flush=True)
    dist.TCPStore("localhost", 0, is_master=True).get("never")
"""


def test_a_process_that_waits_inside_a_library_is_ended_with_its_stacks(tmp_path):
    with running(HANG, tmp_path) as child:
        out, errors = child.communicate(timeout=600)
    assert (child.returncode, out) == (EXIT_CODE, "waits\n")
    assert 'in "a long wait"' in errors
    assert "made no progress for 1 s (learner.watchdog_s)" in errors
    assert 'File "<string>"' in errors  # where the main thread stood
    assert (tmp_path / "rank-0.txt").is_file()


def test_a_launcher_that_stops_a_waiting_process_gets_a_report_too(tmp_path):
    with running(HANG.replace("1.0)", "99.0)"), tmp_path) as child:
        assert child.stdout.readline() == "waits\n"
        child.terminate()
        _, errors = child.communicate(timeout=600)
    assert child.returncode == 143
    assert "was told to stop (SIGTERM)" in errors


def test_settings_say_what_is_divided_and_offloaded():
    plain = zero.zero_settings(DeepSpeedConfig(stage=2), OPTIMIZATION, 1000)
    assert plain["gradient_clipping"] == 1.0
    assert plain["zero_optimization"] == {"stage": 2, "overlap_comm": False, "reduce_bucket_size": 1000}
    changed = DeepSpeedConfig(
        offload="all", settings={"bf16": {"enabled": True}, "zero_optimization": {"overlap_comm": True}}
    )
    found = zero.zero_settings(changed, OPTIMIZATION, 10**12)
    assert found["bf16"] == {"enabled": True}
    assert found["zero_optimization"] == {
        "stage": 3,
        "overlap_comm": True,
        "reduce_bucket_size": 500_000_000,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
    }
    assert changed.settings["zero_optimization"] == {"overlap_comm": True}
