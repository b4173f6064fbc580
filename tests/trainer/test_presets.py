"""Every preset says what its source says and nothing more: resolved values against a table of literals."""

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from builders import make_learner
from credit_parts import make_parts
from istar_trainer.algorithms import AlgorithmParts, make_algorithm
from istar_trainer.config import RunConfig
from istar_trainer.config_credits import methods_of
from istar_trainer.config_files import load_config, merge
from istar_trainer.credits import make_credit
from istar_trainer.folder import flatten

FOLDER = Path(__file__).parents[2] / "configs/presets"
DEFAULTS = flatten(RunConfig().model_dump(mode="json"))
MISSING = object()

GRPO = {"algorithm.type": "grpo", "algorithm.std": "unbiased", "algorithm.episode_stat": "trajectories"}
REINFORCE_PP = {"algorithm.type": "reinforce_pp", "algorithm.baseline": "none", "algorithm.gamma": 1.0}
PPO = {
    "algorithm.type": "ppo",
    "algorithm.gae_scope": "row",
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "algorithm.gamma_turn": 1.0,
    "algorithm.lam_turn": 1.0,
    "algorithm.whiten": True,
    "algorithm.value_clip": 0.5,
    "algorithm.critic.lr": 1e-5,
    "algorithm.critic.weight_decay": 0.01,
    "algorithm.critic.grad_clip": 1.0,
}
GIGPO = {
    "type": "gigpo",
    "step_adv_coef": 1.0,
    "gamma": 0.95,
    "rewards": "env",
    "std": "none",
    "similarity": None,
}
ISTAR = {
    "type": "istar",
    "step_adv_coef": 1.0,
    "groups": "all",
    "on_degenerate_groups": True,
    "floor_factor": 10.0,
    "warm_up": None,
    "attribution": "as_published",
    "gamma": 0.9,
    "center": "none",
    "norm": "mean_std",
    "scope": "group",
}
GIGPO_CREDIT = {f"credit.{key}": value for key, value in GIGPO.items() if key != "step_adv_coef"}
NO_CREDIT = {"credit.type": "none"}

PRESETS: dict[str, dict[str, Any]] = {
    # arXiv 2509.19199, Eq. 3, 4 and 6: mean/std over the group, ratio of a step, no floor
    "istar_paper": GRPO
    | {"algorithm.std": "population", "algorithm.loss.ratio": "step_product", "credit.floor_factor": 0.0},
    # the same with ratios of tokens, floor and warm-up
    "istar": GRPO
    | {
        "algorithm.std": "population",
        "credit.warm_up.pair_acc": 0.55,
        "credit.warm_up.state_auc": 0.5,
        "credit.warm_up.window": 5,
        "credit.warm_up.start_at": 0,
    },
    # Qwen-Character 1de87a2, its constants divided by ten as outcomes are
    "istar_official": {
        "algorithm.loss.aggregation": "token_mean",
        "algorithm.loss.dual_clip": 3.0,
        "algorithm.loss.entropy_coef": 1e-4,
        "credit.type": "istar_official",
        "credit.step_adv_coef": 0.1,
        "learner.minibatches": 14,
        "learner.grad_clip": 0.1,
        "rollout.invalid_penalty": 0.01,
    },
    # arXiv 2509.19199, section 4.1 and figure 3
    "istar_rloo": {},
    "istar_grpo": GRPO,
    "istar_rfpp": REINFORCE_PP,
    # arXiv 1707.06347; critic and clip of iStar's baseline scripts
    "ppo": PPO | NO_CREDIT,
    # arXiv 2604.18401
    "ppo_step": PPO | {"algorithm.gae_scope": "step"} | NO_CREDIT,
    # arXiv 2402.03300 with the unbiased deviation of verl
    "grpo": GRPO | NO_CREDIT,
    # arXiv 2402.14740
    "rloo": NO_CREDIT,
    # arXiv 2501.03262
    "reinforce_pp": REINFORCE_PP | NO_CREDIT,
    "reinforce_pp_baseline": REINFORCE_PP | {"algorithm.baseline": "group"} | NO_CREDIT,
    # arXiv 2503.14476; dual clip and number of batches of its recipe in verl
    "dapo": GRPO
    | {
        "algorithm.type": "dapo",
        "algorithm.loss.aggregation": "token_mean",
        "algorithm.loss.clip_high": 0.28,
        "algorithm.loss.dual_clip": 10.0,
        "algorithm.dynamic_sampling.low": None,
        "algorithm.dynamic_sampling.high": None,
        "algorithm.dynamic_sampling.max_batches": 10,
        "algorithm.overlong": None,
    }
    | NO_CREDIT,
    # arXiv 2505.10978; mean_norm and gamma of verl-agent's scripts, threshold of its newer version
    "gigpo": GRPO | {"algorithm.std": "none"} | GIGPO_CREDIT,
    "gigpo_sim": GRPO | {"algorithm.std": "none"} | GIGPO_CREDIT | {"credit.similarity": 0.95},
    # arXiv 2502.01456; coefficients, accuracy filter and oversampling of its recipe
    "prime": {
        "algorithm.dynamic_sampling.low": 0.2,
        "algorithm.dynamic_sampling.high": 0.8,
        "algorithm.dynamic_sampling.max_batches": 4,
        "credit.type": "prime",
        "credit.outcome_coef": 5.0,
        "credit.process_coef": 5.0,
    },
    # arXiv 2603.23550
    "itpo_norm": {
        "credit.type": "itpo",
        "credit.temperature": 0.7,
        "credit.outcome_coef": 1.0,
        "credit.process_coef": 1.0,
    },
    # arXiv 2509.19199, ablations; merged: weight 1 on outcomes of 10 is 0.1 on outcomes of 1
    "env_steps": {"credit.type": "env_steps"},
    "merged": {"credit.type": "merged", "credit.step_reward_coef": 0.1, "credit.norm": "rloo"},
    "token_pr": {"credit.type": "token_pr"},
    "process_only": {"credit.type": "process_only"},
    # coefficient and estimator: defaults of verl
    "with_kl": {
        "algorithm.loss.kl.coef": 0.001,
        "algorithm.loss.kl.estimator": "k3",
        "algorithm.loss.kl.place": "loss",
    },
    # both step advantages on one outcome advantage
    "istar_gigpo": {"credit.type": "sum", "credit.parts": [ISTAR, GIGPO]},
}
"""Everything in which a preset differs from the defaults or adds to them, by its dotted key."""


def load(name: str) -> RunConfig:
    return load_config(FOLDER / f"{name}.yaml")


def says(name: str) -> dict[str, Any]:
    """Read what the file itself says, without its base."""
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")) or {}


def without(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Leave out one key."""
    left = copy.deepcopy(tree)
    section = left
    for key in path[:-1]:
        section = section[key]
    del section[path[-1]]
    return left


def keys_of(tree: dict[str, Any]) -> list[tuple[str, ...]]:
    """Name every key but ``base`` and the type that stands beside other keys."""
    found = []
    for key, value in tree.items():
        found.append((key,))
        if isinstance(value, dict):
            found += [(key, *rest) for rest in keys_of(value) if rest != ("type",)]
    return [path for path in found if path != ("base",)]


def test_every_preset_is_in_the_table():
    assert {path.stem for path in FOLDER.iterdir()} == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_resolves_to_what_its_source_says(name):
    resolved = flatten(load(name).model_dump(mode="json"))
    differing = {k: v for k, v in resolved.items() if DEFAULTS.get(k, MISSING) != v}
    assert differing == PRESETS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_nothing_that_holds_without_it(name):
    tree = says(name)
    base = {} if "base" not in tree else yaml.safe_load((FOLDER / tree.pop("base")).read_text())
    for path in keys_of(tree):
        with contextlib.suppress(ValidationError):
            less = RunConfig.model_validate(merge(base, without(tree, path)))
            assert less != load(name), f"{'.'.join(path)} is the default"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_its_source(name):
    comment = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    assert comment.startswith("# ")
    assert "arXiv 2" in comment or "arXiv 1" in comment or "Qwen-Character" in comment or "verl" in comment


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_can_be_started(name):
    config = load(name)
    parts = AlgorithmParts(
        lambda _critic: make_learner(), config.learner, config.rollout.max_response_tokens, config.seed
    )
    algorithm = make_algorithm(config.algorithm, parts)
    credit = make_credit(config.credit, make_parts(make_learner(), **config.prm.model_dump()))
    assert algorithm.loss == config.algorithm.loss
    assert set(algorithm.learners) == ({"critic"} if config.algorithm.type == "ppo" else set())
    uses_prm = any(method.uses_prm for method in methods_of(config.credit))
    assert set(credit.learners) == ({"prm"} if uses_prm else set())
