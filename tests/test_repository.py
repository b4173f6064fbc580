"""What the repository says of itself is true: links, commands, names, examples, pins and metadata."""

import ast
import doctest
import importlib
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import gymnasium as gym
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import istar_envs
from istar_envs.agent import Conversation
from istar_envs.episode import write_episodes
from istar_trainer.algorithms import ALGORITHMS
from istar_trainer.cli import _COMMANDS
from istar_trainer.compare.plan import load_plan
from istar_trainer.config_files import load_config
from istar_trainer.credits import CREDITS

ROOT = Path(__file__).parents[1]
PACKAGES = ("envs", "judges", "trainer")
OWN = {f"istar_{name}" for name in PACKAGES}
TEXT = {"", ".py", ".md", ".toml", ".yaml", ".txt", ".html"}
TOP = [path for path in ROOT.iterdir() if path.name != "runs" and (path.name[0] != "." or path.name == ".ci")]
FILES = sorted(
    path
    for top in TOP
    for path in (top.rglob("*") if top.is_dir() else [top])
    if path.is_file() and path.suffix in TEXT and not {"dist", "build"} & set(path.parts)
)
PAGES = [path for path in FILES if path.suffix == ".md"]
MAKE = re.compile(r"^\s*(?:\$ )?make ([a-z][a-z-]*)", re.MULTILINE)
ISTAR = re.compile(r"^\s*(?:\$ )?(?:\S*bin/)?istar ([a-z][a-z-]*)", re.MULTILINE)
MODULES = sorted(ROOT.glob("packages/*/src/**/*.py"))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def project(package: str) -> dict:
    return tomllib.loads(text_of(ROOT / "packages" / package / "pyproject.toml"))["project"]


def pins(*names: str) -> dict[str, str]:
    lines = [line for name in names for line in text_of(ROOT / f"requirements/{name}.txt").splitlines()]
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def anchors(page: str) -> set[str]:
    """Return the link targets of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code_of(page: str) -> str:
    """Return what a page sets in code: fenced and indented blocks, and words between backticks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^ {4}\S.*$", page, re.MULTILINE)
    return "\n".join((*blocks, *indented, *re.findall(r"`([^`\n]+)`", page)))


def test_every_test_module_has_a_name_of_its_own():
    names = [path.name for path in ROOT.glob("tests/**/*.py") if path.name != "conftest.py"]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/**/*.yaml")), ids=lambda path: path.name)
def test_every_configuration_loads(path):
    load_plan(path) if path.name.startswith("compare_") else load_config(path)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(?<![\w.])/(work|root|home|Users)/\w", "a path of one machine"),
        (r"--(extra-)?index[-]url|--find[-]links|https?://\S*/simple\b", "an index address"),
        (r"\b(TODO|FIXME|XXX)\b", "unfinished work"),
    ],
    ids=["machine paths", "index addresses", "unfinished work"],
)
def test_no_file_holds(pattern, why):
    found = [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in FILES
        if path != Path(__file__)
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if re.search(pattern, line)
    ]
    assert not found, f"{why}: {found}"


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_relative_link_leads_somewhere(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        is_page = target.suffix == ".md" and target.is_file()
        if "://" in link:
            continue
        if not target.exists() or (anchor and is_page and anchor not in anchors(text_of(target))):
            broken.append(link)
    assert not broken, broken


def test_every_command_that_a_page_shows_exists():
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    unknown = set()
    for page in PAGES:
        code = code_of(text_of(page))
        unknown |= {f"{shown(page)}: make {x}" for x in re.findall(MAKE, code) if x not in targets}
        unknown |= {f"{shown(page)}: istar {x}" for x in re.findall(ISTAR, code) if x not in _COMMANDS}
    assert not unknown, unknown


def test_every_function_and_test_of_the_paper_map_exists():
    page = text_of(ROOT / "docs/paper_map.md")
    rows = [line for line in page.splitlines() if "`test_" in line]
    tests = {path.stem: text_of(path) for path in ROOT.glob("tests/**/test_*.py")}
    missing = []
    for name in re.findall(r"`([\w.]+)`", "\n".join(rows)):
        module, _, attribute = name.rpartition(".")
        if module in tests:
            known = f"def {attribute}(" in tests[module]
        else:
            path = module if module.partition(".")[0] in OWN else f"istar_trainer.{module}"
            known = hasattr(importlib.import_module(path), attribute)
        missing += [] if known else [name]
    assert rows
    assert not missing, missing


def test_every_algorithm_credit_method_and_preset_is_explained():
    page = text_of(ROOT / "docs/algorithms.md")
    words = [kind.model_fields["type"].default for kind in (*ALGORITHMS, *CREDITS)]
    missing = [word for word in words if f"\n### {word}\n" not in page]
    presets = [path.stem for path in ROOT.glob("configs/presets/*.yaml")]
    missing += [name for name in presets if f"| [{name}](../configs/presets/{name}.yaml) |" not in page]
    assert words
    assert presets
    assert not missing, missing


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_has_a_line_in_the_page_of_its_package(package):
    page = text_of(ROOT / "packages" / package / "README.md")
    names = [path.name for path in MODULES if f"istar_{package}" in path.parts and path.name != "__init__.py"]
    missing = [name for name in names if name not in page]
    assert names
    assert not missing, missing


@pytest.mark.parametrize("package", PACKAGES)
def test_the_python_examples_of_a_package_page_run(package, tmp_path):
    blocks = re.findall(
        r"^```python\n(.*?)^```", text_of(ROOT / f"packages/{package}/README.md"), re.M | re.S
    )
    assert blocks
    conversation = Conversation(gym.make("istar/Sokoban-v0"), template="bare-v1")
    conversation.reset(seed=0)
    while not conversation.done:
        conversation.respond("<action>up</action>")
    write_episodes(tmp_path / "episodes.jsonl", [conversation.episode()])
    names = {"path": tmp_path / "episodes.jsonl"}
    for block in blocks:
        exec(compile(block, f"packages/{package}/README.md", "exec"), names)


@pytest.mark.parametrize(
    "path", [path for path in MODULES if ">>> " in text_of(path)], ids=lambda path: path.stem
)
def test_examples_in_docstrings_are_true(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts[3:])
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert not result.failed


def test_the_change_log_and_all_packages_tell_one_version():
    versions = {project(package)["version"] for package in PACKAGES} | {istar_envs.__version__}
    newest = re.search(r"^## \[?([\d.]+)", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)
    assert newest
    assert versions == {newest[1]}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_carries_the_license(package):
    assert text_of(ROOT / "packages" / package / "LICENSE") == text_of(ROOT / "LICENSE")


def test_pins_are_exact_and_each_stands_once():
    lines = [
        line
        for name in ("base", "test", "weights")
        for line in text_of(ROOT / f"requirements/{name}.txt").splitlines()
        if not line.startswith("#")
    ]
    assert [line for line in lines if not re.fullmatch(r"[\w-]+==[\w.]+", line)] == []
    names = [canonicalize_name(line.split("==")[0]) for line in lines]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("package", PACKAGES)
def test_pins_satisfy_what_a_package_says_it_needs(package):
    pinned = {canonicalize_name(name): Version(version) for name, version in pins("base").items()}
    needed = [Requirement(line) for line in project(package)["dependencies"]]
    for requirement in needed:
        if requirement.name.replace("-", "_") not in OWN:
            assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, str(requirement)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_declares_what_it_imports(package):
    metadata = project(package)
    extras = [line for lines in metadata.get("optional-dependencies", {}).values() for line in lines]
    declared = {canonicalize_name(Requirement(line).name) for line in (*metadata["dependencies"], *extras)}
    tops = set()
    for path in (path for path in MODULES if f"istar_{package}" in path.parts):
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.Import):
                tops |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                tops.add(node.module.partition(".")[0])
    foreign = tops - set(sys.stdlib_module_names) - {f"istar_{package}"}
    providers = packages_distributions()
    undeclared = {
        top
        for top in foreign
        if not declared & {canonicalize_name(name) for name in providers.get(top, [top])}
    }
    assert not undeclared, undeclared


def test_continuous_integration_runs_all_tests_and_hooks_are_local():
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o111
    assert re.findall(r"^make ([a-z-]+)", text_of(script), re.MULTILINE) == ["test", "test-slow"]
    hooks = yaml.safe_load(text_of(ROOT / ".pre-commit-config.yaml"))
    assert {repo["repo"] for repo in hooks["repos"]} == {"local"}
