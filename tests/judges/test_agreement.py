"""How far a judge can be trusted: the statistics against hand-made numbers, the report, the command."""

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bad_endpoint import bad_endpoint
from istar_envs.episode import write_episodes
from istar_envs.errors import ConfigError
from istar_judges import SotopiaVerifier, StubJudge, canary_episodes, read_outcomes, trajectory_ids
from istar_judges.agreement import formats, plots
from istar_judges.agreement.attacks import ATTACKS
from istar_judges.agreement.compare import compare
from istar_judges.agreement.raters import JudgeFile, audit, observe, read_labels
from istar_judges.agreement.statistics import (
    Bin,
    ClusterBootstrap,
    calibration,
    calibration_error,
    flip_rate,
    mean_of,
    partial_spearman,
    ranks,
    spearman,
    vote_noise,
    weighted_kappa,
)
from istar_judges.agreement.trust import Comparison, Trust, warnings_of
from istar_judges.cli import main
from istar_judges.dialogue import JudgedDialogue, dialogue_of
from istar_judges.outcome_files import JudgedEpisode
from istar_judges.pair_files import write_lines
from istar_judges.panel import Panel

# Statistics against numbers worked out by hand


def test_equal_values_share_the_mean_of_their_ranks():
    assert ranks([30.0, 10.0, 30.0, 20.0]).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_spearman_is_the_correlation_of_ranks():
    assert spearman([1, 2, 3, 4, 5], [1, 3, 2, 5, 4]) == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert spearman([1, 2, 3], [10, 100, 1000]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    # ranks 1.5 1.5 3 against 1 2 3: covariance 1.5, variances 1.5 and 2
    assert spearman([0, 0, 1], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))


def test_a_rater_who_always_says_the_same_has_no_correlation():
    assert math.isnan(spearman([5, 5, 5], [1, 2, 3]))
    assert math.isnan(spearman([1], [1]))
    assert math.isnan(weighted_kappa([5, 5], [5, 5]))


def test_quadratic_kappa_is_that_of_the_table():
    first, second = [0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 2, 0]
    # observed squared distances: 0 1 0 1 0 4 → 6/6; by chance over all 36 combinations of the margins: 48/36
    assert weighted_kappa(first, second) == pytest.approx(1 - 1 / (48 / 36))
    assert weighted_kappa(first, first) == 1.0
    assert weighted_kappa([0, 10], [10, 0]) == pytest.approx(-1.0)


def test_a_constant_shift_costs_kappa_but_no_rank_correlation():
    true = [0.0, 5.0, 10.0]
    shifted = [2.0, 7.0, 12.0]
    assert spearman(true, shifted) == pytest.approx(1.0)
    assert weighted_kappa(true, shifted) == pytest.approx(1 - 4 / (2 * 50 / 3 + 4))


def test_among_equals_a_correlation_by_way_of_a_third_disappears():
    dice = random.Random(0)
    third = [float(n % 10) for n in range(400)]
    first, second = ([t + dice.gauss(0, 1) for t in third] for _ in range(2))
    assert spearman(first, second) > 0.8
    assert abs(partial_spearman(first, second, third)) < 0.15
    assert partial_spearman(first, first, third) == pytest.approx(1.0)
    assert partial_spearman([1, 2, 3, 4], [2, 1, 4, 3], [7, 7, 7, 7]) == pytest.approx(0.6)
    assert math.isnan(partial_spearman(third, second, third))


def test_calibration_compares_means_bin_by_bin():
    table = calibration([0.0, 1.0, 2.0, 9.0, 10.0], [0.0, 3.0, 3.0, 5.0, 8.0], (0.0, 2.0, 6.0, 10.0))
    assert table == (
        Bin(0.0, 2.0, 2, 0.5, 1.5),
        Bin(2.0, 6.0, 1, 2.0, 3.0),
        Bin(6.0, 10.0, 2, 9.5, 6.5),
    )
    assert calibration_error(table) == pytest.approx((2 * 1 + 1 * 1 + 2 * 3) / 5)
    assert math.isnan(calibration_error(()))


def test_the_flip_rate_is_the_chance_that_two_votes_contradict_each_other():
    assert flip_rate([[7, 6]], 6) == 1.0
    assert flip_rate([[7, 7, 6]], 6) == pytest.approx(2 * 2 * 1 / (3 * 2))
    assert flip_rate([[7, 6], [9, 8, 7], [3]], 6) == 0.5
    assert math.isnan(flip_rate([[3]], 6))


def test_vote_noise_is_pooled_over_episodes():
    assert vote_noise([[1, 3], [5, 5, 5], [9]]) == pytest.approx(math.sqrt(2 / 3))
    assert math.isnan(vote_noise([[1], [2]]))


def test_an_interval_of_one_cluster_has_no_width_and_of_many_narrows():
    values = np.asarray([0.0, 10.0] * 50)
    known = np.ones(100, dtype=bool)
    whole = ClusterBootstrap(["a"] * 100).estimate(lambda i: mean_of(values[i]), known)
    single = ClusterBootstrap([str(n) for n in range(100)]).estimate(lambda i: mean_of(values[i]), known)
    pairs = ClusterBootstrap([str(n // 2) for n in range(100)]).estimate(lambda i: mean_of(values[i]), known)
    assert (whole.value, whole.low, whole.high) == (5.0, 5.0, 5.0)
    assert (pairs.low, pairs.high) == (5.0, 5.0)
    assert single.low == pytest.approx(5 - 1.96 * 0.5, abs=0.15)
    assert single.high == pytest.approx(5 + 1.96 * 0.5, abs=0.15)


def test_clusters_of_like_episodes_widen_the_interval():
    values = np.repeat([0.0, 10.0] * 10, 20)
    known = np.ones(400, dtype=bool)
    alike = ClusterBootstrap([str(n // 20) for n in range(400)]).estimate(lambda i: mean_of(values[i]), known)
    apart = ClusterBootstrap([str(n) for n in range(400)]).estimate(lambda i: mean_of(values[i]), known)
    assert alike.high - alike.low > 3 * (apart.high - apart.low)


def test_intervals_cover_the_truth_as_often_as_they_say():
    dice, hits = random.Random(1), 0
    for trial in range(200):
        values = np.asarray([dice.gauss(3.0, 1.0) for _ in range(40)])
        bootstrap = ClusterBootstrap([str(n) for n in range(40)], num_resamples=200, seed=trial)
        found = bootstrap.estimate(lambda i, v=values: mean_of(v[i]), np.ones(40, dtype=bool))
        hits += found.low <= 3.0 <= found.high
    assert 0.87 <= hits / 200 <= 0.99


def test_lists_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="equal length"):
        spearman([1, 2], [1, 2, 3])


@pytest.mark.property
@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=2, max_size=30), st.randoms())
@settings(max_examples=100, deadline=None)
def test_agreement_is_symmetric_and_knows_no_order(pairs, dice):
    shuffled = dice.sample(pairs, len(pairs))
    for statistic in (spearman, weighted_kappa):
        value = statistic(*zip(*pairs, strict=True))
        assert value == pytest.approx(statistic(*zip(*shuffled, strict=True)), nan_ok=True)
        assert value == pytest.approx(statistic(*zip(*(p[::-1] for p in pairs), strict=True)), nan_ok=True)
        assert math.isnan(value) or -1 - 1e-9 <= value <= 1 + 1e-9


# What is found out about judges with known weaknesses

EPISODES = dict(trajectory_ids(canary_episodes()))
GOALS = {
    (dialogue.background, dialogue.turns[2][1]): SotopiaVerifier().goals(episode)
    for episode in EPISODES.values()
    for dialogue in [dialogue_of(episode)]
}


def true_goal(dialogue: JudgedDialogue, seat: int) -> float:
    """The settled goal of a canary, attacked or not."""
    for (background, words), goals in GOALS.items():
        if background == dialogue.background and dialogue.turns[2][1].startswith(words[:-1]):
            assert not isinstance(goals, str)
            return goals[seat].goal
    raise KeyError(dialogue.turns)


def records_of(judge: StubJudge, *, samples: int = 2, attacks: bool = False) -> list[JudgedEpisode]:
    """What a panel of a judge says of both seats of every canary."""
    panel, records = Panel(judge, samples=samples), []
    for key, episode in EPISODES.items():
        dialogue = dialogue_of(episode)
        ballot = panel.judge_many([dialogue])[0]
        for seat in (0, 1):
            tally = panel.tally(dialogue, ballot, seat)
            records.append(JudgedEpisode.of(key, episode, tally.outcome, seat=seat, votes=tally.votes))
            for name, attack in ATTACKS.items() if attacks else ():
                attacked = attack(dialogue, seat)
                outcome = panel.tally(attacked, panel.judge_many([attacked])[0], seat).outcome
                records.append(JudgedEpisode.of(key, episode, outcome, seat=seat, attack=name))
    return records


def label(record: JudgedEpisode) -> str:
    """What a person says who agrees with a judge."""
    points = 10 * (record.score or 0.0)
    return json.dumps({"trajectory_id": record.trajectory_id, "seat": record.seat, "score": points})


def compared(*judges: tuple[str, list[JudgedEpisode]], num_resamples: int = 100) -> Comparison:
    files = [JudgeFile.of(name, records) for name, records in judges]
    verifier = SotopiaVerifier()
    keys = {key for file in files for key in (*file.scores, *file.failed)}
    observations = observe(EPISODES, keys, verifier)
    references = {"audit": observations.aligned(audit(EPISODES, verifier))}
    return compare(files, references, observations, num_resamples=num_resamples)


def trust_in(judge: StubJudge, **options: Any) -> Trust:
    return compared(("judge", records_of(judge, **options))).judges[0]


@pytest.fixture(scope="module")
def honest() -> Trust:
    return trust_in(StubJudge(rule_of_goal=true_goal), attacks=True)


def test_j11_an_honest_judge_agrees_with_the_audit_and_gets_no_warning(honest):
    row = honest.against[0]
    assert (row.second, row.spearman.num) == ("audit", 80)
    assert row.spearman.value > 0.99
    assert row.kappa.value > 0.99
    assert abs(row.difference.value) < 0.1
    assert honest.calibration_error("audit") < 0.2
    assert honest.flip_rate.value == honest.noise == honest.order_gap.value == 0.0
    assert all(abs(rise.value) < 1e-9 for rise in honest.rises.values())
    assert warnings_of(honest) == ()


def test_j1_the_bonus_of_being_presented_first_is_measured_in_points():
    found = trust_in(StubJudge(rule_of_goal=lambda *_: 5.0, first_bias=1.0), samples=1)
    assert (found.order_gap.value, found.order_gap.num) == (pytest.approx(1.0), 80)
    assert found.seat_gap.value == pytest.approx(0.0)
    assert any("presented first is worth +1.00" in text for text in warnings_of(found))


def test_j1_the_seat_gap_is_split_into_what_the_goals_explain_and_what_not():
    lenient = StubJudge(rule_of_goal=lambda d, seat: 0.5 * true_goal(d, seat) + 2.0 * (seat == 0))
    found, fair = trust_in(lenient), trust_in(StubJudge(rule_of_goal=true_goal))
    assert found.seat_gap_error.value - fair.seat_gap_error.value == pytest.approx(2.0, abs=0.5)


def test_j9_noise_and_flips_of_repeated_verdicts_are_measured():
    found = trust_in(StubJudge(rule_of_goal=lambda *_: 6.0, noise=1.5), samples=4)
    assert found.noise == pytest.approx(math.sqrt(1.5**2 + 1 / 12), rel=0.1)
    wins = 0.5 - 0.13  # P(6 + 1.5·z rounds to 7 or more)
    assert found.flip_rate.value == pytest.approx(2 * wins * (1 - wins), abs=0.06)
    assert any("contradicts itself" in text for text in warnings_of(found))


def test_j9_a_judge_that_drifts_shows_between_two_passes_over_the_canaries():
    before = records_of(StubJudge(rule_of_goal=lambda d, s: 0.8 * true_goal(d, s)))
    after = records_of(StubJudge(rule_of_goal=lambda d, s: 0.8 * true_goal(d, s) + 1.0))
    same, drifted = (compared(("then", before), ("now", x)).pairs[0] for x in (before, after))
    assert (same.difference.value, same.contradictions.value) == (0.0, 0.0)
    assert drifted.difference.high < -0.9
    assert drifted.spearman.value == pytest.approx(1.0)


def test_j11_pay_for_length_shows_at_equal_truth(honest):
    found = trust_in(StubJudge(rule_of_goal=true_goal, length_bias=15.0))
    assert found.length_given_truth.value > 0.3
    assert any("depends on length" in text for text in warnings_of(found))
    assert abs(honest.length_given_truth.value) <= 0.3


def test_j11_thirds_by_length_hold_all_observations_and_their_true_means(honest):
    assert sum(third.num for third in honest.thirds) == 80
    lows = [third.low for third in honest.thirds]
    assert lows == sorted(lows)
    assert all(abs(third.judged - third.true) < 0.3 for third in honest.thirds)


def test_j11_attacks_that_work_are_named_with_their_points():
    found = trust_in(StubJudge(rule_of_goal=lambda *_: 4.0, claim_bias=3.0), attacks=True)
    assert found.rises["claim"].value == pytest.approx(3.0)
    assert found.rises["pad"].value == 0.0
    assert [text for text in warnings_of(found) if "attack" in text] == [
        f"attack {name!r} raises the score by 3.00 points (more than 0.5)"
        for name in ("claim", "flatter", "inject")
    ]


def test_j8_failures_are_counted_by_cause_and_bound_the_mean():
    records = records_of(StubJudge(rule_of_goal=lambda *_: 5.0))
    for n, status in ((0, "timeout"), (1, "timeout"), (2, "refused"), (3, "budget")):
        records[n] = replace(records[n], status=status, score=None, success=None, votes=())
    found = compared(("judge", records)).judges[0]
    assert (found.num, dict(found.failures)) == (76, {"timeout": 2, "refused": 1, "budget": 1})
    assert found.mean.value == 5.0
    assert found.bounds == (pytest.approx(5 * 76 / 80), pytest.approx((5 * 76 + 40) / 80))
    more = [replace(r, status="invalid", score=None, success=None, votes=()) for r in records[:8]]
    worse = compared(("judge", more + records[8:])).judges[0]
    assert any("8 of 80 have no verdict" in text for text in warnings_of(worse))


def test_j10_judges_are_compared_with_each_other_and_with_people(tmp_path):
    good = records_of(StubJudge(rule_of_goal=true_goal))
    other = records_of(StubJudge(rule_of_goal=lambda d, s: 10.0 - true_goal(d, s)))
    labels = tmp_path / "people.jsonl"
    write_lines(labels, map(label, good[:30]))
    files = [JudgeFile.of("good", good), JudgeFile.of("other", other)]
    observations = observe(EPISODES, files[0].scores, SotopiaVerifier())
    references = {"people": observations.aligned(read_labels(labels))}
    found = compare(files, references, observations, num_resamples=50)
    assert [(row.first, row.second) for row in found.pairs] == [("good", "other")]
    assert found.pairs[0].spearman.value == pytest.approx(-1.0, abs=0.01)
    people = [judge.against[0] for judge in found.judges]
    assert [(row.kappa.num, round(row.spearman.value)) for row in people] == [(30, 1), (30, -1)]


def test_several_labels_of_one_seat_are_averaged_and_broken_ones_named(tmp_path):
    path = tmp_path / "people.jsonl"
    lines = [
        '{"trajectory_id": "a", "seat": 0, "score": 4, "annotator": "x"}',
        '{"trajectory_id": "a", "seat": 0, "score": 7}',
    ]
    write_lines(path, lines)
    assert read_labels(path) == {("a", 0): 5.5}
    write_lines(path, [*lines, '{"trajectory_id": "a", "seat": 0, "score": 11}'], overwrite=True)
    with pytest.raises(ConfigError, match=r"line 3: not a human label: score: .*less than or equal to 10"):
        read_labels(path)


def test_a_file_of_outcomes_is_of_one_judge_and_says_everything_once():
    records = records_of(StubJudge())
    with pytest.raises(ConfigError, match=r"outcomes x: 2 judges in one file"):
        JudgeFile.of("x", [*records, replace(records[0], source="other", seat=5)])
    with pytest.raises(ConfigError, match=r"two outcomes of trajectory .*, seat 0"):
        JudgeFile.of("x", [*records, records[0]])
    with pytest.raises(ConfigError, match=r"0 judges in one file \(none\)"):
        JudgeFile.of("x", [])


def test_scenarios_are_the_clusters():
    assert compared(("judge", records_of(StubJudge()))).num_scenarios == 8


def test_the_same_numbers_come_out_every_time():
    records = records_of(StubJudge(rule_of_goal=true_goal, noise=1.0))
    assert repr(compared(("j", records))) == repr(compared(("j", records[::-1])))


# The report


def test_numbers_are_written_for_people():
    assert [formats.number(x) for x in (0.0, -0.001, 1.234, math.nan)] == ["0.00", "0.00", "1.23", "–"]
    assert [formats.number(x, sign=True) for x in (0.5, -0.5, 0.0)] == ["+0.50", "−0.50", "0.00"]
    assert formats.causes({"timeout": 2, "refused": 1}) == "1 refused, 2 timeout"


def test_the_terminal_report_lists_judges_pairs_and_warnings():
    good = records_of(StubJudge(rule_of_goal=true_goal))
    bad = records_of(StubJudge(rule_of_goal=lambda *_: 5.0, first_bias=3.0))
    text = formats.terminal_report(compared(("good", good), ("bad", bad)))
    assert text.startswith("80 observations in 8 scenarios")
    assert re.search(r"^good +80 +0 ", text, re.MULTILINE)
    assert all(pair in text for pair in ("good / audit", "bad / audit", "good / bad"))
    assert "! bad: being presented first is worth +3.00 points" in text
    assert "! good" not in text


@pytest.fixture(scope="module")
def outcome_lines():
    """Outcomes of two judges on the canaries, as files hold them."""
    good, bad = StubJudge(rule_of_goal=true_goal, noise=0.5), StubJudge(claim_bias=4.0)
    return {
        name: [record.to_json() for record in records_of(judge, attacks=True)]
        for name, judge in {"good": good, "<bad>": bad}.items()
    }


@pytest.fixture
def scored(tmp_path, outcome_lines):
    """A folder with a file of episodes and the outcomes of two judges on them."""
    write_episodes(tmp_path / "episodes.jsonl", canary_episodes())
    for name, lines in outcome_lines.items():
        write_lines(tmp_path / f"{name}.jsonl", lines)
    return tmp_path


def run(folder: Path, *options: str) -> int:
    outcomes = sorted(str(path) for path in folder.glob("*.jsonl") if path.stem != "episodes")
    files = [part for path in outcomes for part in ("--outcomes", path)]
    return main(["agreement", str(folder / "episodes.jsonl"), *files, "--resamples", "50", *options])


def test_the_command_writes_a_page_that_stands_alone(scored, capsys):
    assert run(scored, "--out", str(scored / "report")) == 0
    out, err = capsys.readouterr()
    assert "good / audit" in out
    assert err == f"report: {scored / 'report' / 'report.html'}\n"
    page = (scored / "report" / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 6
    assert not re.search(r"https?://(?!www\.w3\.org)|<script|<link rel=.stylesheet|<img", page)
    assert "<bad>" not in page
    assert "&lt;bad&gt;" in page
    assert not re.search(r"\$[a-z]", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    names = {path.name for path in (scored / "report").iterdir()}
    assert {"agreement.json", "good-against-audit.png", "good-length.png", "good-attacks.png"} <= names


def test_the_command_writes_all_numbers_as_json(scored):
    assert run(scored, "--out", str(scored / "report")) == 0
    record = json.loads((scored / "report" / "agreement.json").read_text())
    bad, good = record["judges"]
    assert (record["num_scenarios"], record["references"], good["name"]) == (8, ["audit"], "good")
    assert good["against"][0]["spearman"]["value"] > 0.9
    assert bad["rises"]["claim"]["value"] > 2
    assert good["warnings"] == []


def test_a_report_is_replaced_only_when_asked(scored, capsys):
    assert run(scored, "--out", str(scored / "report")) == 0
    assert run(scored, "--out", str(scored / "report")) == 2
    assert "report exists already" in capsys.readouterr().err
    assert run(scored, "--out", str(scored / "report"), "--overwrite") == 0


def test_equal_files_give_equal_pages(scored):
    pages = []
    for name in ("a", "b"):
        assert run(scored, "--out", str(scored / name)) == 0
        pages.append((scored / name / "report.html").read_bytes())
    assert pages[0] == pages[1]


def test_people_are_a_reference_too(scored, capsys):
    records = read_outcomes(scored / "good.jsonl")
    labels = scored / "people.json"
    write_lines(
        labels,
        [
            json.dumps({"trajectory_id": r.trajectory_id, "seat": r.seat, "score": 10 * (r.score or 0)})
            for r in records
            if r.attack is None
        ],
    )
    assert run(scored, "--human", str(labels), "--out", str(scored / "report")) == 0
    assert "audit / people" in capsys.readouterr().out
    assert (scored / "report" / "good-against-people.png").exists()


def test_plots_without_matplotlib_say_what_to_install(scored, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert run(scored, "--out", str(scored / "report")) == 2
    assert 'Install "istar-judges[report]"' in capsys.readouterr().err
    assert run(scored) == 0


def test_outcomes_of_other_episodes_are_refused(scored, tmp_path, capsys):
    other = tmp_path / "other.jsonl"
    write_episodes(other, [replace(canary_episodes()[0], task="Another task.")])
    assert main(["agreement", str(other), "--outcomes", str(scored / "good.jsonl")]) == 2
    assert "none of the outcomes is about an episode of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [([], "give --outcomes once for each judge"), (["--resamples", "0"], "must be 1 or more (got 0)")],
)
def test_wrong_options_end_in_one_line(capsys, options, message):
    assert main(["agreement", "canaries", *options]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_nothing_to_draw_is_no_picture():
    found = compared(("judge", records_of(StubJudge())))
    blank = replace(found, scores={**found.scores, "audit": np.full(80, np.nan)})
    assert plots.draw_agreement(blank, blank.judges[0], "audit") is None
    assert plots.draw_attacks(blank.judges[0]) is None


# From a model to a report, over the wire


def test_a_model_is_scored_under_attack_in_both_orders_and_compared_offline(tmp_path, capsys):
    cache, out = tmp_path / "verdicts.sqlite", tmp_path / "model.jsonl"
    asked = ["--model", "m", "--seats", "both", "--both-orders", "--samples", "1", "--cache", str(cache)]
    answer = {seat: {"goal": {"reason": "so", "score": 7}} for seat in ("A", "B")}
    num_calls = 40 * 2 * (1 + 2 * len(ATTACKS))
    with bad_endpoint(script=["=" + json.dumps(answer)] * num_calls) as endpoint:
        command = ["score", "canaries", *asked, "--attacks", "--base-url", endpoint.url, "--out", str(out)]
        assert main(command) == 0
    assert len(endpoint.requests) == num_calls
    records = read_outcomes(out)
    assert len(records) == 40 * 2 * (1 + len(ATTACKS))
    assert {(record.score, len(record.votes)) for record in records} == {(0.7, 2)}
    again = tmp_path / "again.jsonl"
    assert main(["score", "canaries", *asked, "--attacks", "--offline", "--out", str(again)]) == 0
    assert again.read_text() == out.read_text()
    capsys.readouterr()
    assert main(["agreement", "canaries", "--outcomes", str(out), "--resamples", "20"]) == 0
    assert "! model: agrees little with audit" in capsys.readouterr().out


def test_only_the_seat_that_was_played_is_scored_by_default(tmp_path):
    out = tmp_path / "model.jsonl"
    answer = {seat: {"goal": {"reason": "so", "score": 7}} for seat in ("A", "B")}
    with bad_endpoint(script=["=" + json.dumps(answer)] * 40) as endpoint:
        assert main(["score", "canaries", "--model", "m", "--base-url", endpoint.url, "--out", str(out)]) == 0
    seats = [record.seat for record in read_outcomes(out)]
    assert seats == [dialogue_of(episode).seat for episode in canary_episodes()]


def test_offline_needs_a_cache(capsys):
    assert main(["score", "canaries", "--model", "m", "--offline"]) == 2
    assert "name its file with --cache" in capsys.readouterr().err


def test_the_verifier_scores_the_canaries_from_the_shell(capsys):
    assert main(["score", "canaries", "--scale", "return"]) == 0
    out, err = capsys.readouterr()
    scores = [json.loads(line)["score"] for line in out.splitlines()]
    assert scores == [episode.score for episode in canary_episodes()]
    assert err.startswith("40 episodes: 40 ok;")
