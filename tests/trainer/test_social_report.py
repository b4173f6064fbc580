"""A result on the terminal, as Markdown and as JSON."""

import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console

from istar_envs.chat import Usage
from istar_envs.episode import Episode
from istar_judges import Budget
from istar_judges.agreement.statistics import Estimate
from istar_trainer.social import evaluation as module
from istar_trainer.social.dialogues import Dialogue, play
from istar_trainer.social.evaluation import evaluate_social
from istar_trainer.social.options import SocialEvalArgs
from istar_trainer.social.report import Evaluation
from istar_trainer.social.summary import Measure, Row

GOAL = Measure(Estimate(6.25, 5.5, 7.0, 8), worst=5.0, best=7.0)
SUCCESS = Measure(Estimate(0.5, num=8), worst=0.4, best=0.6)
NOTHING = Measure(Estimate(math.nan), worst=0.0, best=10.0)
ROWS = (
    Row("all", "both", 5, 10, {"policy": 1, "verdict timeout": 1}, GOAL, SUCCESS, 3),
    Row("all", 0, 5, 8, {}, GOAL, SUCCESS, 3),
    Row("craigslist_bargains", "both", 1, 2, {"policy": 2}, NOTHING, replace(NOTHING, best=1.0), 0),
)


def spent() -> Budget:
    budget = Budget(prompt_price=1.0, completion_price=2.0)
    for usage in (Usage(1000, 50), None):
        ticket = budget.reserve(500, 100)
        assert ticket is not None
        budget.settle(ticket, usage)
    return budget


RESULT = Evaluation({"policy": "a [red] model", "judge": "j|1"}, ROWS, {"policy": spent()}, ("Mind this.",))


def shown(width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, markup=False, highlight=False).print(RESULT.table())
    return out.getvalue()


def test_the_table_fits_a_terminal_and_tells_counts_intervals_and_bounds():
    text = shown()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "policy: a [red] model" in text
    assert "6.25 (5.50 … 7.00)" in text
    assert "[5.00 … 7.00]" in text
    assert "1 policy" in text
    assert "50%" in text
    assert "[40 … 60]" in text
    assert "Mind this." in text


def test_the_page_is_one_markdown_table():
    page = RESULT.markdown()
    assert "- judge: j\\|1" in page
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {8}
    assert rows[2] == (
        "| all | both | 5 | 10 | 1 policy<br>1 verdict timeout | 6.25 (5.50 … 7.00)<br>[5.00 … 7.00] "
        "| 50%<br>[40 … 60] |"
    )
    assert rows[3] == "| all | 0 | 5 | 8 | 0 | 6.25 (5.50 … 7.00) | 50% |"
    assert rows[4].endswith("| –<br>[0.00 … 10.00] | –<br>[0 … 100] |")
    assert "policy: 2 calls (1 counted in full), 1,500 + 150 tokens, cost 0.0018" in page


def test_what_is_unknown_is_null_in_json():
    record = json.loads(json.dumps(RESULT.to_dict(), allow_nan=False))
    assert record["rows"][2]["goal"]["mean"] == {"value": None, "low": None, "high": None, "num": 0}
    assert record["rows"][0]["failures"] == {"policy": 1, "verdict timeout": 1}
    assert record["spent"]["policy"]["calls_of_unknown_cost"] == 1
    assert record["policy"] == "a [red] model"


def test_an_interrupted_evaluation_keeps_what_is_over(tmp_path, monkeypatch):
    def interrupted(dialogues: list[Dialogue], _: object) -> None:
        play(dialogues[:3])
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "play", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate_social(SocialEvalArgs("expert", max_scenarios=2, out=tmp_path / "out"))
    lines = (tmp_path / "out" / "episodes.jsonl").read_text().splitlines()
    assert len([Episode.from_json(line) for line in lines]) == 3
