"""A comparison file becomes runs that are pairs, or one line that says what is wrong."""

import pytest
import yaml
from compared_runs import make_plan

from istar_envs.errors import ConfigError
from istar_trainer.compare.plan import load_plan
from istar_trainer.config_files import load_config

METHODS = {"rloo": {"credit": "none", "algorithm": "rloo"}, "grpo": {"algorithm": "grpo"}}


def mistake(tmp_path, **changes) -> str:
    """What the user reads."""
    with pytest.raises(ConfigError) as error:
        make_plan(tmp_path, changes.pop("methods", METHODS), **changes)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_every_method_is_planned_once_per_seed_in_the_order_of_the_file(tmp_path):
    plan = make_plan(tmp_path, METHODS, seeds=[3, 1])
    assert [run.name for run in plan.runs] == ["rloo/3", "grpo/3", "rloo/1", "grpo/1"]
    assert [run.config.seed for run in plan.runs] == [3, 3, 1, 1]
    assert len({run.config.run_dir for run in plan.runs}) == 4


def test_a_method_changes_only_what_it_names(tmp_path):
    plan = make_plan(tmp_path, METHODS, seeds=[0], common={"iterations": 7, "credit": "istar"})
    rloo, grpo = (run.config for run in plan.runs)
    assert (rloo.algorithm.type, rloo.credit.type) == ("rloo", "none")
    assert (grpo.algorithm.type, grpo.credit.type) == ("grpo", "istar")
    assert rloo.iterations == grpo.iterations == 7
    assert rloo.eval.every == 5  # of the base file
    same = {"algorithm", "credit", "run_dir"}
    assert rloo.model_dump(exclude=same) == grpo.model_dump(exclude=same)


def test_each_run_gets_one_thread(tmp_path):
    plan = make_plan(tmp_path, METHODS, common={"threads": 8})
    assert {config.threads for run in plan.runs for config in (run.config, run.start)} == {1}


def test_a_method_without_changes_is_the_base(tmp_path):
    (tmp_path / "compare.yaml").write_text("base: base.yaml\nmethods:\n  plain:\n")
    (tmp_path / "base.yaml").write_text("iterations: 3\n")
    assert load_plan(tmp_path / "compare.yaml").runs[0].config.iterations == 3


def test_the_start_is_made_once_per_seed_and_used_by_all_methods(tmp_path):
    plan = make_plan(tmp_path, METHODS, seeds=[0, 1])
    assert [start.seed for start in plan.starts] == [0, 1]
    for run in plan.runs:
        assert run.start.seed == run.seed
        assert run.start.warm_start.enabled
        assert run.config.model.path == str(run.start.run_dir / "warm_start")
        assert not run.config.warm_start.enabled


def test_one_start_can_serve_all_seeds(tmp_path):
    plan = make_plan(tmp_path, METHODS, seeds=[0, 1], warm_start_seed=9)
    assert [start.seed for start in plan.starts] == [9]


def test_without_sharing_each_run_starts_by_itself(tmp_path):
    methods = {"short": {"warm_start": {"episodes": 5}}, "long": {}}
    plan = make_plan(tmp_path, methods, seeds=[0], shared_warm_start=False)
    assert plan.starts == ()
    assert [run.config.warm_start.episodes for run in plan.runs] == [5, 2000]


def test_a_finished_model_needs_no_start(tmp_path):
    ready = {"model": {"path": "models/mine"}, "warm_start": {"enabled": False}}
    plan = make_plan(tmp_path, METHODS, common=ready)
    assert plan.starts == ()
    assert {run.config.model.path for run in plan.runs} == {"models/mine"}


def test_an_untrained_tiny_model_is_shared_too(tmp_path):
    plan = make_plan(tmp_path, METHODS, seeds=[0], common={"warm_start": {"enabled": False}})
    assert plan.runs[0].config.model.path == str(plan.starts[0].run_dir / "model")


def test_a_resolved_run_survives_its_file(tmp_path):
    plan = make_plan(tmp_path, METHODS, common={"learner": {"lr": 5e-7}})
    for run in plan.runs:
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(run.config.model_dump(mode="json")))
        assert load_config(path) == run.config


def test_the_hash_changes_with_what_decides_a_result_and_not_with_folders(tmp_path):
    plan = make_plan(tmp_path / "a", METHODS)
    assert make_plan(tmp_path / "b", METHODS, jobs=2, threshold=0.9).config_hash == plan.config_hash
    for changes in ({"seeds": [0]}, {"common": {"iterations": 11}}, {"warm_start_seed": 0}):
        assert make_plan(tmp_path / "c", METHODS, **changes).config_hash != plan.config_hash


def test_the_number_of_processes_can_be_given_apart(tmp_path):
    make_plan(tmp_path, METHODS, jobs=2)
    assert load_plan(tmp_path / "compare.yaml").comparison.jobs == 2
    assert load_plan(tmp_path / "compare.yaml", jobs=3).comparison.jobs == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"treshold": 0.5}, 'unknown key treshold. Did you mean "threshold"?'),
        ({"threshold": 2}, "threshold: Input should be less than or equal to 1 (got 2)"),
        ({"jobs": 0}, "jobs: "),
        ({"seeds": [1, 1]}, "seeds must differ from each other"),
        ({"seeds": []}, "seeds: "),
        ({"methods": {}}, "methods: "),
        ({"methods": {"../up": {}}}, "a method is named by letters, digits"),
        (
            {"methods": {"a": {"learner": {"lrr": 1}}}},
            'methods.a: unknown key learner.lrr. Did you mean "lr"?',
        ),
        ({"methods": {"a": {"algorithm": "gpro"}}}, "methods.a: algorithm: "),
        ({"methods": {"a": {"seed": 3}}}, "methods.a.seed: all methods share run_dir, seed, env, eval"),
        ({"methods": {"a": {"env": {"window": 2}}}}, "methods.a.env: all methods share"),
        ({"methods": {"a": {"warm_start": {}}}}, "methods.a.warm_start: the start is shared"),
        ({"common": {"eval": {"test_tasks": 0}}}, "Set eval.test_tasks above 0"),
        ({"base": "bose.yaml"}, 'Did you mean "base.yaml"?'),
    ],
)
def test_a_mistake_is_named_with_its_key_and_a_way_out(tmp_path, changes, message):
    assert message in mistake(tmp_path, **changes)
