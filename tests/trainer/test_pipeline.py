"""Whole iterations on a tiny model: what must hold in every one of them, and every combination of options."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import istar_trainer.train
from builders import assert_same_tensors
from istar_envs.episode import read_episodes
from istar_envs.errors import ConfigError
from istar_envs.sokoban.env import SokobanEnv
from istar_judges.verifiers import make_verifier
from istar_trainer.algorithms import ALGORITHMS
from istar_trainer.batch import collate
from istar_trainer.checkpoint import list_checkpoints, load_checkpoint
from istar_trainer.errors import CheckpointMismatch, RolloutError, StaleSnapshot
from istar_trainer.folder import RunFolder
from istar_trainer.metrics import METRICS, read_metrics
from istar_trainer.pipeline import make_once, run_training
from istar_trainer.progress import Progress
from istar_trainer.setup import Run, make_run
from istar_trainer.update import PolicyBatch
from istar_trainer.weights import load_model
from tiny_run import tiny_config

pytestmark = pytest.mark.usefixtures("_restore_torch")


@pytest.fixture
def warm(finished_run) -> dict:
    """Sections that start from the warm-started policy of a finished run, and play little."""
    return {
        "iterations": 2,
        "model": {"path": str(finished_run / "warm_start")},
        "warm_start": {"enabled": False},
        "eval": {"every": 2, "dev_tasks": 2, "test_tasks": 0},
    }


def train(folder: Path, *, resume: bool = False, **changes) -> Path:
    with Progress() as progress:
        run_training(tiny_config(folder, **changes), resume=resume, progress=progress)
    return folder


def open_run(folder: Path, **changes) -> Run:
    config = tiny_config(folder, **changes)
    return make_run(
        config, RunFolder(folder, config, resume=False), Path(config.model.path), Progress(), resume=False
    )


def policy_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "policy" / "model.safetensors")


def newest_state(folder: Path) -> dict:
    return load_checkpoint(list_checkpoints(folder / "checkpoints")[-1])[1]


def untimed(folder: Path) -> list[dict]:
    return [
        {k: v for k, v in record.items() if not k.startswith("time/")}
        for record in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    ]


def test_a_run_folder_stands_alone(finished_run):
    names = {path.name for path in finished_run.iterdir()}
    assert names >= {"config.json", "env.json", "metrics.jsonl", "eval.jsonl", "credits.jsonl", "report.html"}
    assert names >= {"model", "warm_start", "checkpoints", "policy"}
    assert not list(finished_run.rglob("*.part"))
    model, tokenizer = load_model(finished_run / "policy")
    assert model.config.vocab_size == len(tokenizer)
    assert [path.name[-1] for path in list_checkpoints(finished_run / "checkpoints")] == ["4", "6"]


def test_the_prm_moves_whenever_there_are_pairs(finished_run):
    records = read_metrics(finished_run / "metrics.jsonl")
    assert len(records) == 6
    with_pairs = [record for record in records if record["pairs/num"] > 0]
    assert len(with_pairs) >= 3
    assert all(record["prm/grad_norm"] > 0 for record in with_pairs)
    start = load_file(finished_run / "warm_start" / "model.safetensors")
    weights = newest_state(finished_run)["learners"]["prm"]["weights"]
    assert any(not torch.equal(weights[name], value) for name, value in start.items())


def test_nothing_is_clipped_before_the_first_step_and_sampler_and_learner_agree(finished_run):
    for number, record in enumerate(read_metrics(finished_run / "metrics.jsonl")):
        assert record["ratio/first_minibatch_max_dev"] < 1e-6
        assert record["ratio/first_minibatch_clip_frac"] == 0
        assert record["mismatch/abs_max"] < 1e-4
        assert record["rollout/snapshot_id"] == number
        assert record["adv/std_floor"] == pytest.approx(10 * record["prm/noise_floor"])


def test_all_logged_names_are_registered_and_times_are_positive(finished_run):
    for record in read_metrics(finished_run / "metrics.jsonl"):
        assert record.keys() - {"iteration"} <= METRICS.keys()
        assert all(value > 0 for name, value in record.items() if name.startswith("time/"))


def test_the_games_of_the_test_list_can_be_judged(finished_run):
    verifier = make_verifier("sokoban")
    for line in (finished_run / "eval.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["label"] in ("before", "after"):
            episodes = list(read_episodes(finished_run / "episodes" / f"{record['label']}.jsonl"))
            assert len(episodes) == record["n"]
            assert sum(verifier(episode).success for episode in episodes) == record["success"]


def test_the_test_list_is_played_before_and_after_next_to_baselines(finished_run):
    records = [json.loads(line) for line in (finished_run / "eval.jsonl").read_text().splitlines()]
    assert [record["label"] for record in records] == ["before", "dev", "dev", "dev", "after"]
    assert [record["iteration"] for record in records] == [0, 2, 4, 6, 6]
    for record in (records[0], records[-1]):
        assert record["n"] == 6
        assert record["baselines"]["optimal"] == 1.0
        assert 0 <= record["baselines"]["random"] <= 1


def test_equal_configurations_give_equal_runs(tmp_path, warm):
    one, other = (train(tmp_path / name, **warm) for name in ("one", "other"))
    assert untimed(one) == untimed(other)
    assert_same_tensors(policy_weights(one), policy_weights(other))


@pytest.mark.parametrize("algorithm", [config().type for config in ALGORITHMS])
def test_a_coefficient_of_0_trains_every_algorithm_bit_for_bit_like_without_credit(tmp_path, warm, algorithm):
    plain = train(tmp_path / "plain", **warm, algorithm=algorithm, credit="none")
    silent = train(
        tmp_path / "silent", **warm, algorithm=algorithm, credit={"type": "istar", "step_adv_coef": 0.0}
    )
    assert_same_tensors(policy_weights(silent), policy_weights(plain))
    learners, expected = newest_state(silent)["learners"], newest_state(plain)["learners"]
    assert learners.keys() == expected.keys() | {"prm"}
    assert expected.keys() == ({"policy", "critic"} if algorithm == "ppo" else {"policy"})
    for name, state in expected.items():
        assert_same_tensors(learners[name]["weights"], state["weights"])
        for key, value in state["optimizer"]["state"].items():
            assert_same_tensors(learners[name]["optimizer"]["state"][key], value)


def test_step_credit_changes_what_is_learnt(tmp_path, warm):
    plain, loud = (train(tmp_path / credit, **warm, credit=credit) for credit in ("none", "istar"))
    different = policy_weights(loud)
    assert any(not torch.equal(value, different[name]) for name, value in policy_weights(plain).items())


def test_learning_rates_of_0_change_no_weight(tmp_path, warm, finished_run):
    changes = {"learner": {"lr": 1e-300, "weight_decay": 0.0}, "prm": {"lr": 1e-300}}
    folder = train(tmp_path / "run", **warm, **changes)
    start = load_file(finished_run / "warm_start" / "model.safetensors")
    assert_same_tensors(policy_weights(folder), start)
    for record in read_metrics(folder / "metrics.jsonl"):
        assert record["ratio/max"] == pytest.approx(1.0, abs=1e-6)
        assert record["ratio/clip_low_frac"] == record["ratio/clip_high_frac"] == 0


COMBINATIONS = {
    "grpo": {"algorithm": {"type": "grpo", "std": "population", "episode_stat": "steps"}},
    "after": {"prm": {"update_order": "after", "updates_per_iteration": 2}},
    "shifted to go": {
        "credit": {
            "type": "istar",
            "attribution": "shifted_to_go",
            "center": "policy_kl",
            "groups": "with_pairs",
        },
        "prm": {"score": "mean", "updates_per_iteration": 3},
    },
    "centred": {
        "credit": {"type": "istar", "center": "policy_kl", "scope": "batch", "norm": "rloo"},
        "prm": {"score": "centered_sum", "anchor": "ema", "ema": 0.5},
    },
    "paper ratio": {
        "algorithm": {"type": "rloo", "loss": {"ratio": "step_product", "aggregation": "trajectory_mean"}},
        "prm": {"anchor": "reset"},
    },
    "constant length": {
        "algorithm": {
            "type": "grpo",
            "std": "none",
            "loss": {"aggregation": "constant", "constant_length": 20, "dual_clip": 3.0, "ratio": "step_geo"},
        },
        "learner": {"epochs": 2, "minibatches": 3},
    },
    "full dialogue": {"env": {"window": None}, "rollout": {"max_prompt_tokens": 400}},
    "thinking with a window": {"env": {"template": "think-v1", "window": 2}},
    "soft pairs of returns": {
        "outcome": "return",
        "prm": {"pair_rule": {"label": "rank", "sharpness": 1.0, "pair_set": "best_worst"}},
    },
    "critic of steps": {"algorithm": {"type": "ppo", "gae_scope": "step", "gamma": 0.95, "lam": 0.9}},
    "critic of tokens": {"algorithm": {"type": "ppo", "gae_scope": "bilevel", "lam_turn": 0.9}},
    "whitened outcomes": {"algorithm": {"type": "reinforce_pp", "baseline": "group"}},
    "long replies": {
        "algorithm": {
            "type": "dapo",
            "overlong": {"buffer": 2},
            "dynamic_sampling": {"low": 0.1, "high": 0.9, "max_batches": 2},
        }
    },
    "near the start": {
        "algorithm": {"type": "rloo", "loss": {"kl": {"coef": 0.1, "place": "reward"}, "entropy_coef": 0.01}}
    },
    "warm-up": {"credit": {"type": "istar", "warm_up": {"window": 2}}, "prm": {"pair_weight": "pair"}},
}


@pytest.mark.parametrize("changes", COMBINATIONS.values(), ids=COMBINATIONS.keys())
def test_every_combination_of_options_trains(tmp_path, warm, changes):
    folder = train(tmp_path / "run", **warm, **changes)
    records = read_metrics(folder / "metrics.jsonl")
    assert [record["iteration"] for record in records] == [0, 1]
    assert all(record["prm/grad_norm"] > 0 for record in records if record["pairs/num"] > 0)
    assert all(value.isfinite().all() for value in policy_weights(folder).values())


def test_a_run_without_any_success_trains_no_prm(tmp_path, warm, finished_run):
    untrained = {"path": str(finished_run / "model")}
    folder = train(tmp_path / "run", **{**warm, "model": untrained}, prm={"lr": 1e-3, "weight_decay": 0.5})
    assert all(record["pairs/num"] == 0 for record in read_metrics(folder / "metrics.jsonl"))
    assert all(record["prm/skipped"] == 1 for record in read_metrics(folder / "metrics.jsonl"))
    start = load_file(finished_run / "model" / "model.safetensors")
    weights = newest_state(folder)["learners"]["prm"]["weights"]
    assert all(torch.equal(weights[name], value) for name, value in start.items())


def test_going_on_with_a_finished_run_changes_nothing(tmp_path, warm):
    folder = train(tmp_path / "run", **warm)
    before = {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}
    train(folder, resume=True, **warm)
    assert {path.name: path.read_bytes() for path in folder.glob("*.jsonl")} == before


def test_a_finished_run_can_be_made_longer(tmp_path, warm):
    changes = {**warm, "credit": {"type": "istar", "warm_up": {"pair_acc": 0.0, "window": 1, "start_at": 2}}}
    short = train(tmp_path / "short", **changes)
    train(short, resume=True, **{**changes, "iterations": 4})
    straight = train(tmp_path / "straight", **{**changes, "iterations": 4})
    assert untimed(short) == untimed(straight)
    assert [record["adv/step_coef"] for record in untimed(straight)][:2] == [0, 0]
    assert 1 in [record["adv/step_coef"] for record in untimed(straight)]
    assert_same_tensors(
        newest_state(short)["learners"]["policy"]["weights"],
        newest_state(straight)["learners"]["policy"]["weights"],
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"type": "ppo", "gae_scope": "step", "critic": {"lr": 1e-3}}},
        {
            "algorithm": {
                "type": "dapo",
                "loss": {"kl": {"coef": 0.1}},
                "dynamic_sampling": {"max_batches": 2},
            }
        },
    ],
    ids=["critic", "replaced groups and a reference"],
)
def test_a_resumed_run_ends_bit_for_bit_where_a_straight_one_does(tmp_path, warm, changes):
    changes = {**warm, **changes, "eval": {**warm["eval"], "every": 1}, "checkpoint": {"every": 1}}
    resumed = train(tmp_path / "resumed", **{**changes, "iterations": 1})
    train(resumed, resume=True, **changes)
    straight = train(tmp_path / "straight", **changes)
    assert untimed(resumed) == untimed(straight)
    learners, expected = newest_state(resumed)["learners"], newest_state(straight)["learners"]
    assert learners.keys() == expected.keys()
    for name, state in expected.items():
        assert_same_tensors(learners[name]["weights"], state["weights"])


def test_dull_groups_are_replaced_and_the_start_policy_is_compared_with(tmp_path, warm):
    sampling = {"low": 0.0, "high": 1.0, "max_batches": 3}
    algorithm = {"type": "dapo", "loss": {"kl": {"coef": 0.1}}, "dynamic_sampling": sampling}
    folder = train(tmp_path / "run", **warm, algorithm=algorithm)
    first, second = read_metrics(folder / "metrics.jsonl")
    for record in (first, second):
        assert 1 <= record["rollout/generation_batches"] <= 3
        assert record["rollout/trajectories"] == 16
        assert 0 <= record["rollout/filtered_group_frac"] <= 1
    assert max(record["rollout/filtered_group_frac"] for record in (first, second)) > 0
    assert first["policy/kl_to_start"] == pytest.approx(0.0, abs=1e-6)
    assert second["policy/kl_to_start"] > 1e-7


def test_a_run_goes_back_over_a_damaged_checkpoint_and_ends_as_before(tmp_path, warm, caplog):
    changes = {**warm, "checkpoint": {"every": 1, "keep": 2}}
    folder = train(tmp_path / "run", **changes)
    expected = untimed(folder)
    earlier, newest = list_checkpoints(folder / "checkpoints")
    (newest / "state.pt").write_bytes(b"damaged")
    train(folder, resume=True, **changes)
    assert f"{newest} is damaged: state.pt" in caplog.text
    assert untimed(folder) == expected
    assert list_checkpoints(folder / "checkpoints") == [earlier, newest]
    for path in (earlier, newest):
        (path / "state.pt").write_bytes(b"damaged")
    with pytest.raises(CheckpointMismatch, match="no earlier one is intact"):
        train(folder, resume=True, **changes)
    assert untimed(folder) == expected


def test_rows_of_another_snapshot_are_refused(tmp_path, warm):
    run = open_run(tmp_path / "run", **warm)
    groups = run.play()
    batch = collate([t for g in groups for t in g.trajectories], [g.id for g in groups])
    run.old_logprobs(batch)
    run.publish_policy()
    with pytest.raises(
        StaleSnapshot, match=r"sampled by snapshot 0, but the policy is at 1.*loss\.correction"
    ):
        run.old_logprobs(batch)
    stale = dataclasses.replace(batch, snapshot_id=7)
    with pytest.raises(StaleSnapshot, match="sampled by snapshot 7"):
        run.old_logprobs(stale)
    run.close()


def test_rows_of_an_older_snapshot_are_taken_up_to_the_largest_lag(tmp_path, warm):
    rollout = {"max_lag": 1, "spare_tasks": 2}
    loss = {"correction": {"weight": "token"}}
    run = open_run(tmp_path / "run", **warm, rollout=rollout, algorithm={"type": "rloo", "loss": loss})
    groups = run.play()
    batch = collate([t for g in groups for t in g.trajectories], [g.id for g in groups])
    run.publish_policy()
    run.old_logprobs(batch)
    run.publish_policy()
    with pytest.raises(StaleSnapshot, match=r"snapshot 0, but the policy is at 2, and rollout\.max_lag is 1"):
        run.old_logprobs(batch)
    run.close()


def test_a_run_with_late_groups_learns_from_all_of_them_and_goes_on_after_a_kill(tmp_path, warm):
    loss = {"correction": {"weight": "token"}}
    changes = {
        **warm,
        "iterations": 4,
        "rollout": {"max_lag": 1, "spare_tasks": 2, "env_threads": 2},
        "algorithm": {"type": "rloo", "loss": loss},
        "checkpoint": {"every": 2},
    }
    folder = train(tmp_path / "run", **changes)
    records = untimed(folder)
    assert [record["rollout/trajectories"] for record in records] == [16] * 4
    assert records[0]["rollout/late_groups"] == 0
    assert sum(record["rollout/late_groups"] for record in records) > 0
    assert all(record["rollout/snapshot_lag_max"] <= 1 for record in records)
    assert all(record["ratio/first_minibatch_max_dev"] < 1e-6 for record in records)
    late = [record for record in records if record["rollout/late_groups"]]
    assert all(record["mismatch/abs_max"] > 1e-3 for record in late)
    for path in list_checkpoints(folder / "checkpoints")[1:]:
        shutil.rmtree(path)
    assert len(newest_state(folder)["backlog"]["open"]) == 2
    train(folder, resume=True, **changes)
    again = untimed(folder)
    assert again[:2] == records[:2]
    assert [record["rollout/trajectories"] for record in again] == [16] * 4


def test_invalid_steps_cost_their_penalty_and_failures_have_no_outcome(tmp_path, warm, monkeypatch):
    run = open_run(tmp_path / "run", **warm, env={"kwargs": {"max_steps": 2, "max_moves": 2}})
    monkeypatch.setattr(run.sampler, "eos_token_id", -1)
    run.sampler.max_new_tokens = 1
    groups = run.play()
    outcomes = run.judge(groups)
    assert outcomes.values.tolist() == pytest.approx([-0.2] * 16)
    assert outcomes.has_outcome.all()
    assert len(run.pair(groups, outcomes)) == 0
    broken = dataclasses.replace(groups[0].trajectories[0].episode, end="failed", error="broke")
    first = dataclasses.replace(groups[0].trajectories[0], episode=broken)
    group = dataclasses.replace(groups[0], trajectories=(first, *groups[0].trajectories[1:]))
    outcomes = run.judge([group, *groups[1:]])
    assert outcomes.has_outcome.tolist() == [False] + [True] * 15
    assert outcomes.values[0] == 0
    run.close()


def test_a_trajectory_without_a_verdict_weighs_nothing(tmp_path, warm, monkeypatch):
    judge, update = Run.judge, istar_trainer.train.update_policy
    seen: list[PolicyBatch] = []

    def without_the_first(run, groups):
        outcomes = judge(run, groups)
        outcomes.has_outcome[0] = False
        outcomes.values[0] = 0.0
        return outcomes

    def watched(learner, data, *args, **options):
        seen.append(data)
        return update(learner, data, *args, **options)

    monkeypatch.setattr(Run, "judge", without_the_first)
    monkeypatch.setattr(istar_trainer.train, "update_policy", watched)
    train(tmp_path / "run", **{**warm, "iterations": 1})
    unjudged = seen[0].batch.trajectory_index == 0
    assert unjudged.any()
    assert seen[0].weights.tolist() == (~unjudged).float().tolist()
    assert seen[0].advantages[unjudged].eq(0).all()


def test_a_world_that_always_breaks_stops_the_run_and_keeps_its_checkpoint(tmp_path, warm, monkeypatch):
    folder = train(tmp_path / "run", **warm)

    def explode(*_args):
        raise ValueError("the world ended")

    monkeypatch.setattr(SokobanEnv, "step", explode)
    with pytest.raises(RolloutError, match=r"trajectories broke, more than rollout\.max_failed_frac=0\.25"):
        train(folder, resume=True, **{**warm, "iterations": 4})
    monkeypatch.undo()
    assert load_checkpoint(list_checkpoints(folder / "checkpoints")[-1])[0] == 2
    train(folder, resume=True, **{**warm, "iterations": 3})


def test_a_missing_model_is_named_before_anything_is_played(tmp_path, warm):
    with pytest.raises(ConfigError, match=r"no model in .*nowhere"):
        train(tmp_path / "run", **{**warm, "model": {"path": "nowhere"}})


def test_a_folder_is_made_once_and_completely_or_not_at_all(tmp_path):
    target = tmp_path / "made"

    def fail(out: Path) -> None:
        out.mkdir()
        (out / "half").write_text("")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        make_once(target, fail)
    assert not target.exists()
    make_once(target, lambda out: out.mkdir())
    assert [path.name for path in target.iterdir()] == ["seal.json"]
    make_once(target, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_folder_that_was_made_is_refused_once_it_is_damaged(tmp_path):
    def make(out: Path) -> None:
        (out / "inner").mkdir(parents=True)
        (out / "inner" / "weights").write_text("w")

    make_once(tmp_path / "made", make)
    make_once(tmp_path / "made", make)
    (tmp_path / "made" / "inner" / "weights").write_text("v")
    damaged = r"made is damaged: inner/weights does not match.*Remove this folder"
    with pytest.raises(CheckpointMismatch, match=damaged):
        make_once(tmp_path / "made", make)
