"""The metric names, the log and the warnings."""

import builtins
import json
import math
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istar_envs.errors import ConfigError
from istar_trainer.metrics import (
    _TRENDS,
    METRICS,
    MetricsLog,
    metrics_markdown,
    read_metrics,
    warn_if_contradictory,
    wilson_interval,
)

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
FAMILIES = {
    *("env", "rollout", "judge", "pairs", "prm", "step_reward", "credit", "adv"),
    *("policy", "critic", "ratio", "mismatch", "eval", "sft", "time"),
}


def test_the_page_of_metrics_is_up_to_date():
    command = (
        'python -c "import pathlib, istar_trainer.metrics as m; '
        "pathlib.Path('docs/metrics.md').write_text(m.metrics_markdown(), encoding='utf-8')\""
    )
    assert DOCS.read_text(encoding="utf-8") == metrics_markdown(), f"write it again: {command}"


def test_every_metric_is_on_the_page_with_a_unit_a_meaning_and_a_healthy_range():
    page = metrics_markdown()
    for metric in METRICS.values():
        assert f"| `{metric.name}` | {metric.unit} | {metric.meaning} | {metric.healthy} |" in page
        assert metric.unit
        assert metric.meaning
        assert metric.healthy
        assert "|" not in metric.unit + metric.meaning + metric.healthy


def test_every_family_has_metrics_and_every_metric_a_family():
    assert {name.partition("/")[0] for name in METRICS} == FAMILIES


def test_names_mentioned_in_the_page_exist():
    mentioned = re.findall(r"`([a-z_]+/[a-z0-9_]+)`", metrics_markdown())
    assert set(mentioned) == set(METRICS)


def test_the_wilson_interval_matches_hand_computed_numbers():
    low, high = wilson_interval(8, 10)
    # centre (.8 + 1.96²/20) / (1 + 1.96²/10) = .71674,
    # half width 1.96·√(.016 + 1.96²/400) / 1.38415 = .22658
    assert (low, high) == pytest.approx((0.49016, 0.94331), abs=1e-5)


def test_the_wilson_interval_of_no_success_starts_at_zero():
    low, high = wilson_interval(0, 10)
    # z² / (n + z²) = 3.84146 / 13.84146
    assert low == 0.0
    assert high == pytest.approx(0.277533, abs=1e-6)


def test_the_wilson_interval_of_no_try_is_the_whole_range():
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "n"), [(-1, 5), (6, 5), (1, 0)])
def test_impossible_counts_are_refused(successes, n):
    with pytest.raises(ValueError, match=f"got {successes} of {n}"):
        wilson_interval(successes, n)


@pytest.mark.property
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_wilson_interval_holds_the_rate_and_mirrors(counts):
    successes, n = counts
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= high <= 1
    if n:
        assert low <= successes / n <= high
    mirrored_low, mirrored_high = wilson_interval(n - successes, n)
    assert (1 - mirrored_high, 1 - mirrored_low) == pytest.approx((low, high), abs=1e-12)  # rounding only


def test_what_is_written_is_read_back(tmp_path):
    log = MetricsLog(tmp_path / "run")
    log.write(0, {"prm/loss": 0.6931471805599453, "pairs/num": 12})
    log.write(1, {"prm/loss": 1e-300})
    assert read_metrics(log.path) == [
        {"iteration": 0, "prm/loss": 0.6931471805599453, "pairs/num": 12.0},
        {"iteration": 1, "prm/loss": 1e-300},
    ]


def test_values_that_are_not_finite_become_null_and_come_back_as_nan(tmp_path):
    log = MetricsLog(tmp_path)
    log.write(0, {"prm/loss": math.nan, "prm/margin": math.inf})
    assert json.loads(log.path.read_text()) == {"iteration": 0, "prm/loss": None, "prm/margin": None}
    assert all(math.isnan(read_metrics(log.path)[0][name]) for name in ("prm/loss", "prm/margin"))


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path):
    log = MetricsLog(tmp_path)
    with pytest.raises(ValueError, match='Did you mean "prm/pair_acc"'):
        log.write(0, {"prm/pair_accuracy": 0.5})
    assert read_metrics(log.path) == []


def write_iterations(log, iterations):
    for i in iterations:
        log.write(i, {"prm/loss": 1 / (i + 3), "env/success_rate": i / 7})


def test_a_resumed_log_equals_an_uninterrupted_one_byte_for_byte(tmp_path):
    whole, resumed = MetricsLog(tmp_path / "whole"), MetricsLog(tmp_path / "resumed")
    write_iterations(whole, range(6))
    write_iterations(resumed, range(5))
    write_iterations(MetricsLog(tmp_path / "resumed", resume_at=3), range(3, 6))
    assert resumed.path.read_bytes() == whole.path.read_bytes()


def test_a_log_without_a_resume_point_continues_after_the_last_complete_line(tmp_path):
    log = MetricsLog(tmp_path)
    write_iterations(log, range(2))
    with log.path.open("a") as out:
        out.write('{"iteration": 2, "prm/lo')
    write_iterations(MetricsLog(tmp_path), [2])
    assert [record["iteration"] for record in read_metrics(log.path)] == [0, 1, 2]


def test_a_torn_last_line_is_ignored_when_reading(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"iteration": 0, "prm/loss": 0.5}\n{"iteration": 1, "prm/l\xce')
    assert read_metrics(path) == [{"iteration": 0, "prm/loss": 0.5}]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"iteration": 1, "prm/l', "line 2: not a metrics record"),
        ("[1]", "whole number"),
        ('{"prm/loss": 1}', "whole number"),
        ('{"iteration": 1, "prm/loss": "low"}', "prm/loss is 'low', not a number"),
    ],
)
def test_another_broken_line_is_named(tmp_path, line, reason):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"iteration": 0}}\n{line}\n{{"iteration": 2}}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2") as error:
        read_metrics(path)
    assert reason in str(error.value)


def test_a_broken_file_is_not_touched_when_a_log_opens_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("nonsense\n")
    with pytest.raises(ConfigError):
        MetricsLog(tmp_path, resume_at=0)
    assert path.read_text() == "nonsense\n"


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl \(No such file"):
        read_metrics(tmp_path / "nowhere.jsonl")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose a run folder that can be written"):
        MetricsLog(tmp_path / "file" / "run")


def test_a_record_survives_the_death_of_its_writer(tmp_path):
    program = textwrap.dedent(
        f"""
        import os, signal
        from pathlib import Path
        from istar_trainer.metrics import MetricsLog
        log = MetricsLog(Path({str(tmp_path)!r}))
        log.write(0, {{"prm/loss": 0.5}})
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, env=dict(os.environ))
    assert done.returncode == -9
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"iteration": 0, "prm/loss": 0.5}]


def test_tensorboard_events_are_written_if_asked(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is an extra")
    with MetricsLog(tmp_path, tensorboard=True) as log:
        log.write(0, {"prm/loss": 0.5})
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    log.close()


def test_a_missing_tensorboard_says_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "torch.utils.tensorboard":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r'pip install "istar-trainer\[tensorboard\]"'):
        MetricsLog(tmp_path, tensorboard=True)


def names_of(warnings):
    return [text.partition(":")[0] for text in warnings]


def test_a_prm_without_gradient_is_named_only_when_there_are_pairs():
    assert names_of(warn_if_contradictory({"pairs/num": 4, "prm/grad_norm": 0.0}, [])) == [
        "prm-without-gradient"
    ]
    assert not warn_if_contradictory({"pairs/num": 0, "prm/grad_norm": 0.0}, [])
    assert not warn_if_contradictory({"pairs/num": 4, "prm/grad_norm": 1e-9}, [])
    assert not warn_if_contradictory({"pairs/num": 4}, [])


def test_a_prm_worse_than_chance_is_named_after_twenty_values():
    low = {"prm/pair_acc": 0.44}
    assert not warn_if_contradictory(low, [low] * 18)
    assert names_of(warn_if_contradictory(low, [low] * 19)) == ["prm-worse-than-chance"]
    assert not warn_if_contradictory({"prm/pair_acc": 0.65}, [low] * 19)  # mean 0.4505
    assert not warn_if_contradictory({"pairs/num": 3}, [low] * 20)


def test_iterations_without_a_pair_accuracy_do_not_count_towards_the_twenty():
    low, none = {"prm/pair_acc": 0.4}, {"prm/pair_acc": math.nan}
    assert not warn_if_contradictory(low, [low] * 18 + [none] * 10)
    assert warn_if_contradictory(low, [none] + [low] * 10 + [none] * 10 + [low] * 9)


def test_clipping_before_any_update_is_named():
    found = warn_if_contradictory({"ratio/first_minibatch_clip_frac": 0.046}, [])
    assert names_of(found) == ["clipped-before-update"]
    assert "0.046" in found[0]
    assert not warn_if_contradictory({"ratio/first_minibatch_clip_frac": 0.0}, [])


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("prm-overfits", {"prm/pair_acc_in_sample": 0.95, "prm/pair_acc": 0.54}, {"prm/pair_acc": 0.95}),
        ("prm-saturated", {"prm/saturation": 0.0005}, {"prm/saturation": 0.03}),
        ("credit-within-noise", {"step_reward/std": 1e-7, "adv/std_floor": 2e-7}, {"step_reward/std": 1e-5}),
        ("credit-at-chance", {"prm/fresh_state_auc": 0.49}, {"prm/fresh_state_auc": 0.75}),
        ("credit-of-states", {"credit/state_frac": 0.96}, {"credit/state_frac": 0.7}),
        ("credit-follows-length", {"prm/corr_len": -0.85}, {"prm/corr_len": 0.5}),
        ("credit-follows-time", {"prm/corr_step_index": 0.81}, {"prm/corr_step_index": 0.5}),
    ],
)
def test_a_trend_over_20_iterations_is_warned_of(name, bad, good):
    assert names_of(warn_if_contradictory(bad, [bad] * 19)) == [name]
    assert not warn_if_contradictory(bad, [bad] * 18)
    assert not warn_if_contradictory(bad, [{**bad, **good}] + [bad] * 18)
    assert not warn_if_contradictory({"pairs/num": 1}, [bad] * 20)


def test_the_page_explains_every_warning_that_can_be_raised():
    explained = re.findall(r"^### (.+)$", metrics_markdown(), re.MULTILINE)
    raised = {
        "prm-without-gradient",
        "clipped-before-update",
        "judge-drift",
        *(trend.warning for trend in _TRENDS),
    }
    assert set(explained) == raised


def test_every_warning_points_to_a_heading_of_the_page():
    low = {"prm/pair_acc": 0.1, "pairs/num": 1, "prm/grad_norm": 0.0, "ratio/first_minibatch_clip_frac": 1.0}
    found = warn_if_contradictory(low, [low] * 20)
    assert len(found) == 3
    for text in found:
        anchor = re.search(r"docs/metrics\.md#([a-z-]+)\.$", text)
        assert anchor is not None
        assert f"\n### {anchor[1]}\n" in DOCS.read_text(encoding="utf-8")
