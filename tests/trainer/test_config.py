"""The configuration tree: frozen, closed, in range, and equal after a round trip."""

import subprocess
import sys

import pytest
from pydantic import BaseModel, ValidationError

from istar_trainer.config import RunConfig
from istar_trainer.config_algorithms import DapoConfig, DynamicSampling, GrpoConfig, PpoConfig, RlooConfig
from istar_trainer.config_credits import IstarCredit, NoCredit
from tiny_run import tiny_tree


def sections(model: type[BaseModel] = RunConfig) -> set[type[BaseModel]]:
    """Every configuration class that can appear in the tree."""
    found = {model}
    queue = [field.annotation for field in model.model_fields.values()]
    while queue:
        annotation = queue.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            if annotation not in found:
                found |= sections(annotation)
        else:
            queue += getattr(annotation, "__args__", ())
    return found


def test_the_published_values_are_the_defaults():
    config = RunConfig()
    assert config.rollout.num_tasks == 16
    assert config.rollout.group_size == 8
    assert config.rollout.temperature == 1.0
    assert config.rollout.invalid_penalty == 0.1
    assert config.algorithm == RlooConfig()
    assert config.algorithm.loss.ratio == "token"
    assert config.algorithm.loss.aggregation == "step_mean"
    assert config.algorithm.loss.clip_low == config.algorithm.loss.clip_high == 0.2
    assert config.credit == IstarCredit()
    assert config.credit.step_adv_coef == 1.0
    assert (config.prm.beta, config.prm.lr, config.prm.grad_clip) == (0.05, 1e-6, 10.0)
    assert (config.prm.update_order, config.prm.score, config.prm.anchor) == ("before", "sum", "persistent")
    assert (config.learner.lr, config.learner.weight_decay, config.learner.grad_clip) == (5e-7, 0.01, 1.0)
    assert config.eval.temperature == 0.4


def test_every_option_that_the_prototype_asked_for_exists():
    credit = IstarCredit(attribution="shifted_to_go", gamma=0.9, center="policy_kl", groups="with_pairs")
    assert credit.attribution == "shifted_to_go"
    for score in ("sum", "mean", "centered_sum"):
        RunConfig(prm={"score": score, "anchor": "ema", "ema": 0.5, "updates_per_iteration": 5})


@pytest.mark.parametrize("tree", [{}, tiny_tree(), tiny_tree(algorithm="grpo", credit="none")])
def test_a_configuration_survives_json(tree):
    config = RunConfig.model_validate(tree)
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_a_bare_word_means_that_type_with_its_defaults():
    config = RunConfig.model_validate({"algorithm": "grpo", "credit": "none"})
    assert config.algorithm == GrpoConfig()
    assert config.credit == NoCredit()


@pytest.mark.parametrize("model", sorted(sections(), key=lambda m: m.__name__))
def test_every_section_is_frozen_and_refuses_unknown_keys(model):
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        model.model_validate({"no_such_key": 1})
    name = next(iter(model.model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(model(), name, None)


@pytest.mark.parametrize("model", sorted(sections(), key=lambda m: m.__name__))
def test_every_plain_value_is_described(model):
    for name, field in model.model_fields.items():
        is_section = any(
            s in sections() for s in (field.annotation, *getattr(field.annotation, "__args__", ()))
        )
        if name != "type" and not is_section and model.__module__ == RunConfig.__module__:
            assert field.description, f"{model.__name__}.{name}"


@pytest.mark.parametrize(
    "tree",
    [
        {"rollout": {"temperature": 0}},
        {"rollout": {"num_tasks": 0}},
        {"rollout": {"max_failed_frac": 1.5}},
        {"learner": {"lr": -1e-3}},
        {"learner": {"minibatches": 0}},
        {"prm": {"beta": 0}},
        {"prm": {"updates_per_iteration": 0}},
        {"prm": {"ema": 1.1}},
        {"prm": {"score": "max"}},
        {"credit": {"type": "istar", "gamma": 2}},
        {"credit": "ppo"},
        {"algorithm": {"type": "rloo", "loss": {"clip_low": 1.0}}},
        {"algorithm": {"type": "grpo", "loss": {"dual_clip": 1.0}}},
        {"env": {"window": -1}},
        {"warm_start": {"target_success": 1.2}},
        {"checkpoint": {"keep": 0}},
        {"seed": -1},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(tree):
    with pytest.raises(ValidationError):
        RunConfig.model_validate(tree)


@pytest.mark.parametrize("attribution", ["shifted", "shifted_to_go"])
def test_shifted_credit_needs_the_offsets_that_it_shifts(attribution):
    with pytest.raises(ValidationError, match=f"attribution: {attribution} .*center: policy_kl"):
        IstarCredit(attribution=attribution)


def test_reading_a_configuration_needs_no_torch():
    program = "import sys, istar_trainer.config_files; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_discounts_between_steps_need_the_scope_that_has_them():
    with pytest.raises(ValidationError, match=r"gamma_turn: 0\.9 .* need gae_scope: bilevel, not row"):
        PpoConfig(gamma_turn=0.9)
    config = PpoConfig(gae_scope="bilevel", gamma_turn=0.9)
    assert PpoConfig.model_validate_json(config.model_dump_json()) == config


def test_the_ramp_of_the_length_penalty_fits_below_its_limit():
    tree = {"algorithm": {"type": "dapo", "overlong": {"buffer": 9}}}
    with pytest.raises(ValidationError, match=r"overlong\.buffer: 9 .* rollout\.max_response_tokens: 8"):
        RunConfig.model_validate(tree)
    RunConfig.model_validate({**tree, "rollout": {"max_response_tokens": 9}})


def test_a_range_of_success_rates_has_two_ends_in_order():
    with pytest.raises(ValidationError, match="set both or neither"):
        DynamicSampling(low=0.2)
    with pytest.raises(ValidationError, match=r"low: 0\.8 must be below high: 0\.2"):
        DynamicSampling(low=0.8, high=0.2)


def test_part_of_a_recipe_can_be_changed_without_losing_the_rest():
    loss = DapoConfig.model_validate({"loss": {"clip_low": 0.1}}).loss
    assert (loss.clip_low, loss.clip_high, loss.aggregation) == (0.1, 0.28, "token_mean")
