"""What is read from finished runs, what follows from it, and what is written down."""

import json
import re

import numpy as np
import pytest
from compared_runs import NUM_TASKS, draw_runs, episode, make_plan, write_lines, write_run

from istar_envs.errors import ConfigError
from istar_trainer.compare.curves import draw_curves, method_curve
from istar_trainer.compare.pipeline import markdown, write_findings
from istar_trainer.compare.results import is_finished, read_result, read_results
from istar_trainer.compare.statistics import Signs
from istar_trainer.compare.summary import find, summarize
from istar_trainer.compare.tables import difference_table, markdown_table, method_table

TWO = {"base": {}, "new": {}}
DEV = {5: 2, 10: 6}


def plan_of_two(tmp_path, seeds=(0, 1), **changes):
    return make_plan(tmp_path, TWO, seeds=list(seeds), **changes)


def write_two(plan, base: str, new: str, dev=DEV):
    """Write all runs with tasks solved where the text of their method has a 1."""
    for run in plan.runs:
        write_run(run, [mark == "1" for mark in {"base": base, "new": new}[run.method]], dev)


def rows_of(plan):
    return {row.name: row for row in summarize(plan, read_results(plan))}


def test_a_run_is_read_task_by_task(tmp_path):
    plan = plan_of_two(tmp_path)
    write_run(plan.runs[0], [True, False, True, True], DEV)
    result = read_result(plan.runs[0])
    assert result.task_ids == ("task-0", "task-1", "task-2", "task-3")
    assert result.values["success"].tolist() == [1, 0, 1, 1]
    assert result.values["score"].tolist() == [1, 0.25, 1, 1]
    assert result.values["start"].tolist() == [0, 0, 0, 0]
    assert result.values["curve"].tolist() == [0.4]
    assert result.values["seconds"].tolist() == [5]
    assert result.values["tokens"].tolist() == [200]
    assert [axis.tolist() for axis in result.curve] == [[5, 10], [0.2, 0.6]]


def test_a_run_is_finished_with_its_last_evaluation_and_report(tmp_path):
    run = plan_of_two(tmp_path).runs[0]
    assert not is_finished(run.config)
    folder = write_run(run, [True], DEV)
    assert is_finished(run.config)
    lines = (folder / "eval.jsonl").read_text().splitlines(keepends=True)
    (folder / "eval.jsonl").write_text("".join(lines[:-1]))
    assert not is_finished(run.config)
    (folder / "eval.jsonl").write_text("".join(lines))
    (folder / "report.html").unlink()
    assert not is_finished(run.config)


def test_runs_that_were_tested_on_other_tasks_are_no_pairs(tmp_path):
    plan = plan_of_two(tmp_path, seeds=[0])
    write_two(plan, "11", "10")
    other = [episode(task, True).to_dict() for task in (7, 8)]
    write_lines(plan.runs[1].config.run_dir / "episodes/after.jsonl", other)
    with pytest.raises(ConfigError, match="new/0 was tested on other tasks than base/0"):
        read_results(plan)


def test_a_method_is_compared_with_the_first_on_each_task(tmp_path):
    plan = plan_of_two(tmp_path)
    write_two(plan, "1100", "0111")
    base, new = rows_of(plan).values()
    assert base.difference is None
    assert new.means["success"].value == 0.75
    assert new.difference.paired["success"].value == 0.25
    assert new.difference.paired["score"].value == pytest.approx(0.25 * 0.75)
    assert new.difference.signs == Signs(better=2, worse=1, equal=1)
    assert new.difference.seeds == (0, 1)


def test_each_run_has_its_wilson_interval_and_its_iterations_to_the_threshold(tmp_path):
    plan = plan_of_two(tmp_path, seeds=[0], threshold=0.6)
    write_two(plan, "1" * 8 + "00", "1" * 10)
    run = rows_of(plan)["base"].runs[0]
    assert (run.successes, run.num_tasks) == (8, 10)
    assert run.interval == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert run.iterations_to_threshold == 10


def test_seeds_that_never_reach_the_threshold_count_as_infinite(tmp_path):
    plan = make_plan(tmp_path, {"base": {}}, seeds=[0, 1, 2])
    for run, wins in zip(plan.runs, (5, 1, 9), strict=True):
        write_run(run, [True], {5: wins, 10: wins})
    assert rows_of(plan)["base"].iterations_to_threshold == (5.0, 2)
    plan = make_plan(tmp_path / "low", {"base": {}}, seeds=[0])
    write_run(plan.runs[0], [True], {5: 1})
    assert rows_of(plan)["base"].iterations_to_threshold == (float("inf"), 0)


def test_the_interval_of_a_share_stays_between_none_and_all(tmp_path):
    plan = plan_of_two(tmp_path)
    for run in plan.runs:
        write_run(run, [run.seed == 0] * 4, DEV)
    success = rows_of(plan)["base"].means["success"]
    assert (success.low, success.value, success.high) == (0.0, 0.5, 1.0)


def test_only_seeds_that_both_methods_finished_are_compared(tmp_path):
    plan = plan_of_two(tmp_path, seeds=[0, 1, 2])
    for run in plan.runs:
        if run.name not in ("base/1", "new/2"):
            write_run(run, [True, run.method == "new"], DEV)
    rows = rows_of(plan)
    assert [run.seed for run in rows["base"].runs] == [0, 2]
    assert [run.seed for run in rows["new"].runs] == [0, 1]
    assert rows["new"].difference.seeds == (0,)


def test_the_share_of_the_oracles_lead_is_reported_where_there_is_one(tmp_path):
    methods = {"base": {}, "half": {}, "base+oracle": {}}
    plan = make_plan(tmp_path, methods, seeds=[0, 1])
    solved = {"base": [], "half": [*range(20)], "base+oracle": [*range(40)]}
    dev = {"base": 2, "half": 3, "base+oracle": 6}
    for run in plan.runs:
        wins = dev[run.method]
        write_run(run, [task in solved[run.method] for task in range(NUM_TASKS)], {5: wins, 10: wins})
    rows = rows_of(plan)
    assert rows["half"].difference.headroom.value == 0.5
    assert rows["half"].difference.headroom.low < 0.5 < rows["half"].difference.headroom.high
    assert rows["base+oracle"].difference.headroom is None
    assert rows["half"].difference.curve_headroom.value == pytest.approx(0.25)
    assert rows["base+oracle"].difference.curve_headroom is None


def test_methods_that_cannot_be_told_apart_are_said_to_be_so(tmp_path):
    plan = make_plan(tmp_path, {"base": {}, "same": {}, "good": {}}, seeds=[0, 1, 2, 3])
    draw_runs(plan, {"base": 0.4, "same": 0.43, "good": 0.95})
    same, good, chance = find(plan, read_results(plan), {}, {}).remarks
    assert re.match(r"same cannot be told from base: [+-]\d+\.\d points on 4 seeds, bootstrap \[-", same)
    assert re.search(r"About \d+ seeds would show a difference of this size\.", same)
    assert good.startswith("good is better than base: +")
    assert chance.startswith("2 differences at 95%")
    assert "10%" in chance


def test_a_difference_that_only_one_interval_shows_is_called_uncertain(tmp_path):
    plan = plan_of_two(tmp_path)
    for run in plan.runs:
        num = 0 if run.method == "base" else (100, 40)[run.seed]
        write_run(run, [task < num for task in range(200)], DEV)
    (remark,) = find(plan, read_results(plan), {}, {}).remarks
    assert remark.startswith(
        "new may be better than base; only one interval excludes 0: +35.0 points on 2 seeds"
    )


def test_a_single_seed_is_remarked_upon(tmp_path):
    plan = plan_of_two(tmp_path, seeds=[0])
    write_two(plan, "1010", "1010")
    assert "speak of other tasks, not of other seeds" in find(plan, read_results(plan), {}, {}).remarks[-1]


def test_a_first_method_without_a_result_and_mixed_commits_are_remarked_upon(tmp_path):
    plan = plan_of_two(tmp_path)
    write_run(plan.runs[1], [True], DEV, commit="abc")
    write_run(plan.runs[3], [True], DEV, commit="def")
    first, mixed, *_ = find(plan, read_results(plan), {}, {}).remarks
    assert first == "base has no result, so nothing is compared with it."
    assert mixed.startswith("The runs were made by 2 different commits")


def test_the_band_of_a_curve_is_the_standard_error_over_seeds(tmp_path):
    plan = make_plan(tmp_path, {"base": {}}, seeds=[0, 1])
    write_run(plan.runs[0], [True], {5: 2, 10: 6})
    write_run(plan.runs[1], [True], {5: 4, 10: 6, 15: 9})
    iterations, mean, error = method_curve(read_results(plan))
    assert iterations.tolist() == [5, 10]
    assert mean == pytest.approx([0.3, 0.6])
    assert error == pytest.approx([0.1, 0.0])


def test_every_method_with_a_run_gets_a_line_of_its_own_look(tmp_path):
    names = [f"m{number}" for number in range(9)]
    plan = make_plan(tmp_path, {name: {} for name in names}, seeds=[0])
    for run in plan.runs[:-1]:
        write_run(run, [True], DEV)
    lines = draw_curves(read_results(plan), names).axes[0].lines
    assert [line.get_label() for line in lines] == names[:-1]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 8


def test_tables_hold_one_line_per_method(tmp_path):
    plan = plan_of_two(tmp_path)
    write_two(plan, "1100", "0111")
    rows = tuple(rows_of(plan).values())
    header, base, new = method_table(rows, 0.5)
    assert header[:4] == ("method", "runs", "start", "success")
    assert base[:4] == ("base", "2", "0.0%", "50.0%")
    assert new[7] == "10 (2/2)"
    header, line = difference_table(rows)
    assert (line[0], line[2], line[7]) == ("new", "+25.0", "2 / 1 / 1")
    assert len(header) == len(line)


def test_a_bar_in_a_name_does_not_break_the_table():
    assert markdown_table([("a", "b"), ("x|y", "1")]) == "| a | b |\n| --- | --: |\n| x\\|y | 1 |\n"


def test_everything_is_written_down(tmp_path):
    plan = plan_of_two(tmp_path)
    write_two(plan, "1100", "0111", dev={})
    results = read_results(plan)
    findings = find(plan, results, {"new/7": "killed <by> signal 9"}, {"commit": "abc"})
    out = plan.comparison.out
    write_findings(findings, out, draw_curves(results, list(TWO)))
    numbers = json.loads((out / "compare.json").read_text())
    assert numbers["config_hash"] == plan.config_hash
    assert numbers["methods"][1]["difference"]["signs"] == {"better": 2, "worse": 1, "equal": 1}
    assert numbers["methods"][0]["means"]["curve"]["value"] is None  # no evaluation on the way
    assert numbers["methods"][0]["iterations_to_threshold"] == {"median": None, "reached": 0}
    assert numbers["failures"] == {"new/7": "killed <by> signal 9"}
    text = (out / "compare.md").read_text()
    assert text == markdown(findings)
    assert "no result: new/7: killed <by> signal 9" in text
    page = (out / "compare.html").read_text()
    assert "killed &lt;by&gt; signal 9" in page
    assert "<svg" in page
    assert not re.search(r"(?:href|src)=\"(?!#|data:)|url\((?!#)|<script", page)
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "curves.svg").is_file()


def test_equal_runs_give_equal_files(tmp_path):
    plan = make_plan(tmp_path, TWO, seeds=[0, 1])
    draw_runs(plan, {"base": 0.4, "new": 0.6})
    pages = []
    for _ in range(2):
        results = read_results(plan)
        write_findings(find(plan, results, {}, {}), plan.comparison.out, draw_curves(results, list(TWO)))
        pages.append(
            [(plan.comparison.out / f"compare.{end}").read_bytes() for end in ("json", "md", "html")]
        )
    assert pages[0] == pages[1]
    assert np.isfinite(summarize(plan, results)[1].difference.student.low)
