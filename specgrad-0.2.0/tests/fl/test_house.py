"""Who imports whom: no cycle, and the core knows neither Flower nor the studies."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "python"


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in ROOT.rglob("*.py")}


def imports_of(path: Path) -> set[str]:
    """Our own modules that a file imports, at any level; not those for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else node.module)
    return found & set(MODULES)


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return {name: imports_of(path) for name, path in MODULES.items()}


def test_no_import_cycle_at_any_level(graph):
    """Imports inside functions count: one that hides a cycle is one."""
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_the_core_knows_neither_flower_nor_the_studies(graph):
    for name, found in graph.items():
        if name.startswith("specgrad_fl") and not name.startswith("specgrad_fl.flower"):
            strangers = {n for n in found if n.startswith(("specgrad_fl.flower", "specgrad_study"))}
            assert not strangers, f"{name} imports {strangers}"
            for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and node.value in MODULES:
                    named = str(node.value).startswith(("specgrad_fl.flower", "specgrad_study"))
                    assert not named, f"{name} names {node.value}"


def test_the_data_know_nothing_of_the_trainer(graph):
    for name, found in graph.items():
        if name.startswith("specgrad_data"):
            assert all(other.startswith("specgrad_data") for other in found), name


def test_flower_does_not_know_the_studies(graph):
    for name, found in graph.items():
        if name.startswith("specgrad_fl.flower"):
            assert not {n for n in found if n.startswith("specgrad_study")}, name


def test_constructors_start_no_process_and_open_no_file():
    starting = {"Popen", "start", "open", "unlink", "write_text", "write_bytes", "mkdir"}
    for name, path in MODULES.items():
        if not name.startswith("specgrad_fl") or name.startswith("specgrad_fl.flower"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                called = {
                    getattr(call.func, "attr", getattr(call.func, "id", ""))
                    for call in ast.walk(node)
                    if isinstance(call, ast.Call)
                }
                assert not called & starting, f"{name}: a constructor calls {called & starting}"


def test_docstrings_begin_with_a_verb_or_a_noun():
    """Sources of all packages: none begins with a question word or as half a sentence."""
    half = re.compile(r"(What|Of|By|How|Whether)\b")
    folders = ("python", "specgrad_kernels", "benchmarks", "tests")
    paths = [path for name in folders for path in (ROOT.parent / name).rglob("*.py")]
    found = [
        f"{path.name}: {told.splitlines()[0]}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and half.match(told := ast.get_docstring(node) or "")
    ]
    assert len(paths) > 100
    assert found == []
