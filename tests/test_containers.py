"""The files of docker/ agree with each other and with the packages, and what they describe runs."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from istar_envs import __version__
from istar_envs.server.command import DEFAULT_PORT
from istar_envs.server.limits import Limits

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
KUBERNETES = list(yaml.safe_load_all((DOCKER / "kubernetes.yaml").read_text(encoding="utf-8")))
PINNED = re.compile(r"[\w./-]+:v?\d+(\.\d+)+[\w.-]*")


def default_of(setting: str) -> str:
    """Return what ``${NAME:-default}`` stands for when the variable is not set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", setting)


def of_kind(kind: str) -> dict[str, dict]:
    return {each["metadata"]["name"]: each for each in KUBERNETES if each["kind"] == kind}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_has_an_exact_base_and_no_root(path):
    text = path.read_text(encoding="utf-8")
    bases = re.findall(r"^ARG \w+_IMAGE=(\S+)$", text, re.MULTILINE)
    assert bases
    assert all(PINNED.fullmatch(base) for base in bases)
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE) == ["10001:10001"]
    assert len(re.findall(r"^FROM ", text, re.MULTILINE)) > 1
    assert "HEALTHCHECK" in text


def test_the_image_of_the_environments_gets_neither_torch_nor_the_other_packages():
    text = (DOCKER / "envs.Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^COPY (?!--from)(\S+)", text, re.MULTILINE) == [
        "requirements/base.txt",
        "packages/envs",
    ]
    needed = tomllib.loads((ROOT / "packages/envs/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not any("torch" in line for line in needed["dependencies"])


def test_every_image_of_a_service_is_exact_and_of_this_version():
    images = {name: default_of(service["image"]) for name, service in SERVICES.items()}
    assert all(PINNED.fullmatch(image) for image in images.values()), images
    own = {image for image in images.values() if image.startswith("istar-")}
    assert {image.split(":")[1].split("-")[0] for image in own} == {__version__}
    tags = yaml.safe_load((DOCKER / "kustomization.yaml").read_text(encoding="utf-8"))["images"]
    assert [tag["newTag"] for tag in tags] == [__version__]
    proxy = of_kind("Deployment")["istar-proxy"]["spec"]["template"]["spec"]["containers"][0]
    assert proxy["image"] == images["proxy"]


def test_every_service_has_a_profile_and_the_environments_are_the_default():
    assert {profile for service in SERVICES.values() for profile in service["profiles"]} == {
        "envs",
        "judge",
        "train",
    }
    assert "COMPOSE_PROFILES=envs" in (DOCKER / ".env").read_text(encoding="utf-8").splitlines()


def test_services_are_bounded_and_published_to_this_machine_only():
    for name, service in SERVICES.items():
        assert "memory" in service["deploy"]["resources"]["limits"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    assert default_of(SERVICES["proxy"]["ports"][0]).split(":")[1] == str(DEFAULT_PORT)


def test_no_service_waits_for_a_health_check():
    assert all(isinstance(service.get("depends_on", []), list) for service in SERVICES.values())


def test_running_steps_may_end_before_a_replica_is_killed():
    grace_s = Limits().grace_s
    pod = of_kind("Deployment")["istar-envs"]["spec"]["template"]["spec"]
    assert float(SERVICES["envs"]["stop_grace_period"].rstrip("s")) > grace_s
    assert pod["terminationGracePeriodSeconds"] > grace_s


def test_the_kubernetes_services_select_pods_that_listen_on_their_ports():
    pods = {
        tuple(each["spec"]["selector"]["matchLabels"].items()): each["spec"]["template"]
        for each in of_kind("Deployment").values()
    }
    for name, service in of_kind("Service").items():
        pod = pods[tuple(service["spec"]["selector"].items())]
        assert pod["metadata"]["labels"] == service["spec"]["selector"]
        ports = {port["name"]: port for each in pod["spec"]["containers"] for port in each["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports.keys(), name
    for pod in pods.values():
        mounted = {mount["name"] for each in pod["spec"]["containers"] for mount in each["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}
    proxy = of_kind("Deployment")["istar-proxy"]["spec"]["template"]["spec"]["containers"][0]
    hosts = [each["value"] for each in proxy["env"] if each["name"] == "ISTAR_ENVS_HOST"]
    assert hosts == [name for name, each in of_kind("Service").items() if "clusterIP" in each["spec"]]


def test_continuous_integration_installs_what_the_check_of_the_containers_needs():
    script = (ROOT / "scripts/compose_check.py").read_text(encoding="utf-8")
    programs = re.search(r"^PROGRAMS = \((.*)\)$", script, re.MULTILINE)
    others = re.search(r"^PACKAGES = \(\*PROGRAMS, (.*)\)$", script, re.MULTILINE)
    assert programs
    assert others
    wanted = re.findall(r'"([\w-]+)"', programs[1] + others[1])
    assert " ".join(wanted) in (ROOT / ".ci/run").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_services_come_up_play_as_local_environments_do_and_go_down():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/compose_check.py"], capture_output=True, text=True, check=False
    )
    refusal = re.match(r"compose_check: (.*(?:not found|needs root).*)", done.stderr)
    if refusal:
        pytest.skip(refusal[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok  down" in done.stdout
