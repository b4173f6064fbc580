"""Budgets of size and shape that keep the code readable, measured on every module of the packages.

Formatting, complexity, types, docstrings and layers are checked by the tools of `make lint`; here
is what none of them measures.
"""

import ast
import graphlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, quantiles

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(ROOT.glob("packages/*/src/**/*.py"))
TRAINER = ROOT / "packages/trainer/src/istar_trainer"

READING_PATH = [
    "packages/trainer/src/istar_trainer/train.py",
    "packages/envs/src/istar_envs/sokoban/env.py",
    "packages/envs/src/istar_envs/sokoban/game.py",
    "packages/envs/src/istar_envs/agent.py",
    "packages/trainer/src/istar_trainer/rollout.py",
    "packages/trainer/src/istar_trainer/batch.py",
    "packages/trainer/src/istar_trainer/model.py",
    "packages/trainer/src/istar_trainer/credits/istar.py",
    "packages/trainer/src/istar_trainer/update.py",
    "packages/trainer/src/istar_trainer/losses.py",
]
"""From an environment's step to the loss, in the order in which data flows; the README names it too."""
PURE = [
    "masked",
    "implicit_reward",
    "attribution",
    "step_credit",
    "state_credit",
    "advantages",
    "gae",
    "losses",
]
"""Modules that hold nothing but functions from tensors to tensors."""
NO_DUPLICATES = [*PURE, "prm", "critic", "algorithms.base", "algorithms.grpo", "algorithms.ppo"]
ARRAY_TYPES = {"Float", "Int", "Bool"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    """Return a module's dotted name."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[3:]).removesuffix(".__init__")


TREES = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
LENGTHS = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def length(function: Function) -> int:
    """Count a function's lines from its signature to its end, without its docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    return lines - ((docstring.end_lineno or 0) - docstring.lineno + 1)


FUNCTION_LENGTHS = {
    f"{name}:{node.lineno} {node.name}": length(node)
    for name, tree in TREES.items()
    for node in functions(tree)
}


@pytest.mark.parametrize(
    ("sizes", "cap", "nine_tenths", "typical", "average"),
    [
        (LENGTHS, 400, 350, (150, "median"), lambda values: quantiles(values, n=2)[0]),
        (FUNCTION_LENGTHS, 60, 40, (15, "mean"), mean),
    ],
    ids=["modules", "functions"],
)
def test_lines_stay_within_the_budget(sizes, cap, nine_tenths, typical, average):
    values = list(sizes.values())
    limit, statistic = typical
    measured = (
        f"{statistic} {average(values):.1f}, p90 {quantiles(values, n=10)[-1]:.0f}, longest {max(values)}"
    )
    too_long = {name: lines for name, lines in sizes.items() if lines > cap}
    assert not too_long, f"longer than {cap} lines: {too_long} ({measured})"
    assert quantiles(values, n=10)[-1] <= nine_tenths, measured
    assert average(values) <= limit, measured


def test_no_function_takes_more_than_five_positional_arguments():
    found = []
    for name, tree in TREES.items():
        for node in functions(tree):
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
            if len(names) - (names[:1] in (["self"], ["cls"])) > 5:
                found.append(f"{name}:{node.lineno} {node.name}")
    assert not found, "make the later arguments keyword-only: " + ", ".join(found)


def imported(tree: ast.AST) -> Iterator[str]:
    """Name the modules of this repository that a module imports, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in TREES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            whole = [node.module] if any(name not in TREES for name in submodules) else []
            yield from (name for name in (*submodules, *whole) if name in TREES)


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: set(imported(tree)) for name, tree in TREES.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_the_path_from_a_step_to_the_loss_is_short_and_named_in_the_readme():
    total = sum(LENGTHS[name_of(ROOT / path)] for path in READING_PATH)
    assert len(READING_PATH) <= 10
    assert total <= 2000, f"{total} lines"
    names = [path.split("/", 4)[-1] for path in READING_PATH]
    in_order = ".*?".join(re.escape(f"`{name}`") for name in names)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(in_order, readme, re.DOTALL), "README.md must name, in this order: " + " → ".join(names)


def bare_tensors(node: ast.AST) -> Iterator[ast.AST]:
    """Find ``Tensor`` in an annotation where no shape stands around it; weights by name have none."""
    if isinstance(node, ast.Name) and node.id == "Tensor":
        yield node
    if isinstance(node, ast.Subscript):
        kind = ast.unparse(node.value).rpartition(".")[-1]
        if kind in ARRAY_TYPES or ast.unparse(node) == "dict[str, Tensor]":
            return
    for child in ast.iter_child_nodes(node):
        yield from bare_tensors(child)


def test_public_functions_on_tensors_state_their_shapes():
    found = []
    for path in sorted(TRAINER.rglob("*.py")):
        for node in functions(TREES[name_of(path)]):
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            annotations = [argument.annotation for argument in arguments] + [node.returns]
            has_bare = any(True for note in annotations if note for _ in bare_tensors(note))
            if has_bare and (path.stem in PURE or not node.name.startswith("_")):
                found.append(f"{path.stem}.{node.name}")
    assert not found, found


def statements(tree: ast.AST) -> Iterator[list[str]]:
    """Yield each function's code as lines in one spelling, without docstrings and signature."""
    for node in functions(tree):
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        yield "\n".join(ast.unparse(statement) for statement in body).splitlines()


def test_the_formulas_are_written_once():
    places = defaultdict(set)
    for module in NO_DUPLICATES:
        for number, lines in enumerate(statements(TREES[f"istar_trainer.{module}"])):
            for start in range(len(lines) - 5):
                places["\n".join(lines[start : start + 6])].add((module, number, start))
    repeated = [run for run, where in places.items() if len(where) > 1]
    assert not repeated, "\n\n".join(repeated)
