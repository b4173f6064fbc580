"""Configurations from files: bases, other types, and errors that say what to type."""

from pathlib import Path

import pytest

from istar_envs.errors import ConfigError
from istar_trainer.config import RunConfig
from istar_trainer.config_algorithms import GrpoConfig, RlooConfig
from istar_trainer.config_credits import IstarCredit, NoCredit
from istar_trainer.config_files import load_config, merge, read_tree

FILES = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
CONFIGS = [path for path in FILES if not path.name.startswith("compare_")]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_shipped_file_loads_and_survives_json(path):
    config = load_config(path)
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_shipped_file_can_be_switched_to_plain_algorithms(path):
    for algorithm, kind in (("rloo", RlooConfig), ("grpo", GrpoConfig)):
        config = load_config(path, algorithm=algorithm, credit="none")
        assert isinstance(config.algorithm, kind)
        assert config.algorithm.loss == load_config(path).algorithm.loss
        assert config.credit == NoCredit()


def test_an_empty_file_is_all_defaults(tmp_path):
    assert load_config(write(tmp_path / "c.yaml", "")) == RunConfig()


def test_a_file_states_only_what_differs_from_its_base(tmp_path):
    write(tmp_path / "base.yaml", "seed: 3\nlearner: {lr: 0.1, epochs: 2}\nprm: {beta: 0.2}\n")
    write(tmp_path / "middle.yaml", "base: base.yaml\nlearner: {lr: 0.2}\n")
    config = load_config(write(tmp_path / "top.yaml", "base: middle.yaml\nprm: {lr: 0.5}\n"))
    assert config.seed == 3
    assert (config.learner.lr, config.learner.epochs) == (0.2, 2)
    assert (config.prm.beta, config.prm.lr) == (0.2, 0.5)


def test_another_type_replaces_the_section_of_the_base(tmp_path):
    write(tmp_path / "base.yaml", "credit: {type: istar, gamma: 0.5}\nalgorithm: {type: grpo, std: none}\n")
    config = load_config(
        write(tmp_path / "top.yaml", "base: base.yaml\ncredit: {type: none}\nalgorithm: rloo\n")
    )
    assert config.credit == NoCredit()
    assert config.algorithm == RlooConfig()


def test_the_same_type_keeps_what_the_base_said(tmp_path):
    write(tmp_path / "base.yaml", "credit: {type: istar, gamma: 0.5}\n")
    for text in ("credit: {type: istar, scope: batch}", "credit: {scope: batch}"):
        config = load_config(write(tmp_path / "top.yaml", f"base: base.yaml\n{text}\n"))
        assert config.credit == IstarCredit(gamma=0.5, scope="batch")


def test_keys_can_be_laid_over_a_bare_word(tmp_path):
    write(tmp_path / "base.yaml", "credit: istar\nalgorithm: grpo\n")
    text = "base: base.yaml\ncredit: {gamma: 0.5}\nalgorithm: {type: rloo, loss: {dual_clip: 3}}\n"
    config = load_config(write(tmp_path / "top.yaml", text))
    assert config.credit == IstarCredit(gamma=0.5)
    assert config.algorithm == RlooConfig(loss={"dual_clip": 3})


def test_merging_leaves_both_sides_alone():
    base, over = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge(base, over) == {"a": {"b": 1, "c": 2}}
    assert (base, over) == ({"a": {"b": 1}}, {"a": {"c": 2}})


def test_a_word_on_the_command_line_switches_the_type_and_keeps_the_loss(tmp_path):
    path = write(
        tmp_path / "c.yaml",
        "algorithm: {type: grpo, std: none, loss: {clip_high: 0.28}}\ncredit: {type: istar, gamma: 0.5}\n",
    )
    switched = load_config(path, algorithm="rloo", credit="none")
    assert switched.algorithm == RlooConfig(loss={"clip_high": 0.28})
    assert switched.credit == NoCredit()
    same = load_config(path, algorithm="grpo", credit="istar")
    assert same == load_config(path)


def test_a_bare_word_can_be_switched_too(tmp_path):
    path = write(tmp_path / "c.yaml", "algorithm: grpo\ncredit: none\n")
    config = load_config(path, algorithm="rloo", credit="istar")
    assert (config.algorithm, config.credit) == (RlooConfig(), IstarCredit())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iteratons: 5", r"unknown key iteratons\. Did you mean \"iterations\"\?"),
        ("learner: {lrr: 5}", r"unknown key learner\.lrr\. Did you mean \"lr\"\?"),
        (
            "credit: {type: istar, atribution: shifted}",
            r"unknown key credit\.istar\.atribution\. Did you mean \"attribution\"\?",
        ),
        (
            "algorithm: {type: rloo, loss: {ratios: token}}",
            r"unknown key .*loss\.ratios\. Did you mean \"ratio\"\?",
        ),
        ("prm: {pair_rule: {lable: rank}}", r"unknown key prm\.pair_rule\.lable\. Did you mean \"label\"\?"),
        ("learner: {lr: fast}", r"learner\.lr: .*got 'fast'"),
        ("rollout: {temperature: 0}", r"rollout\.temperature: .*greater than 0 \(got 0\)"),
        ("algorithm: gpro", r"algorithm: .*'rloo', 'grpo'"),
        ("credit: {type: istar, attribution: shifted}", "needs center: policy_kl"),
        ("prm: {pair_rule: {label: margin}}", "needs margin > 0"),
        ("- 1", "a configuration is a mapping of keys to values, not list"),
        ("a: [", "is not YAML"),
        ("base: gone.yaml", r"cannot read configuration .*gone\.yaml: No such file"),
    ],
)
def test_a_mistake_is_named_with_its_key_and_a_way_out(tmp_path, text, message):
    path = write(tmp_path / "c.yaml", text)
    with pytest.raises(ConfigError, match=message) as error:
        load_config(path)
    assert "\n" not in str(error.value) or "YAML" in message
    assert str(tmp_path) in str(error.value)


def test_all_mistakes_are_reported_at_once(tmp_path):
    path = write(tmp_path / "c.yaml", "seed: -1\nlearner: {lr: -1}\n")
    with pytest.raises(ConfigError, match=r"seed: .*; learner\.lr: "):
        load_config(path)


def test_bases_that_name_each_other_are_refused(tmp_path):
    write(tmp_path / "a.yaml", "base: b.yaml")
    write(tmp_path / "b.yaml", "base: a.yaml")
    with pytest.raises(ConfigError, match=r"base files name each other: .*a\.yaml → .*b\.yaml → .*a\.yaml"):
        read_tree(tmp_path / "a.yaml")


def test_a_misspelt_file_is_answered_with_the_nearest(tmp_path):
    write(tmp_path / "tiny_cpu.yaml", "")
    with pytest.raises(ConfigError, match=r'Did you mean "tiny_cpu\.yaml"\?'):
        load_config(tmp_path / "tiny_gpu.yaml")


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"c\.yaml is not YAML"):
        load_config(tmp_path / "c.yaml")


def test_a_folder_instead_of_a_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot read configuration"):
        load_config(tmp_path)


def test_yaml_cannot_run_code(tmp_path):
    path = write(tmp_path / "c.yaml", "seed: !!python/object/apply:os.getpid []")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_config(path)
