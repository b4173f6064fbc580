"""Run folders of a comparison as training leaves them, with success drawn at given rates."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import yaml

from istar_envs.episode import Episode, Transition
from istar_trainer.compare.plan import Plan, PlannedRun, load_plan

NUM_TASKS = 40


def make_plan(folder: Path, methods: Mapping[str, dict], **changes) -> Plan:
    """Write a comparison of empty runs and read it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.yaml").write_text(yaml.safe_dump({"iterations": 10, "eval": {"every": 5}}))
    tree = {"base": "base.yaml", "methods": dict(methods), "out": str(folder / "out"), **changes}
    path = folder / "compare.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return load_plan(path)


def episode(task: int, success: bool, steps: int = 3) -> Episode:
    """One test episode."""
    transition = Transition("board", "<action>up</action>", "up", 0.0, True, "key")
    score = 1.0 if success else 0.25
    return Episode(
        "istar/Sokoban-v0", f"task-{task}", "Push.", (transition,) * steps, success, score, "terminated"
    )


def write_run(run: PlannedRun, solved: list[bool], dev: Mapping[int, int], *, commit: str = "abc") -> Path:
    """Write a finished run.

    Args:
        run: Which one.
        solved: Success on each test task after training; none is solved before.
        dev: Dev tasks solved of 10, by iteration.
    """
    folder = run.config.run_dir
    (folder / "episodes").mkdir(parents=True)
    (folder / "config.json").write_text(run.config.model_dump_json())
    (folder / "env.json").write_text(json.dumps({"commit": commit, "versions": {"torch": "2.13.0"}}))
    metrics = [{"iteration": i, "time/iteration_s": 2.0, "rollout/tokens_generated": 100.0} for i in range(2)]
    write_lines(folder / "metrics.jsonl", [{**metrics[0], "time/eval_s": 1.0}, metrics[1]])
    line = {"split": "test", "n": len(solved), "mean_steps": 3.0, "baselines": {}}
    points = [
        {"iteration": i, "split": "dev", "label": "dev", "success": wins, "n": 10} for i, wins in dev.items()
    ]
    before = {"iteration": 0, "label": "before", "success": 0, **line}
    after = {"iteration": 10, "label": "after", "success": sum(solved), **line}
    write_lines(folder / "eval.jsonl", [before, *points, after])
    for label, wins in (("before", [False] * len(solved)), ("after", solved)):
        write_lines(folder / f"episodes/{label}.jsonl", [episode(i, w).to_dict() for i, w in enumerate(wins)])
    (folder / "report.html").write_text("")
    return folder


def write_lines(path: Path, records: list[dict]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def draw_runs(plan: Plan, rates: Mapping[str, float], num_tasks: int = NUM_TASKS) -> None:
    """Write every run with test success drawn at its method's rate, and a dev curve that rises to it."""
    for run in plan.runs:
        generator = np.random.default_rng([run.seed, sum(map(ord, run.method))])
        rate = rates[run.method]
        solved = (generator.random(num_tasks) < rate).tolist()
        dev = {5: round(10 * rate / 2), 10: int(generator.binomial(10, rate))}
        write_run(run, solved, dev)
