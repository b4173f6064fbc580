"""The launch scripts: clean, and what they would run is what is meant."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(ROOT.glob("scripts/*.sh"))
LAUNCHERS = ["train_one_node", "train_nodes", "train_slurm"]
CONFIG = "configs/webshop_istar_qwen7b.yaml"
NAMES = {"ISTAR": "istar", "TORCHRUN": "torchrun", "DEEPSPEED": "deepspeed"}


def launch(name: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], **NAMES, **variables}
    command = ["bash", f"scripts/{name}.sh", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def commands(name: str, *words: str, **variables: str) -> list[list[str]]:
    """The commands that a dry run prints, as lists of words."""
    done = launch(name, "--dry-run", *words, **variables)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines()]


@pytest.fixture
def hostfile(tmp_path) -> str:
    path = tmp_path / "hosts"
    path.write_text("# two nodes\ngpu1 slots=8\n\ngpu2 slots=4 # the small one\n", encoding="utf-8")
    return str(path)


def test_shell_scripts_are_clean():
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    assert shellcheck, "install requirements/test.txt"
    command = [shellcheck, "-x", "-P", "scripts", *map(str, SCRIPTS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", LAUNCHERS)
def test_help_shows_how_to_use_a_script(name):
    done = launch(name, "--help")
    assert done.returncode == 0
    assert f"scripts/{name}.sh [--dry-run] CONFIG" in done.stdout
    assert "set -" not in done.stdout


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "no configuration given"),
        (["nothing.yaml"], "no configuration nothing.yaml"),
        (["--wrong"], "unknown option"),
    ],
)
def test_a_wrong_call_ends_with_code_2(name, words, hint):
    done = launch(name, *words)
    assert done.returncode == 2
    assert hint in done.stderr


def test_one_node_plans_and_then_starts_a_process_for_each_gpu():
    plan, train = commands("train_one_node", CONFIG, "--resume", "--run-dir", "runs/a b", GPUS="4")
    assert plan == [
        *("istar", "plan", CONFIG, "--gpus", "4", "--gpu-memory-gb", "80", "--run-dir", "runs/a b"),
    ]
    assert train == [
        *("torchrun", "--standalone", "--nproc-per-node", "4", "--no-python"),
        *("istar", "train", CONFIG, "--resume", "--run-dir", "runs/a b"),
    ]


def test_without_gpus_one_node_says_what_to_do(tmp_path):
    for name in ("bash", "dirname", "wc", "sed"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    done = launch("train_one_node", CONFIG, PATH=str(tmp_path))
    assert done.returncode == 2
    assert "set GPUS" in done.stderr


def test_a_run_that_does_not_fit_is_not_started(tmp_path):
    for name, code in (("istar", 1), ("torchrun", 0)):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*"\nexit {code}\n', encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    programs = {"ISTAR": str(tmp_path / "istar"), "TORCHRUN": str(tmp_path / "torchrun")}
    done = launch("train_one_node", CONFIG, GPUS="2", **programs)
    assert done.returncode == 1
    assert "torchrun" not in done.stdout
    forced = launch("train_one_node", CONFIG, GPUS="2", SKIP_PLAN="1", **programs)
    assert forced.returncode == 0
    assert "torchrun --standalone" in forced.stdout


def test_several_nodes_are_left_to_the_launcher_of_deepspeed(hostfile):
    [command] = commands("train_nodes", CONFIG, "--seed", "3", HOSTFILE=hostfile)
    assert command == [
        *("deepspeed", "--hostfile", hostfile, "--master_addr", "gpu1", "--master_port", "29500"),
        *("--no_python", "--no_local_rank", "istar", "train", CONFIG, "--seed", "3"),
    ]


def test_or_torchrun_is_started_on_every_host(hostfile):
    found = commands(
        "train_nodes", CONFIG, "--run-dir", "a b", HOSTFILE=hostfile, LAUNCHER="torchrun", PORT="1234"
    )
    assert [command[:3] for command in found] == [["ssh", "-tt", "gpu1"], ["ssh", "-tt", "gpu2"]]
    for rank, (command, slots) in enumerate(zip(found, ("8", "4"), strict=True)):
        words = shlex.split(command[3])
        assert words == [
            *("cd", str(ROOT), "&&", "env", "OMP_NUM_THREADS=1", "torchrun"),
            *("--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", slots),
            *("--master-addr", "gpu1", "--master-port", "1234", "--no-python"),
            *("istar", "train", CONFIG, "--run-dir", "a b"),
        ]


def test_a_node_that_fails_ends_the_others(tmp_path, hostfile):
    ssh = tmp_path / "ssh"
    ssh.write_text(
        '#!/bin/sh\n[ "$2" = gpu2 ] && exit 7\nexec sleep 60\n', encoding="utf-8"
    )  # the first host would go on for a minute
    ssh.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = launch("train_nodes", CONFIG, HOSTFILE=hostfile, LAUNCHER="torchrun", PATH=path)
    assert done.returncode == 7


@pytest.mark.parametrize(
    ("text", "hint"), [(None, "no hostfile"), ("gpu1\n", "has no line")], ids=["missing", "without slots"]
)
def test_a_hostfile_without_hosts_is_explained(tmp_path, text, hint):
    path = tmp_path / "hosts"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    done = launch("train_nodes", CONFIG, HOSTFILE=str(path))
    assert done.returncode == 2
    assert hint in done.stderr


def test_an_unknown_launcher_is_explained(hostfile):
    done = launch("train_nodes", CONFIG, HOSTFILE=hostfile, LAUNCHER="mpirun")
    assert done.returncode == 2
    assert "choose deepspeed or torchrun" in done.stderr


def test_slurm_gets_a_job_that_meets_on_its_first_node_and_goes_on_when_queued_again(tmp_path):
    variables = {"NODES": "2", "GPUS_PER_NODE": "4", "PARTITION": "gpu", "TIME": "1:00:00"}
    done = launch("train_slurm", "--dry-run", CONFIG, "--run-dir", "a b", **variables)
    assert done.returncode == 0, done.stderr
    submit, _, job = done.stdout.partition("\n")
    assert shlex.split(submit) == [
        *("sbatch", "--job-name", "istar", "--nodes", "2", "--ntasks-per-node", "1"),
        *("--gpus-per-node", "4", "--time", "1:00:00", "--requeue", "--open-mode", "append"),
        *("--output", "slurm-%j.log", "--partition", "gpu"),
    ]
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho node7\necho node8\n", encoding="utf-8")
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_JOB_ID": "12",
        "SLURM_RESTART_COUNT": "1",
    }
    ran = subprocess.run(["bash"], input=job, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        *("--kill-on-bad-exit=1", "torchrun", "--nnodes", "2", "--nproc-per-node", "4"),
        *("--rdzv-backend", "c10d", "--rdzv-id", "12", "--rdzv-endpoint", "node7:29500", "--no-python"),
        *("istar", "train", CONFIG, "--run-dir", "a b", "--resume"),
    ]
