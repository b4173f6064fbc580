"""Canaries: fixed episodes with known results that show when a judge is not the one it was."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from operator import sub

import pytest

from bad_endpoint import bad_endpoint
from istar_envs.errors import ConfigError
from istar_judges import Panel, ScoreRule, StubJudge, canary_episodes, read_outcomes
from istar_judges.cli import main
from istar_judges.dialogue import JudgedDialogue, dialogue_of
from istar_judges.drift import CanaryReport, canary_report, judge_canaries
from istar_judges.fakes import deal_rule
from istar_judges.outcome_files import JudgedEpisode


def judged(**options) -> tuple[JudgedEpisode, ...]:
    return judge_canaries(Panel(StubJudge(**options), samples=1, both_orders=False))


def raised_by(points: float) -> Callable[[JudgedDialogue, int], float]:
    return lambda dialogue, seat: deal_rule(dialogue, seat) + points


def shifted(records: tuple[JudgedEpisode, ...], by: float, every: int = 1) -> tuple[JudgedEpisode, ...]:
    """Move the score of every so many records; the successes follow."""
    return tuple(
        replace(r, score=r.score + by, success=r.score + by > 0.6) if n % every == 0 else r
        for n, r in enumerate(records)
    )


def test_a_pass_holds_every_canary_from_the_seat_it_was_played_from():
    records = judged()
    assert len(records) == 40
    assert {record.seat for record in records} == {0, 1}
    assert {record.status for record in records} == {"ok"}
    assert all(record.votes for record in records)


def test_a_judge_that_says_what_is_settled_has_no_error():
    records = [
        JudgedEpisode.of(r.trajectory_id, e, replace(r.outcome, score=e.score, success=e.success))
        for r, e in zip(judged(), canary_episodes(), strict=True)
    ]
    report = canary_report(records)
    assert (report.num, report.num_failed, report.error, report.contradicted_frac) == (40, 0, 0.0, 0.0)


def test_error_and_contradictions_are_those_of_the_judge():
    report = canary_report(judged())  # 8 for a deal, 2 without one
    told = [deal_rule(dialogue_of(e), dialogue_of(e).seat or 0) for e in canary_episodes()]
    true = [10 * e.score for e in canary_episodes()]
    assert {2.0, 8.0} == set(told)
    assert report.error == pytest.approx(sum(map(abs, map(sub, told, true))) / 40)
    assert report.contradicted_frac == sum((a > 6) != (b > 6) for a, b in zip(told, true, strict=True)) / 40
    assert math.isnan(report.shift)
    assert report.findings == ()


def test_a_success_is_told_by_the_thresholds_of_the_judge():
    rule = ScoreRule(threshold=1.0)
    records = judge_canaries(Panel(StubJudge(rule=rule), samples=1, both_orders=False))
    assert {record.success for record in records} == {True}
    report = canary_report(records, rule=rule)
    assert report.contradicted_frac == pytest.approx(
        sum(10 * episode.score <= 1.0 for episode in canary_episodes()) / 40
    )


def test_another_dimension_than_the_goal_has_no_truth_but_can_drift():
    rule = ScoreRule("knowledge", divisor=5.0, threshold=-1.0)
    judge = StubJudge("sotopia-v1", rule=rule)
    records = judge_canaries(Panel(judge, samples=1, both_orders=False))
    report = canary_report(shifted(records, 0.2), records, rule=rule)
    assert math.isnan(report.error)
    assert report.shift == pytest.approx(1.0)  # 0.2 of 5 points


def test_the_same_judge_has_not_moved():
    report = canary_report(judged(), judged())
    assert (report.shift, report.shift_error, report.changed_frac) == (0.0, 0.0, 0.0)
    assert report.findings == ()


def test_j9_a_judge_that_became_kinder_is_found():
    report = canary_report(judged(rule_of_goal=raised_by(1.0)), judged())
    assert (report.shift, report.shift_error) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-9))
    assert report.findings == ("scores moved by +1.00 points on average (more than 0.5)",)


def test_a_judge_that_moves_both_ways_is_found_by_its_changed_verdicts():
    records = judged()
    swapped = tuple(
        replace(r, score=0.2 if r.success else 0.8, success=not r.success) if n in (0, 3, 4, 8, 9, 13) else r
        for n, r in enumerate(records)
    )
    report = canary_report(swapped, records)
    assert report.changed_frac == pytest.approx(6 / 40)
    assert report.findings[-1] == "15% of the verdicts on success changed (more than 10%)"


def test_the_standard_error_is_that_of_the_mean_change():
    records = judged()
    report = canary_report(shifted(records, 0.4, every=2), records)
    assert report.shift == pytest.approx(2.0)
    assert report.shift_error == pytest.approx(math.sqrt(40 * 4 / 39) / math.sqrt(40))  # 0 and 4, half each


def test_noise_alone_is_seldom_called_a_shift():
    passes = [judged(noise=1.0, seed=seed) for seed in range(21)]
    reports = [canary_report(now, then) for then, now in pairwise(passes)]
    assert sum("moved" in " ".join(report.findings) for report in reports) <= 2


def test_canaries_without_a_verdict_are_counted_and_in_no_mean():
    records = judged()
    silent = tuple(
        replace(r, status="timeout", score=None, success=None, votes=()) if n < 4 else r
        for n, r in enumerate(records)
    )
    report = canary_report(silent, records)
    assert (report.num, report.num_failed, report.failed_frac) == (36, 4, 0.1)
    assert (report.shift, report.changed_frac) == (0.0, 0.0)
    assert report.findings == ("4 of 40 have no verdict (more than 5%)",)
    nothing = canary_report([r for r in silent if r.status != "ok"])
    assert math.isnan(nothing.error)


def test_two_of_forty_may_be_silent():
    assert CanaryReport(38, 2, 0.0, 0.0).findings == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": "other"}, "the earlier pass is by other, this one by panel/1"),
        ({"trajectory_id": "x"}, "not about the same canaries"),
    ],
)
def test_a_pass_that_cannot_be_compared_is_refused(change, message):
    records = judged()
    earlier = tuple(replace(r, **change) for r in records)
    with pytest.raises(ConfigError, match=message):
        canary_report(records, earlier)


# From the shell


def test_a_first_pass_makes_the_reference_and_later_ones_are_compared(tmp_path, capsys):
    reference = tmp_path / "reference.jsonl"
    with bad_endpoint() as endpoint:
        command = ["canaries", str(reference), "--model", "m", "--base-url", endpoint.url]
        assert main(command) == 0
        first = capsys.readouterr()
        assert f"first pass: {reference}" in first.err
        assert "40 canaries, 0 without a verdict" in first.out
        assert "moved" not in first.out
        kept = reference.read_bytes()
        assert main([*command, "--out", str(tmp_path / "today.jsonl")]) == 0
        assert len(endpoint.requests) == 80
    second = capsys.readouterr()
    assert "moved since the reference        0.00 ± 0.00 points, 0% of successes changed" in second.out
    assert second.err == ""
    assert (tmp_path / "today.jsonl").read_bytes() == kept == reference.read_bytes()


def test_drift_is_told_with_code_one(tmp_path, capsys):
    reference = tmp_path / "reference.jsonl"
    with bad_endpoint() as endpoint:
        command = ["canaries", str(reference), "--model", "m", "--base-url", endpoint.url]
        assert main(command) == 0
        records = [json.loads(line) for line in reference.read_text().splitlines()]
        lower = [{**r, "score": r["score"] - 0.1, "votes": []} for r in records]
        reference.write_text("".join(json.dumps(r) + "\n" for r in lower))
        capsys.readouterr()
        assert main(command) == 1
    assert "drift: scores moved by +1.00 points on average" in capsys.readouterr().err


def test_a_silent_endpoint_makes_no_reference(tmp_path, capsys):
    reference = tmp_path / "reference.jsonl"
    with bad_endpoint(share=1.0, faults=("refusal",)) as endpoint:
        assert main(["canaries", str(reference), "--model", "m", "--base-url", endpoint.url]) == 2
    told = capsys.readouterr().err
    assert "40 of 40 canaries have no verdict" in told
    assert "refused" in told
    assert not reference.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [([], "name one with --model"), (["--model", "m", "--rubric", "gaol-v1"], 'Did you mean "goal-v1"')],
)
def test_what_cannot_be_judged_is_explained(tmp_path, capsys, words, message):
    assert main(["canaries", str(tmp_path / "reference.jsonl"), *words]) == 2
    assert message in capsys.readouterr().err


def test_another_judge_is_not_compared_with_the_reference(tmp_path, capsys):
    reference = tmp_path / "reference.jsonl"
    with bad_endpoint() as endpoint:
        command = ["canaries", str(reference), "--base-url", endpoint.url, "--model"]
        assert main([*command, "one"]) == 0
        assert main([*command, "other"]) == 2
    assert "Compare a judge with itself" in capsys.readouterr().err
    assert len(read_outcomes(reference)) == 40
