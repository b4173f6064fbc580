"""Curves of a run as files and as page elements."""

import math
import re

import pytest
from PIL import Image
from synthetic_run import metrics_records

from istar_envs.errors import ConfigError
from istar_trainer.metrics import METRICS
from istar_trainer.plots import CHARTS, INK, draw_chart, inline_svg, plot_run

CHART = {chart.name: chart for chart in CHARTS}


def lines_of(chart, records):
    """Return label -> (x, y) of what is drawn."""
    axes = draw_chart(chart, records).axes[0]
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}


def test_every_curve_draws_a_known_metric_and_curves_of_a_chart_share_their_unit():
    for chart in CHARTS:
        assert {METRICS[curve.metric].unit for curve in chart.curves} == {chart.unit}


def test_every_chart_of_a_whole_run_is_saved_twice(tmp_path):
    files = plot_run(metrics_records(5), tmp_path / "plots")
    assert [file.name for file in files] == [
        f"{chart.name}.{end}" for chart in CHARTS for end in ("png", "svg")
    ]
    with Image.open(files[0]) as picture:
        assert picture.size[0] > 600
    assert files[1].read_text().startswith("<?xml")


def test_equal_records_give_equal_files(tmp_path):
    names = ("iteration", "env/success_rate", "rollout/trajectories")
    records = [{name: record[name] for name in names} for record in metrics_records(5)]
    for folder in ("a", "b"):
        plot_run(records, tmp_path / folder)
    for name in ("success.svg", "success.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_chart_without_values_is_left_out(tmp_path):
    assert plot_run([], tmp_path) == []
    files = plot_run([{"iteration": 0, "policy/entropy": 0.5, "prm/loss": math.nan}], tmp_path)
    assert [file.name for file in files] == ["entropy.png", "entropy.svg"]


def test_a_curve_has_the_values_that_are_finite_at_their_iterations():
    records = [
        {"iteration": 0, "policy/entropy": 0.9},
        {"iteration": 1, "policy/entropy": math.nan},
        {"iteration": 2},
        {"iteration": 3, "policy/entropy": 0.7},
    ]
    assert lines_of(CHART["entropy"], records) == {"entropy": ([0, 3], [0.9, 0.7])}


def test_the_success_band_is_the_wilson_interval_of_the_trajectories():
    records = [{"iteration": i, "env/success_rate": 0.8, "rollout/trajectories": 10.0} for i in range(2)]
    band = draw_chart(CHART["success"], records).axes[0].collections[0]
    heights = band.get_paths()[0].vertices[:, 1]
    assert (min(heights), max(heights)) == pytest.approx((0.49016, 0.94331), abs=1e-5)  # Wilson, 8 of 10


def test_the_band_of_step_rewards_is_one_standard_deviation():
    one = {"step_reward/mean_success": 0.1, "step_reward/std_success": 0.3}
    records = [{"iteration": i, **one} for i in range(2)]
    heights = draw_chart(CHART["step_reward"], records).axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (min(heights), max(heights)) == pytest.approx((-0.2, 0.4))


def test_an_element_of_a_page_brings_no_clashing_ids_styles_or_addresses():
    svg = inline_svg(CHART["success"], metrics_records(12), {INK: "var(--soft)"})
    assert svg.startswith('<svg role="img" ')
    assert svg.rstrip().endswith("</svg>")
    assert "var(--soft)" in svg
    assert INK not in svg
    assert not re.search(r"<style|<metadata|font-family|DOCTYPE", svg)
    assert not re.search(r'id="[A-Za-z0-9.]+_\d+"', svg)
    assert not re.search(r"(?:href|src)=\"(?!#)|url\((?!#)", svg)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write plots to"):
        plot_run(metrics_records(2), tmp_path / "file" / "plots")
