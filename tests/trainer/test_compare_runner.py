"""Child processes of a comparison: failures, limits, locks, and what is left alone.

Training is replaced by a line of Python, except where the real child is what is tested.
"""

import io
import subprocess
import sys

import pytest
from compared_runs import make_plan, write_run
from rich.console import Console

from istar_envs.errors import ConfigError
from istar_trainer.compare import pipeline, runner
from istar_trainer.compare.display import Display

TWO = {"base": {}, "new": {}}
READY = {"model": {"path": "models/mine"}, "warm_start": {"enabled": False}}


@pytest.fixture
def scripts(monkeypatch) -> dict[str, str]:
    """What the child of each job does, by name; without an entry it ends well at once."""
    lines: dict[str, str] = {}
    started = []

    def start(job, lock):
        started.append(job.name)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("ab") as log:
            words = [sys.executable, "-S", "-c", lines.get(job.name, "")]
            return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=log, stderr=log)

    monkeypatch.setattr(runner, "_start", start)
    monkeypatch.setattr(runner, "_POLL_S", 0.01)
    lines["started"] = started
    return lines


def carry_out(plan, *, resume=False):
    """Failures, and what was shown."""
    out = io.StringIO()
    with Display(Console(file=out, width=200)) as display:
        return runner.carry_out(plan, resume=resume, display=display), out.getvalue()


def test_shared_starts_come_before_the_runs(tmp_path, scripts):
    failed, shown = carry_out(make_plan(tmp_path, TWO, seeds=[0, 1], jobs=3))
    assert failed == {}
    assert scripts["started"] == ["warm start 0", "warm start 1", "base/0", "new/0", "base/1", "new/1"]
    assert "warm starts 2/2" in shown
    assert "runs 4/4" in shown


def test_a_run_that_fails_stops_no_other_and_says_why(tmp_path, scripts):
    scripts["base/0"] = "print('a'); raise SystemExit('istar train: no level in file.txt')"
    scripts["new/0"] = "import os; os.kill(os.getpid(), 9)"
    scripts["base/1"] = "raise SystemExit(3)"
    plan = make_plan(tmp_path, TWO, seeds=[0, 1], common=READY)
    failed, shown = carry_out(plan)
    log = plan.comparison.out / "runs/base/0.log"
    assert failed == {
        "base/0": f"istar train: no level in file.txt (see {log})",
        "new/0": "killed by signal 9, as the kernel does when memory runs out",
        "base/1": f"exit code 3 (see {log.parent / '1.log'})",
    }
    assert "new/1 · done" in shown
    assert "new/0 · killed by signal 9" in shown


def test_a_start_that_fails_takes_only_the_runs_of_its_seed_with_it(tmp_path, scripts):
    scripts["warm start 0"] = "raise SystemExit('no expert')"
    failed, _ = carry_out(make_plan(tmp_path, TWO, seeds=[0, 1]))
    assert sorted(failed) == ["base/0", "new/0"]
    assert failed["base/0"].startswith("its warm start 0 failed: no expert")
    assert scripts["started"][2:] == ["base/1", "new/1"]


def test_no_more_jobs_run_at_the_same_time_than_asked_for(tmp_path, scripts, monkeypatch):
    children, alive = [], []
    start = runner._start

    def counted(job, lock):
        alive.append(sum(child.returncode is None for child in children))
        children.append(start(job, lock))
        return children[-1]

    monkeypatch.setattr(runner, "_start", counted)
    carry_out(make_plan(tmp_path, TWO, seeds=[0, 1], jobs=2, common=READY))
    assert alive[:2] == [0, 1]
    assert max(alive) == 1


def test_what_is_finished_is_left_alone(tmp_path, scripts):
    plan = make_plan(tmp_path, TWO, seeds=[0, 1])
    write_run(plan.runs[0], [True], {5: 1})
    (plan.starts[0].run_dir / "warm_start").mkdir(parents=True)
    failed, shown = carry_out(plan, resume=True)
    assert failed == {}
    assert scripts["started"] == ["warm start 1", "new/0", "base/1", "new/1"]
    assert "1 of 4 runs are there already" in shown


def test_a_folder_in_use_is_refused_without_resume(tmp_path, scripts):
    plan = make_plan(tmp_path, TWO)
    plan.comparison.out.mkdir()
    (plan.comparison.out / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty\. Use --resume"):
        carry_out(plan)
    assert scripts["started"] == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path, scripts):
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match=r"cannot use out .*/out: "):
        carry_out(make_plan(tmp_path, TWO))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learner": {"lr": 0.5}}, r"the configuration changed \(learner.lr: 5e-07 then, 0.5 now\)"),
        ({"iterations": 11}, "was planned for 10 iterations, now for 11"),
    ],
)
def test_runs_of_another_configuration_are_refused_before_anything_starts(
    tmp_path, scripts, changes, message
):
    write_run(make_plan(tmp_path, TWO, seeds=[0], common=READY).runs[1], [True], {5: 1})
    with pytest.raises(ConfigError, match=message):
        carry_out(make_plan(tmp_path, TWO, seeds=[0], common=READY | changes), resume=True)
    assert scripts["started"] == []


def test_methods_and_seeds_can_be_added_later(tmp_path, scripts):
    write_run(make_plan(tmp_path, {"base": {}}, seeds=[0], common=READY).runs[0], [True], {5: 1})
    carry_out(make_plan(tmp_path, TWO, seeds=[0, 1], common=READY), resume=True)
    assert scripts["started"] == ["new/0", "base/1", "new/1"]


def test_a_second_comparison_in_the_same_folder_is_refused(tmp_path, scripts, monkeypatch):
    monkeypatch.setattr(runner, "_LOCK_WAIT_S", 0.0)
    plan = make_plan(tmp_path, TWO, seeds=[0], common=READY)
    with (
        runner._only_one(plan.comparison.out),
        pytest.raises(ConfigError, match="another istar compare is at"),
    ):
        carry_out(plan)


def test_an_interrupt_ends_the_children(tmp_path, scripts, monkeypatch):
    def interrupt(_display, _name, _iterations):
        raise KeyboardInterrupt

    children = []
    start = runner._start
    monkeypatch.setattr(runner, "_start", lambda job, lock: children.append(start(job, lock)) or children[-1])
    monkeypatch.setattr(Display, "advanced", interrupt)
    scripts |= {"base/0": "import time; time.sleep(600)", "new/0": "import time; time.sleep(600)"}
    with pytest.raises(KeyboardInterrupt):
        carry_out(make_plan(tmp_path, TWO, seeds=[0], jobs=2, common=READY))
    assert [child.returncode for child in children] == [-9, -9]


def test_a_child_ends_with_its_parent():
    code = "from istar_trainer.compare.child import end_with_parent; end_with_parent()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.5)
    child.stdin.close()
    assert child.wait(600) == 1


def test_a_comparison_without_any_result_says_why(tmp_path, scripts):
    scripts |= {"base/0": "raise SystemExit('broken')", "new/0": "raise SystemExit('too')"}
    plan = make_plan(tmp_path, TWO, seeds=[0], common=READY)
    with Display(Console(file=io.StringIO())) as display, pytest.raises(ConfigError) as error:
        pipeline.compare(plan, resume=False, display=display)
    assert "has a result. base/0: broken (see " in str(error.value)
    assert "new/0: too" in str(error.value)


def test_bars_are_shown_on_a_terminal():
    out = io.StringIO()
    with Display(Console(file=out, force_terminal=True, width=120)) as display:
        display.begin("runs", 2, done=1)
        display.started("new/0", 10)
        display.advanced("new/0", 5)
        display.show("found", [("method", "success"), ("new", "50%")])
        display.ended("new/0", None)
    shown = out.getvalue()
    assert "runs 2/2 · new/0 · done" in shown
    assert "method" in shown
