"""Each package works when it is installed from its built wheel or sdist, away from this repository.

The environments are empty but for a path to the third-party packages that are here already, so
nothing is downloaded.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NEEDS = {"envs": ["envs"], "judges": ["envs", "judges"], "trainer": ["envs", "judges", "trainer"]}
KINDS = {"wheel": "whl", "sdist": "tar.gz"}

PLAY = """
import sys
import gymnasium as gym
import istar_envs
from istar_envs.agent import Conversation
from istar_envs.episode import write_episodes
from pathlib import Path

env = gym.make("istar/Sokoban-v0", split="test")
env.reset(seed=0)
assert len(env.unwrapped.task_ids()) >= 400
for template in ("think-v1", "act-v1", "bare-v1"):
    conversation = Conversation(env, template=template)
    conversation.reset(seed=0)
    assert conversation.messages()
while not conversation.done:
    conversation.respond("<action>up</action>")
write_episodes(Path("episodes.jsonl"), [conversation.episode()])
print(istar_envs.__file__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command outside the repository and return what it prints."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    parts = [str(part) for part in command]
    done = subprocess.run(parts, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Build an sdist of every package, and a wheel from that sdist."""
    out = tmp_path_factory.mktemp("built")
    for package in NEEDS:
        source = ROOT / "packages" / package
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source, cwd=out)
    return out


@pytest.fixture
def installed(built, tmp_path):
    """Return a function that installs a package and its siblings into a new environment."""

    def install(package: str, kind: str) -> Path:
        folder = tmp_path / "env"
        venv.create(folder, symlinks=True)
        site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
        (site / "third_party.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        files = [next(built.glob(f"istar_{name}-*.{KINDS[kind]}")) for name in NEEDS[package]]
        options = ("--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "--quiet")
        python = folder / "bin" / "python"
        run(sys.executable, "-m", "pip", "--python", python, "install", *options, *files, cwd=tmp_path)
        found = run(python, "-c", f"import istar_{package}; print(istar_{package}.__file__)", cwd=tmp_path)
        assert Path(found.strip()).is_relative_to(site)
        return folder / "bin"

    return install


@pytest.mark.parametrize("package", NEEDS)
def test_wheel_and_sdist_hold_every_file_of_the_package(built, package):
    source = ROOT / "packages" / package / "src"
    wanted = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wheel = zipfile.ZipFile(next(built.glob(f"istar_{package}-*.whl"))).namelist()
    with tarfile.open(next(built.glob(f"istar_{package}-*.tar.gz"))) as archive:
        sdist = [name.partition("/")[2] for name in archive.getnames()]
    assert wanted <= set(wheel)
    assert {f"src/{name}" for name in wanted} | {"LICENSE", "README.md", "pyproject.toml"} <= set(sdist)
    assert f"istar_{package}/py.typed" in wheel
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in wheel)
    foreign = [name for name in wheel if not name.startswith(f"istar_{package}")]
    assert not foreign


@pytest.mark.parametrize("kind", KINDS)
def test_the_environments_play_from_an_installed_package(installed, tmp_path, kind):
    run(installed("envs", kind) / "python", "-c", PLAY, cwd=tmp_path)
    assert (tmp_path / "episodes.jsonl").stat().st_size > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_judges_judge_from_an_installed_package(installed, tmp_path, kind):
    programs = installed("judges", kind)
    run(programs / "python", "-c", PLAY, cwd=tmp_path)
    assert '"status": "ok"' in run(programs / "istar-judge", "score", "episodes.jsonl", cwd=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_trainer_checks_itself_from_an_installed_package(installed, tmp_path, kind):
    programs = installed("trainer", kind)
    config = run(programs / "istar", "config", ROOT / "configs/tiny_cpu.yaml", cwd=tmp_path)
    assert '"iterations"' in config
    assert "WRONG" not in run(programs / "istar", "doctor", cwd=tmp_path)
