"""What a unit test is: no process of its own, no server of another program, no model read while it is collected."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.process_starts import called_name, process_starts, starting_support

UNIT, SUPPORT = ROOT / "tests" / "unit", ROOT / "tests" / "support"
READERS = {"read_model_files", "read_adapter_files", "served_model", "shipped_tokenizer"}
READING_METHODS = {"load", "from_pretrained"}
"""Functions, and methods of classes, that read a model, an adapter or a tokenizer."""
MAY_READ = re.compile(rf"\b({'|'.join(sorted(READERS | READING_METHODS))})\b")
"""Most modules name none of them, and reading the syntax of all takes seconds."""
EXEMPT = {"guards/test_conflict_markers.py": "asks git which files are under version control"}
"""Path below tests/unit: why it starts a process all the same."""


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
    support = starting_support(ROOT)
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
