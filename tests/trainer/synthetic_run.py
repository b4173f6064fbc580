"""A run folder as training writes it, with made-up but plausible numbers, for the tests of what reads it."""

import json
import math
import random
from dataclasses import asdict
from pathlib import Path

from istar_envs.episode import Episode, Transition
from istar_envs.sokoban.board import ACTION_NAMES, Layout, State, is_solved, move, to_text

LEVEL = "######\n#-@--#\n#-$--#\n#----#\n#--.-#\n######"
SOLUTION = "down down left down right"  # pushes the box down twice, then right onto the target


def parse(level: str) -> tuple[Layout, State]:
    """Read a small XSB board."""
    rows = level.split("\n")
    width = len(rows[0])
    cells = {
        mark: sum(1 << i for i, c in enumerate("".join(rows)) if c in marks)
        for mark, marks in {"walls": "#", "targets": ".*+", "boxes": "$*", "player": "@+"}.items()
    }
    layout = Layout(len(rows), width, cells["walls"], cells["targets"])
    return layout, State(cells["boxes"], cells["player"].bit_length() - 1)


def play(actions: list[str], env_id: str = "istar/Sokoban-v0") -> Episode:
    """Play actions on the level; a word that is no action becomes an invalid step."""
    layout, state = parse(LEVEL)
    transitions = []
    for word in actions:
        before = to_text(layout, state)
        valid = word in ACTION_NAMES
        if valid:
            state = move(layout, state, ACTION_NAMES.index(word))
        transitions.append(
            Transition(
                observation=before,
                reply=f"<action>{word}</action>",
                action=word if valid else None,
                reward=-0.1,
                valid=valid,
                state_key=before,
                invalid_reason=None if valid else f'"{word}" is no action',
            )
        )
    solved = is_solved(layout, state)
    return Episode(
        env_id=env_id,
        task_id="level-17",
        task="Push every box onto a target.",
        transitions=tuple(transitions),
        success=solved,
        score=float(solved),
        end="terminated" if solved else "truncated",
        final_observation=to_text(layout, state),
    )


def credit_record(
    episode: Episode, iteration: int, trajectory_id: int, rng: random.Random
) -> dict[str, object]:
    """Give each step of an episode made-up credit around the episode's outcome."""
    sign = 1.0 if episode.success else -1.0
    outcome_advantage = 0.8 * sign
    steps = []
    for _ in episode.transitions:
        reward = rng.gauss(0.01 * sign, 0.02)
        step_advantage = reward / 0.02
        steps.append(
            {
                "implicit_reward": reward,
                "credit": reward,
                "step_advantage": step_advantage,
                "advantage": outcome_advantage + 0.3 * step_advantage,
            }
        )
    return {
        "iteration": iteration,
        "group_id": 5,
        "trajectory_id": trajectory_id,
        "outcome": episode.score,
        "outcome_advantage": outcome_advantage,
        "episode": asdict(episode),
        "steps": steps,
    }


def metrics_records(iterations: int) -> list[dict[str, float]]:
    """Make the metrics of a run that learns, with an evaluation every tenth iteration."""
    rng = random.Random(0)
    records = []
    for i in range(iterations):
        rise = 1 - math.exp(-i / 25)
        success = min(max(0.38 + 0.35 * rise + rng.gauss(0, 0.04), 0), 1)
        record = {
            "iteration": i,
            "env/success_rate": success,
            "env/invalid_rate": 0.05 * math.exp(-i / 10),
            "env/episode_steps_mean": 11 - 3 * rise + rng.gauss(0, 0.3),
            "env/episode_steps_success": 7.5 - rise + rng.gauss(0, 0.2),
            "env/episode_steps_failure": 15.0,
            "rollout/trajectories": 128.0,
            "pairs/num": 90.0,
            "prm/loss": 0.693 - 0.25 * rise + rng.gauss(0, 0.01),
            "prm/pair_acc": 0.5 + 0.35 * rise + rng.gauss(0, 0.02),
            "prm/pair_acc_in_sample": 0.55 + 0.4 * rise + rng.gauss(0, 0.01),
            "prm/grad_norm": 0.4 + 0.2 * rise,
            "step_reward/mean_success": 0.02 * rise,
            "step_reward/mean_failure": -0.015 * rise,
            "step_reward/std_success": 0.01 + 0.01 * rise,
            "step_reward/std_failure": 0.01 + 0.015 * rise,
            "step_reward/mean": 0.002 * rise,
            "policy/entropy": 0.9 - 0.4 * rise,
            "policy/grad_norm": 0.7 + rng.gauss(0, 0.1),
            "ratio/clip_low_frac": 0.01 + 0.01 * rng.random(),
            "ratio/clip_high_frac": 0.012 + 0.01 * rng.random(),
            "time/iteration_s": 4.0,
        }
        if i % 10 == 9:
            rate = 0.36 + 0.33 * rise
            record |= {
                "eval/success_rate": rate,
                "eval/success_low": rate - 0.05,
                "eval/success_high": rate + 0.05,
                "eval/num": 400.0,
            }
        records.append(record)
    return records


def scored(mean: float) -> dict[str, object]:
    """A mean score with its interval."""
    return {"mean_score": mean, "score_interval": [mean - 0.04, mean + 0.04]}


def eval_records() -> list[dict[str, object]]:
    """Evaluations before and after, with the baselines of the same tasks."""
    baselines = {"random": 0.06, "optimal": 1.0}
    shared = {"split": "test", "n": 500, "baselines": baselines}
    return [
        {"iteration": 0, "label": "before", "success": 190, "mean_steps": 11.2, **scored(0.41), **shared},
        {"iteration": 60, "label": "after", "success": 342, "mean_steps": 8.4, **scored(0.7), **shared},
    ]


def write_lines(path: Path, records: list[dict[str, object]] | list[dict[str, float]]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def write_run(folder: Path, iterations: int = 60) -> Path:
    """Write a complete run folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    config = {
        "seed": 7,
        "algorithm": {"type": "rloo", "clip_low": 0.2},
        "credit": {"type": "istar", "attribution": "shifted_to_go", "alpha": 0.3},
        "env": {"id": "istar/Sokoban-v0", "levels": "istar-6x6-1"},
    }
    environment = {
        "num_parameters": 164_352,
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "commit": "0123abc",
        "hardware": {"cpu_count": 2},
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "env.json").write_text(json.dumps(environment), encoding="utf-8")
    write_lines(folder / "metrics.jsonl", metrics_records(iterations))
    write_lines(folder / "eval.jsonl", eval_records())
    wandering = ["left", "down", "<b>jump</b>", *[rng.choice(ACTION_NAMES) for _ in range(12)]]
    credits = []
    for iteration in (0, iterations - 1):
        for trajectory_id, actions in enumerate([SOLUTION.split(), wandering]):
            credits.append(credit_record(play(actions), iteration, trajectory_id, rng))
    write_lines(folder / "credits.jsonl", credits)
    return folder
