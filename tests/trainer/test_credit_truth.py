"""``istar credit-eval`` on a run folder, from the command line to the page."""

import hashlib
import json
import math
from functools import cache
from io import StringIO

import pytest
import torch
from rich.console import Console

from istar_trainer.cli import run
from istar_trainer.config_credits import (
    GigpoCredit,
    IstarCredit,
    MergedCredit,
    NoCredit,
    StepRewardCredit,
    SumCredit,
    WarmUp,
)
from istar_trainer.credit_truth.evaluation import NOISE, evaluate_credit, find_truth
from istar_trainer.credit_truth.methods import OUTCOME_ONLY, _ready_credit, methods_of
from istar_trainer.credit_truth.options import Options
from istar_trainer.credit_truth.report import score_table
from istar_trainer.credit_truth.session import open_run
from istar_trainer.credit_truth.statistics import MEASURES
from istar_trainer.credits import CREDITS

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("_restore_torch")]
SMALL = Options(groups=3, group_size=3, continuations=16)


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def report(finished_run, tmp_path_factory):
    """The report on a finished run, and whether the run's own files stayed as they were."""
    out = tmp_path_factory.mktemp("truth") / "report"
    before = contents(finished_run)
    code = run(["credit-eval", str(finished_run), "--groups", "3", "--group-size", "3", "--out", str(out)])
    return code, out, contents(finished_run) == before


@cache
def found_optimal(run_dir):
    return evaluate_credit(run_dir, Options(groups=3, group_size=3, truth="optimal"), lambda text: None)


def test_the_command_writes_a_report_and_leaves_the_run_alone(report):
    code, out, is_untouched = report
    assert code == 0
    assert is_untouched
    assert {path.name for path in out.iterdir()} == {"index.html", "scores.json", "scores.png", "steps.jsonl"}
    page = (out / "index.html").read_text()
    assert "<svg" in page
    assert "nan" not in page
    assert OUTCOME_ONLY in page


def test_every_method_is_compared_or_left_out_with_a_reason(report):
    scores = json.loads((report[1] / "scores.json").read_text())
    methods = {row["method"].removesuffix(" (this run)").split()[0] for row in scores["scores"]}
    known = {kind().type for kind in CREDITS} - {"none"}
    assert known - methods == set(scores["left_out"]) == {"prime"}
    assert "--prm-batches" in scores["left_out"]["prime"]
    assert scores["scores"][0]["method"] == OUTCOME_ONLY
    assert scores["scores"][-1]["method"] == NOISE
    for row in scores["scores"]:
        assert MEASURES.keys() <= row.keys()


def test_every_step_is_recorded_with_its_truth_and_all_credits(report):
    steps = [json.loads(line) for line in (report[1] / "steps.jsonl").read_text().splitlines()]
    scores = json.loads((report[1] / "scores.json").read_text())
    assert len(steps) == scores["steps"]
    for step in steps:
        assert len(step["credits"]) == len(scores["scores"])
        assert all(math.isfinite(value) for value in step["credits"].values())
        assert math.isfinite(step["advantage"])


def test_the_oracle_is_true_where_truth_is_optimal_play(finished_run):
    found = found_optimal(finished_run)
    oracle = {s.credit.part: s for s in found.scores if s.credit.method == "oracle"}
    assert oracle["step reward"].values["spearman"].value == pytest.approx(1.0)
    assert oracle["step reward"].values["good_vs_bad_auc"].value == 1.0
    assert found.truth.errors.max() == 0


def test_equal_seeds_find_equal_things(finished_run):
    again = evaluate_credit(finished_run, Options(groups=3, group_size=3, truth="optimal"), lambda text: None)
    first = found_optimal(finished_run)
    assert again.truth.advantages.tolist() == first.truth.advantages.tolist()
    for one, other in zip(again.scores, first.scores, strict=True):
        assert one.credit.values.tolist() == other.credit.values.tolist()


def test_reward_models_that_learn_first_are_compared_too(finished_run):
    found = evaluate_credit(
        finished_run, Options(groups=2, group_size=3, truth="optimal", prm_batches=1), lambda text: None
    )
    assert not found.left_out
    assert found.facts["prm_batches"] == 1


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_shows_every_score(finished_run, width):
    found = found_optimal(finished_run)
    console = Console(record=True, width=width, file=StringIO())
    console.print(score_table(found, width))
    text = console.export_text()
    for score in found.scores:
        assert f"{score.credit.method} {score.credit.part}" in text
    for measure in MEASURES.values():
        assert measure.title.split()[0] in text
    assert "prime is left out" in text
    assert ("0.50…0.50" in text) == (width == 140)


def test_what_cannot_be_computed_is_estimated(finished_run):
    notes = []
    with open_run(finished_run) as session:
        recorded = session.record(2, 2, seed=0)
        truth = find_truth(session, recorded, Options(max_error=-1.0, continuations=16), notes.append)
    assert any("has to be estimated" in text for text in notes)
    assert truth.source.startswith("estimated")
    assert len(truth.advantages) == len(recorded.batch)


def test_the_newest_checkpoint_is_opened_with_its_reward_model(finished_run):
    with open_run(finished_run) as session:
        assert session.run.iteration == session.config.iterations
        assert {"policy", "prm"} <= session.learned.keys()
        assert session.run.credit.learners == {}


def test_reward_models_come_from_the_checkpoint(finished_run):
    with open_run(finished_run) as session:
        credit = _ready_credit(session, session.config.credit, [])
        weights, start = credit.learners["prm"].snapshot(), session.parts.prm_learner().snapshot()
        for name, value in session.learned["prm"]["weights"].items():
            assert torch.equal(weights[name], value)
        assert any(not torch.equal(weights[name], start[name]) for name in start)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--groups", "1"], "--groups 1 is too few"),
        (["--group-size", "1"], "--group-size 1 is too few"),
        (["--prm-batches", "-1"], "--prm-batches -1 is too few"),
    ],
)
def test_numbers_that_leave_nothing_to_compare_are_refused(tmp_path, capsys, arguments, message):
    assert run(["credit-eval", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert run(["credit-eval", str(tmp_path / "nowhere")]) == 2
    assert "Give the folder that istar train wrote" in capsys.readouterr().err


def test_a_run_without_its_start_policy_is_refused(tmp_path, finished_run, capsys):
    (tmp_path / "config.json").write_bytes((finished_run / "config.json").read_bytes())
    assert run(["credit-eval", str(tmp_path)]) == 2
    assert "start policy" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{")
    assert run(["credit-eval", str(tmp_path)]) == 2
    assert "is not JSON" in capsys.readouterr().err


def test_methods_are_the_runs_own_istar_in_every_attribution_and_all_others():
    own = IstarCredit(
        step_adv_coef=0.3, attribution="shifted", center="policy_kl", warm_up=WarmUp(), gamma=0.5
    )
    methods = methods_of(own)
    assert next(iter(methods)) == "istar (this run)"
    assert methods["istar (this run)"] == own.model_copy(update={"warm_up": None})
    assert "istar shifted" not in methods, "the run's own"
    to_go = methods["istar shifted_to_go"]
    assert isinstance(to_go, StepRewardCredit)
    assert (to_go.step_adv_coef, to_go.gamma, to_go.warm_up) == (0.3, 0.5, None)
    others = {kind().type for kind in CREDITS} - {"none", "istar"}
    assert others <= methods.keys()


def test_a_run_with_other_credit_is_compared_with_istar_by_default():
    assert "istar as_published" in methods_of(NoCredit())
    assert methods_of(NoCredit())["istar as_published"] == IstarCredit()
    assert methods_of(GigpoCredit(gamma=0.5))["gigpo (this run)"] == GigpoCredit(gamma=0.5)
    assert methods_of(GigpoCredit(gamma=0.5))["gigpo"] == GigpoCredit()
    assert "merged" not in methods_of(MergedCredit()), "the run's own is the default"


def test_no_part_of_a_sum_keeps_silent():
    own = SumCredit(parts=(IstarCredit(warm_up=WarmUp()), GigpoCredit()))
    assert methods_of(own)["sum (this run)"] == SumCredit()
