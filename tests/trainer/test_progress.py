"""The live display, its plain form and the closing table."""

import io

import pytest
from pydantic import ValidationError
from rich.console import Console
from synthetic_run import eval_records

from istar_trainer.progress import Progress, describe, summary_table
from istar_trainer.report.formats import clock_time

VALUES = {
    "env/success_rate": 0.4213,
    "step_reward/mean": 0.01,
    "prm/pair_acc": 0.7,
    "eval/success_rate": 0.45,
    "eval/success_low": 0.4021,
    "eval/success_high": 0.499,
}


class Clock:
    """Seconds that the test sets."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def shown(console):
    return console.file.getvalue()


@pytest.fixture
def plain():
    return Console(file=io.StringIO(), force_terminal=False, width=60)


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def text_of(table):
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    return shown(console)


def test_the_metrics_that_matter_are_described_in_words():
    assert describe(VALUES) == (
        "success 42.1% · step reward +0.0100 · PRM pairs 70.0% · held-out 45.0% [40.2–49.9]"
    )


def test_missing_and_not_finite_values_are_left_out():
    assert describe({"prm/pair_acc": float("nan"), "eval/success_rate": 0.5}) == "held-out 50.0%"
    assert describe({}) == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (64.6, "1:05"), (3599.7, "1:00:00"), (7205, "2:00:05")]
)
def test_durations_read_like_a_clock(seconds, text):
    assert clock_time(seconds) == text


def test_off_a_terminal_each_iteration_is_one_plain_line(plain):
    clock = Clock()
    with Progress(plain, clock) as progress:
        progress.start(4)
        for i in range(2):
            clock.now += 30
            progress.update(i, VALUES)
    lines = shown(plain).splitlines()
    assert lines[0] == f"training 1/4 · ETA 1:30 · {describe(VALUES)}"
    assert lines[1] == f"training 2/4 · ETA 1:00 · {describe(VALUES)}"
    assert len(lines) == 2
    assert "\x1b" not in shown(plain)


def test_the_eta_of_a_resumed_run_counts_only_its_own_iterations(plain):
    clock = Clock()
    progress = Progress(plain, clock)
    progress.start(10, completed=6)
    clock.now = 20
    progress.update(6, {})
    assert shown(plain) == "training 7/10 · ETA 1:00\n"


def test_a_held_out_value_stays_until_the_next_one(plain):
    progress = Progress(plain, Clock())
    progress.start(2)
    progress.update(0, {"eval/success_rate": 0.5})
    progress.update(1, {"env/success_rate": 0.4})
    assert shown(plain).splitlines()[1].endswith("success 40.0% · held-out 50.0%")


def test_a_new_phase_starts_without_the_values_of_the_last(plain):
    progress = Progress(plain, Clock())
    progress.start(1, label="warm start")
    progress.update(0, {"sft/loss": 1.25})
    progress.start(1)
    progress.update(0, {"env/success_rate": 0.4})
    assert shown(plain).splitlines() == [
        "warm start 1/1 · ETA 0:00 · loss 1.2500",
        "training 1/1 · ETA 0:00 · success 40.0%",
    ]


def test_a_note_is_shown_as_it_is(plain):
    Progress(plain).note("saved [bold]run[/bold] [1]")
    assert shown(plain) == "saved [bold]run[/bold] [1]\n"


def test_on_a_terminal_a_bar_is_drawn_and_notes_stand_above_it(terminal):
    with Progress(terminal, Clock()) as progress:
        progress.start(4)
        progress.update(1, VALUES)
        progress.note("evaluated")
    assert "━" in shown(terminal)
    assert "2/4" in shown(terminal)
    assert "PRM pairs 70.0%" in shown(terminal)
    assert "evaluated" in shown(terminal)


def test_the_closing_table_stands_below_the_finished_bar(terminal):
    with Progress(terminal, Clock()) as progress:
        progress.start(1)
        progress.update(0, VALUES)
        progress.summary_table(eval_records())
    assert shown(terminal).rindex("1/1") < shown(terminal).index("random play")


def test_the_display_ends_when_the_run_breaks(terminal):
    progress = Progress(terminal)
    progress.start(4)
    with pytest.raises(RuntimeError), progress:
        raise RuntimeError
    assert shown(terminal).rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_the_closing_table_shows_before_and_after_between_the_baselines():
    lines = [line for line in text_of(summary_table(eval_records())).splitlines() if "%" in line]
    assert [line.split("│")[1].strip() for line in lines[1:]] == [
        "random play",
        "before (test)",
        "after (test)",
        "optimal play",
    ]
    # Wilson intervals of 190 and 342 of 500
    assert "38.0%" in lines[2]
    assert "33.9–42.3" in lines[2]
    assert "68.4%" in lines[3]
    assert "64.2–72.3" in lines[3]


def test_the_closing_table_states_the_gain_and_whether_the_intervals_are_apart():
    before, after = eval_records()
    assert "+30.4 points; the intervals are apart" in text_of(summary_table([before, after]))
    close = {**after, "success": 200}
    assert "+2.0 points; the intervals overlap" in text_of(summary_table([before, close]))
    worse = {**after, "success": 40}
    assert "-30.0 points; the intervals are apart" in text_of(summary_table([before, worse]))
    assert "points" not in text_of(summary_table([before]))


def test_a_row_with_more_successes_than_tasks_is_refused():
    with pytest.raises(ValidationError, match="more than n=3"):
        summary_table([{"iteration": 0, "split": "test", "label": "before", "success": 4, "n": 3}])
