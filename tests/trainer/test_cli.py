"""The command line: every command, and every mistake answered by one line and exit code 2."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from istar_envs.episode import read_episodes
from istar_trainer import cli, pipeline
from istar_trainer.cli import _COMMANDS
from istar_trainer.config import RunConfig
from istar_trainer.config_algorithms import GrpoConfig
from istar_trainer.config_credits import NoCredit
from tiny_run import tiny_config, write_config

pytestmark = pytest.mark.usefixtures("_restore_torch")


@pytest.fixture
def config(tmp_path) -> Path:
    return write_config(tmp_path / "tiny.yaml", run_dir=str(tmp_path / "run"))


def run(*argv: object) -> int:
    """Exit code of a command line; the option parser leaves by SystemExit."""
    try:
        return cli.run([str(word) for word in argv])
    except SystemExit as error:
        return int(error.code or 0)


def mistake(capsys, *argv: object) -> str:
    """The one line on standard error with which a wrong command line ends."""
    assert run(*argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    line, end = shown.err[:-1], shown.err[-1:]
    assert end == "\n"
    assert "\n" not in line, line
    return line


def test_without_a_command_the_usage_is_shown(capsys):
    assert run() == 2
    assert "usage: istar COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_command(capsys, flag):
    assert run(flag) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in _COMMANDS)


@pytest.mark.parametrize("command", sorted(_COMMANDS))
def test_every_command_has_help(capsys, command):
    assert run(command, "--help") == 0
    shown = capsys.readouterr()
    assert "usage: istar" in shown.out
    assert "Traceback" not in shown.err


def test_an_unknown_command_is_answered_with_the_nearest(capsys):
    assert mistake(capsys, "trian") == "istar: unknown command 'trian'. Did you mean \"train\"?"


@pytest.mark.parametrize("command", ["train", "sft", "eval", "config"])
def test_a_missing_configuration_is_asked_for(capsys, command):
    line = mistake(capsys, command)
    assert line.startswith(f"istar {command}: no configuration file given.")
    assert "configs/tiny_cpu.yaml" in line


def test_a_configuration_that_is_not_there_is_named(capsys, tmp_path):
    assert "cannot read configuration" in mistake(capsys, "train", tmp_path / "gone.yaml")


def test_an_unknown_key_in_a_file_is_answered_with_the_nearest(capsys, tmp_path):
    path = write_config(tmp_path / "c.yaml", learner={"minibatch": 4})
    line = mistake(capsys, "train", path)
    assert line == (f'istar train: {path}: unknown key learner.minibatch. Did you mean "minibatches"?')


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--learner.lrr", "1"], "--learner.lr"),
        (["--seed", "many"], "--seed"),
        (["--learner.lr", "-1"], "learner"),
        (["--credit.attribution", "shifted"], "policy_kl"),
        (["stray"], "stray"),
    ],
)
def test_a_wrong_option_ends_with_code_2_and_says_where(capsys, config, words, hint):
    assert run("config", config, *words) == 2
    shown = capsys.readouterr()
    assert hint in shown.err
    assert "Traceback" not in shown.err + shown.out


def test_an_unknown_algorithm_is_answered_with_those_that_exist(capsys, config):
    line = mistake(capsys, "config", config, "--algorithm", "popo")
    assert "algorithm" in line
    assert "'rloo', 'grpo', 'reinforce_pp', 'ppo', 'dapo'" in line


def test_a_run_folder_that_cannot_be_made_is_named(capsys, tmp_path, config):
    (tmp_path / "file").write_text("")
    line = mistake(capsys, "train", config, "--run-dir", tmp_path / "file" / "run")
    assert "cannot use run_dir" in line
    assert "Choose another folder" in line


def test_a_run_folder_in_use_is_refused_without_resume(capsys, tmp_path, config):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert "is not empty. Use --resume" in mistake(capsys, "train", config)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("command", ["train", "sft"])
def test_an_unknown_environment_is_answered_with_the_nearest(capsys, config, tmp_path, command):
    line = mistake(capsys, command, config, "--env.id", "istar/Sokobann-v0")
    assert not (tmp_path / "run").exists()
    assert "no environment 'istar/Sokobann-v0'" in line
    assert 'Did you mean "istar/Sokoban-v0"?' in line


def test_an_unknown_option_of_the_environment_is_named(capsys, tmp_path):
    path = write_config(tmp_path / "c.yaml", run_dir=str(tmp_path / "run"), env={"kwargs": {"levles": "x"}})
    assert "levles" in mistake(capsys, "train", path)


def test_an_unknown_verifier_is_answered_with_those_that_exist(capsys, config, tmp_path):
    line = mistake(capsys, "train", config, "--verifier", "sokban")
    assert "unknown verifier 'sokban'. Did you mean \"sokoban\"?" in line
    assert not (tmp_path / "run").exists()


def test_an_unknown_template_is_answered_with_the_nearest(capsys, config, tmp_path):
    line = mistake(capsys, "train", config, "--env.template", "thnk-v1")
    assert 'Did you mean "think-v1"?' in line
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_with_another_configuration_is_refused(capsys, tmp_path, finished_run):
    path = write_config(tmp_path / "c.yaml", run_dir=str(finished_run), learner={"lr": 0.5})
    line = mistake(capsys, "train", path, "--resume")
    assert "learner.lr: 0.001 then, 0.5 now" in line


def test_the_resolved_configuration_is_printed_as_json(capsys, config, tmp_path):
    words = ["--algorithm", "grpo", "--credit", "none", "--learner.lr", "0.25", "--env.window", "3"]
    assert run("config", config, *words) == 0
    shown = RunConfig.model_validate_json(capsys.readouterr().out)
    expected = tiny_config(tmp_path / "run", algorithm="grpo", credit="none")
    assert shown.algorithm == GrpoConfig()
    assert shown.credit == NoCredit()
    assert shown.learner.lr == 0.25
    assert shown.env.window == 3
    assert shown.rollout == expected.rollout


def test_values_of_the_file_stay_unless_the_command_line_says_otherwise(capsys, config, tmp_path):
    assert run("config", config) == 0
    assert RunConfig.model_validate_json(capsys.readouterr().out) == tiny_config(tmp_path / "run")


def test_nested_options_of_the_chosen_type_can_be_set(capsys, config):
    assert run("config", config, "--credit.step-adv-coef", "0.3", "--algorithm.loss.ratio", "step_geo") == 0
    shown = RunConfig.model_validate_json(capsys.readouterr().out)
    assert shown.credit.step_adv_coef == 0.3
    assert shown.algorithm.loss.ratio == "step_geo"


@pytest.mark.parametrize(
    "words", [["--env.window=null", "--learner.packing", "true"], ["--env.window", "None"]]
)
def test_values_may_be_written_as_in_a_file(capsys, config, words):
    assert run("config", config, *words) == 0
    shown = RunConfig.model_validate_json(capsys.readouterr().out)
    assert shown.env.window is None
    assert shown.learner.packing is ("true" in words)


def test_a_tiny_model_is_made_for_an_environment(capsys, tmp_path):
    out = tmp_path / "model"
    size = ["--hidden-size", 16, "--num-layers", 1, "--num-heads", 2]
    assert run("init-tiny", "--env", "istar/Sokoban-v0", "--out", out, *size) == 0
    assert str(out) in capsys.readouterr().out
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.config.hidden_size == 16
    assert model.config.vocab_size == len(tokenizer)
    assert "is not empty" in mistake(capsys, "init-tiny", "--out", out)


def test_an_unknown_environment_gets_no_tiny_model(capsys, tmp_path):
    line = mistake(capsys, "init-tiny", "--env", "istar/Chess-v0", "--out", tmp_path / "m")
    assert "no environment 'istar/Chess-v0'" in line
    assert not (tmp_path / "m").exists()


def test_a_policy_is_evaluated_on_a_listed_split(capsys, tmp_path, finished_run):
    path = write_config(tmp_path / "c.yaml", run_dir=str(finished_run))
    assert run("eval", path, "--split", "dev", "--tasks", 5) == 0
    first = capsys.readouterr().out
    assert first.startswith("dev: ")
    assert " of 5 solved" in first
    assert "95% interval" in first
    policy = ["--policy", finished_run / "policy"]
    assert run("eval", path, "--split", "dev", "--tasks", 5, *policy) == 0
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--split", "tset"], "unknown split 'tset'. Known: train, dev, test."),
        (["--split", "train"], "has an endless split"),
        (["--tasks", "99999"], "wants 99999 listed tasks"),
        (["--policy", "nowhere"], "no model in nowhere"),
    ],
)
def test_what_cannot_be_evaluated_is_explained(capsys, tmp_path, finished_run, words, hint):
    path = write_config(tmp_path / "c.yaml", run_dir=str(finished_run))
    assert hint in mistake(capsys, "eval", path, *words)


def test_a_run_without_a_policy_cannot_be_evaluated(capsys, config):
    assert "no model in" in mistake(capsys, "eval", config)


def test_episodes_are_recorded_and_appended(capsys, tmp_path, finished_run):
    path = write_config(tmp_path / "c.yaml", run_dir=str(finished_run))
    out = tmp_path / "episodes.jsonl"
    for _ in range(2):
        assert run("rollout", path, "--out", out, "--tasks", 3) == 0
    assert f"3 episodes appended to {out}" in capsys.readouterr().out
    episodes = list(read_episodes(out))
    assert len(episodes) == 6
    assert episodes[:3] == episodes[3:]
    assert len({episode.task_id for episode in episodes[:3]}) == 3


def test_a_place_that_episodes_cannot_go_to_is_named(capsys, tmp_path, finished_run):
    path = write_config(tmp_path / "c.yaml", run_dir=str(finished_run))
    line = mistake(capsys, "rollout", path, "--out", tmp_path / "no" / "folder.jsonl", "--tasks", 1)
    assert "cannot write" in line
    assert "Choose another --out" in line


def test_the_report_is_written_again(capsys, finished_run):
    before = (finished_run / "report.html").read_text()
    assert run("report", finished_run) == 0
    assert str(finished_run / "report.html") in capsys.readouterr().out.replace("\n", "")
    assert (finished_run / "report.html").read_text() == before


def test_a_run_that_is_not_there_has_no_report(capsys, tmp_path):
    assert str(tmp_path / "gone") in mistake(capsys, "report", tmp_path / "gone")


def test_only_the_warm_start_can_be_done(capsys, tmp_path):
    small = {"episodes": 5, "batch_size": 8, "max_epochs": 1, "eval_tasks": 2}
    path = write_config(tmp_path / "c.yaml", run_dir=str(tmp_path / "run"), warm_start=small)
    assert run("sft", path) == 0
    shown = capsys.readouterr().out.replace("\n", "")
    assert str(tmp_path / "run" / "warm_start") in shown
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "warm_start") is not None
    assert not (tmp_path / "run" / "policy").exists()
    weights = (tmp_path / "run" / "warm_start" / "model.safetensors").read_bytes()
    assert run("sft", path, "--resume") == 0
    assert (tmp_path / "run" / "warm_start" / "model.safetensors").read_bytes() == weights


def test_training_goes_on_after_the_warm_start_was_done_alone(capsys, tmp_path):
    changes = {
        "warm_start": {"episodes": 5, "batch_size": 8, "max_epochs": 1, "eval_tasks": 2},
        "iterations": 1,
        "eval": {"dev_tasks": 1, "test_tasks": 1},
    }
    path = write_config(tmp_path / "c.yaml", run_dir=str(tmp_path / "run"), **changes)
    assert run("sft", path) == 0
    assert run("train", path, "--resume") == 0
    assert "report:" in capsys.readouterr().out
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1


def test_an_interrupt_says_how_to_go_on(capsys, config, monkeypatch):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "run_training", interrupted)
    assert run("train", config) == 130
    assert "go on with --resume" in capsys.readouterr().err


def test_the_program_ends_with_the_code_of_its_command(capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(["trian"])
    assert error.value.code == 2
    assert "trian" in capsys.readouterr().err


def test_a_configuration_on_disk_is_what_the_command_printed(capsys, finished_run, tmp_path):
    path = write_config(tmp_path / "c.yaml", run_dir=str(finished_run))
    assert run("config", path) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((finished_run / "config.json").read_text())


def test_a_plan_says_what_fits_by_its_text_and_its_code(capsys, config):
    assert run("plan", str(config)) == 0
    assert "Fits." in capsys.readouterr().out
    path = config.with_name("large.yaml")
    path.write_text("{model: {path: models/qwen2.5-7b-instruct}, rollout: {max_response_tokens: 512}}")
    assert run("plan", str(path), "--gpus", "8") == 1
    shown = capsys.readouterr().out
    assert "Does not fit: each learner GPU needs" in shown
    assert "ZeRO-3 instead of LoRA" in shown
    assert "7,615,616,512 parameters" in shown


def test_a_plan_can_be_made_for_another_machine(capsys, config):
    assert run("plan", str(config), "--gpus", "8", "--gpu-memory-gb", "4", "--reserve-gb", "3.99") == 1
    assert "on each of 8 learner GPUs" in capsys.readouterr().out
