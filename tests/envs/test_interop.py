"""Other libraries play and train on our environments: each is installed here and run for real.

Each has an environment of its own below ``.venv-interop``, kept for the next time, which sees the packages of
this one behind its own.
"""

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TRL = "trl==1.16.0 accelerate==1.15.0 datasets==5.2.0 pandas psutil jmespath multiprocess dill xxhash".split()
LIBRARIES = {
    "openenv": ["openenv==0.10.0"],
    "trl": ["--no-deps", *TRL],  # torch and transformers are here
    "verifiers": ["verifiers==0.4.0", "uv"],
}


def interpreter(library: str) -> Path:
    """Return the Python of an environment with a library, made on first use."""
    folder = ROOT / ".venv-interop" / library
    complete, wanted = folder / "complete", " ".join(LIBRARIES[library])
    python = folder / "bin/python"
    if not complete.exists() or complete.read_text(encoding="utf-8") != wanted:
        venv.create(folder, clear=True, with_pip=True)
        command = [python, "-m", "pip", "install", "--quiet", "--no-input", *LIBRARIES[library]]
        subprocess.run(command, check=True)
        site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
        (site / "zz_behind.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        complete.write_text(wanted, encoding="utf-8")
    return python


def played_with(library: str, folder: Path) -> dict:
    """Run a library's program; returns what it printed last."""
    paths = (ROOT / "packages/envs/src", ROOT / f"examples/with_{library}")
    python = interpreter(library)
    programs = os.pathsep.join((str(python.parent), os.environ["PATH"]))  # verifiers calls uv
    done = subprocess.run(
        [python, Path(__file__).with_name(f"interop_{library}.py")],
        cwd=folder,
        env={
            **os.environ,
            "PATH": programs,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_openenvs_client_plays_as_a_conversation_does(tmp_path):
    seen = played_with("openenv", tmp_path)
    assert set(seen) == {"istar/Sokoban-v0", "istar/VisualSokoban-v0", "istar/WebShop-v1"}
    for name, game in seen.items():
        assert game["same"], name
        assert game["success"], name
        assert game["steps"] > 2
        assert game["other"] == 0
        assert game["left"] == []
        assert game["schema"] == ["reply"]
    assert seen["istar/VisualSokoban-v0"]["pictures"] == "data:image/png;base64,"


def test_trls_trainer_calls_the_tools_and_learns_from_the_rewards(tmp_path):
    seen = played_with("trl", tmp_path)
    log = seen["log"]
    assert log["tools/call_frequency"] == seen["moves"] * 2 / 4  # two of four games are the expert's
    assert log["tools/failure_frequency"] == 0
    assert log["rewards/Sokoban/mean"] == pytest.approx(seen["return"] * 2 / 4, rel=1e-5)  # float32
    assert seen["learned"]


def test_verifiers_plays_whole_episodes(tmp_path):
    seen = played_with("verifiers", tmp_path)
    assert seen["errors"] == []
    assert seen["rewards"] == {"return": pytest.approx(seen["return"])}
    assert seen["metrics"]["success"] == 1.0
    assert seen["turns"] == seen["moves"]
    assert seen["tasks"] == 3
