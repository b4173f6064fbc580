"""The self-contained report of a run folder."""

import base64
import io
import json
import random
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from synthetic_run import LEVEL, SOLUTION, credit_record, metrics_records, play, write_lines, write_run

from istar_envs.episode import ImageStore
from istar_envs.errors import ConfigError
from istar_envs.sokoban.render import image_of_text, png_bytes
from istar_trainer.report import build_report
from istar_trainer.report.records import CreditRecord
from istar_trainer.report.trajectories import choose

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Balanced(HTMLParser):
    """Checks that tags close in order; collects image addresses."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.sources = []
        self.tags = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "img":
            self.sources.append(dict(attrs)["src"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "run-7", iterations=12)


@pytest.fixture(scope="module")
def page(run_dir):
    return build_report(run_dir).read_text(encoding="utf-8")


def parsed(page):
    parser = Balanced()
    parser.feed(page)
    assert not parser.open
    return parser


def pixels(source):
    """Decode an image address."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))))


def test_the_report_is_one_well_formed_file_that_asks_for_nothing(page):
    document = parsed(page)
    assert "script" not in document.tags
    assert all(source.startswith("data:image/png;base64,") for source in document.sources)
    assert not re.search(r'(?:href|src)="(?!data:|#)|url\((?!#)|@import', page)
    assert "default-src 'none'" in page


def test_equal_runs_give_equal_reports(run_dir, page):
    assert build_report(run_dir).read_text(encoding="utf-8") == page
    assert not list(run_dir.glob("*.part"))


def test_the_headline_states_success_before_and_after_with_intervals_and_baselines(page):
    lead = page[page.index('class="lead"') : page.index("<h2>Curves")]
    rates = ("38.0%", "68.4%", "+30.4 points", "33.9–42.3", "64.2–72.3", "6.0%", "100.0%")
    for text in (*rates, "0.41 [0.37–0.45]", "random play"):
        assert text in lead
    assert lead.index("random play") < lead.index("before training") < lead.index("optimal play")


def test_the_facts_name_what_was_trained(page):
    for text in ("164,352 parameters", "rloo", "istar/Sokoban-v0", "<dd>0:48</dd>"):  # 12 iterations of 4 s
        assert text in page


def test_all_charts_are_drawn(page):
    assert page.count("<figure") == 9


def test_a_board_is_drawn_for_each_state_of_each_trajectory(page):
    # iterations 0 and 11, each with a solution of 5 steps and a failure of 15, and the final states
    sources = parsed(page).sources
    assert len(sources) == 2 * (5 + 1 + 15 + 1)
    assert np.array_equal(pixels(sources[0]), image_of_text(LEVEL, 16))


def test_text_of_a_model_is_escaped(page):
    assert "<b>jump" not in page
    assert "&lt;action&gt;&lt;b&gt;jump&lt;/b&gt;&lt;/action&gt;" in page  # the reply
    assert "&quot;&lt;b&gt;jump&lt;/b&gt;&quot; is no action" in page  # the reason


def test_bars_grow_from_the_middle_to_the_side_of_their_sign(tmp_path):
    run = write_run(tmp_path, iterations=2)
    record = credit_record(play(["down", "up"]), 0, 1, random.Random(0)) | {
        "outcome_advantage": -0.5,
        "steps": [
            {"implicit_reward": 0.02, "credit": 0, "step_advantage": 0, "advantage": 0.5},
            {"implicit_reward": -0.01, "credit": 0, "step_advantage": 0, "advantage": -0.5},
        ],
    }
    write_lines(run / "credits.jsonl", [record])
    text = build_report(run).read_text(encoding="utf-8")
    bars = re.findall(
        r'class="bar ([a-z-]+)"><span class="half"><i style="left:([\d.]+)%;width:([\d.]+)%', text
    )
    # outcome part −0.5 on a scale of 1.0 (the largest step part is 0.5 − −0.5 = 1)
    assert bars == [
        ("outcome", "25.0", "25.0"),
        ("step-part", "50.0", "50.0"),
        ("implicit", "50.0", "50.0"),
        ("outcome", "25.0", "25.0"),
        ("step-part", "50.0", "0.0"),
        ("implicit", "25.0", "25.0"),
    ]


def test_other_environments_are_shown_as_text(tmp_path):
    run = write_run(tmp_path, iterations=2)
    episode = play(["down"], env_id="istar/WebShop-v0")
    write_lines(run / "credits.jsonl", [credit_record(episode, 0, 1, random.Random(0))])
    text = build_report(run).read_text(encoding="utf-8")
    assert not parsed(text).sources
    assert f"<pre>{LEVEL}</pre>" in text


def test_the_last_board_inside_other_text_is_drawn(tmp_path):
    run = write_run(tmp_path, iterations=2)
    episode = play(["down"])
    earlier = LEVEL.replace("@", "-")
    text = f"Before:\n{earlier}\n\nYou see:\n{LEVEL}\n\nActions: up - down"
    step = replace(episode.transitions[0], observation=text)
    episode = replace(episode, transitions=(step,), final_observation="")
    write_lines(run / "credits.jsonl", [credit_record(episode, 0, 1, random.Random(0))])
    sources = parsed(build_report(run).read_text(encoding="utf-8")).sources
    assert [picture.tolist() for picture in map(pixels, sources)] == [image_of_text(LEVEL, 16).tolist()]


def test_stored_pictures_are_shown_and_missing_ones_are_named(tmp_path):
    run = write_run(tmp_path, iterations=2)
    png = png_bytes(image_of_text(LEVEL, 8))
    key = ImageStore(run / "images").put(png)
    episode = play(["down", "left"], env_id="istar/VisualSokoban-v0")
    steps = (
        replace(episode.transitions[0], observation="", image=key),
        replace(episode.transitions[1], observation="", image="f" * 64),
    )
    episode = replace(episode, transitions=steps, final_observation="")
    write_lines(run / "credits.jsonl", [credit_record(episode, 0, 1, random.Random(0))])
    text = build_report(run).read_text(encoding="utf-8")
    assert parsed(text).sources == ["data:image/png;base64," + base64.b64encode(png).decode()]
    assert "picture ffffffffffff is not in the run folder" in text


def test_an_episode_that_broke_before_its_first_step_is_shown(tmp_path):
    run = write_run(tmp_path, iterations=2)
    episode = replace(play([]), end="failed", final_observation="", error="boom")
    record = credit_record(episode, 0, 1, random.Random(0)) | {"outcome": None, "outcome_advantage": 0.0}
    write_lines(run / "credits.jsonl", [record])
    assert "no verdict" in build_report(run).read_text(encoding="utf-8")


def test_the_newest_and_the_oldest_iteration_are_chosen_with_both_outcomes():
    def record(iteration, trajectory_id, actions):
        made = credit_record(play(actions), iteration, trajectory_id, random.Random(0))
        return CreditRecord.model_validate_json(json.dumps(made))

    good, bad = SOLUTION.split(), ["left"]
    records = [
        record(iteration, number, actions)
        for iteration in (0, 5, 9)
        for number, actions in enumerate([bad, good, good, good, bad])
    ]
    chosen = [(r.iteration, r.trajectory_id) for r in choose(records)]
    assert chosen == [(9, 1), (9, 2), (9, 0), (9, 4), (0, 1), (0, 0)]
    assert len(choose(records[:1])) == 1


def test_a_contradiction_is_shown_once_with_its_first_iteration(tmp_path):
    run = write_run(tmp_path, iterations=6)
    records = metrics_records(6)
    for i in (2, 3, 4):
        records[i]["prm/grad_norm"] = 0.0
    write_lines(run / "metrics.jsonl", records)
    text = build_report(run).read_text(encoding="utf-8")
    assert re.findall(r'class="warning">([^:]*: [^:]*):', text) == ["iteration 2: prm-without-gradient"]


def test_evaluations_on_the_way_are_drawn_from_their_own_file_if_the_metrics_lack_them(tmp_path):
    run = write_run(tmp_path, iterations=5)
    before = build_report(run).read_text(encoding="utf-8")
    with (run / "eval.jsonl").open("a") as out:
        out.write(json.dumps({"iteration": 3, "split": "dev", "label": "dev", "success": 5, "n": 10}) + "\n")
    after = build_report(run).read_text(encoding="utf-8")
    assert "held-out tasks</text>" not in before
    assert "held-out tasks</text>" in after


@pytest.mark.parametrize("name", ["config.json", "env.json", "metrics.jsonl", "eval.jsonl", "credits.jsonl"])
def test_a_missing_file_is_said_in_its_section(tmp_path, name):
    run = write_run(tmp_path, iterations=2)
    (run / name).unlink()
    assert f"{name} is not in the run folder" in build_report(run).read_text(encoding="utf-8")


def test_an_empty_run_folder_still_gives_a_report(tmp_path):
    text = build_report(tmp_path).read_text(encoding="utf-8")
    parsed(text)
    assert "no evaluation both before and after" in text


def test_files_of_a_run_that_ended_at_once_are_enough(tmp_path):
    for name in ("metrics.jsonl", "eval.jsonl", "credits.jsonl"):
        (tmp_path / name).write_text("")
    text = build_report(tmp_path).read_text(encoding="utf-8")
    assert "No metric has a value yet" in text
    assert "No trajectory was recorded" in text


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", "{", "config.json"),
        ("env.json", "[]", "holds no JSON object"),
        ("metrics.jsonl", "{}\n", "line 1"),
        ("eval.jsonl", '{"iteration": 0}\n', "line 1: split"),
        (
            "eval.jsonl",
            '{"iteration":0,"split":"t","label":"x","success":5,"n":4}\n',
            "success=5 is more than n=4",
        ),
        ("credits.jsonl", "nonsense\n", "line 1"),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, content, reason):
    run = write_run(tmp_path, iterations=2)
    (run / name).write_text(content)
    with pytest.raises(ConfigError, match=re.escape(name)) as error:
        build_report(run)
    assert reason in str(error.value)
    assert not (run / "report.html").exists()


def test_credits_that_do_not_fit_their_steps_are_refused(tmp_path):
    run = write_run(tmp_path, iterations=2)
    record = credit_record(play(["down"]), 0, 1, random.Random(0)) | {"episode": asdict(play(["down", "up"]))}
    write_lines(run / "credits.jsonl", [record])
    with pytest.raises(ConfigError, match="1 credits for 2 transitions"):
        build_report(run)


def test_a_torn_last_line_is_ignored(tmp_path):
    run = write_run(tmp_path, iterations=2)
    for name in ("eval.jsonl", "credits.jsonl", "metrics.jsonl"):
        with (run / name).open("a") as out:
            out.write('{"iteration": 5, "sp')
    assert "+30.4 points" in build_report(run).read_text(encoding="utf-8")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no run folder at .*nowhere"):
        build_report(tmp_path / "nowhere")
