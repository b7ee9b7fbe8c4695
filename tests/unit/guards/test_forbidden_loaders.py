"""Nothing that can run code from data: an AST scan of all shipped code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FOLDERS = ("libs", "services", "scripts", "examples")
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
MODULES |= {"multiprocessing.shared_memory", "torch.package"}
CALLS = {"torch.load", "torch.jit.load", "torch.hub.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
CALLS |= {"numpy.load", "np.load", "init_process_group", "shared_memory.SharedMemory", "SharedMemory"}
BARE = {"eval", "exec", "compile", "__import__"}
LAST_PARTS = {name.rpartition(".")[2] for name in MODULES | CALLS | BARE}
MAY_OFFEND = re.compile(rf"\b({'|'.join(sorted(LAST_PARTS))})\b")


def dotted(node: ast.expr) -> str:
    """The dotted name of an expression, or ""."""
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def offences(source: str, name: str) -> list[str]:
    """What is forbidden in a file, with line numbers."""
    found: list[str] = []
    if not MAY_OFFEND.search(source):  # reading the syntax of all files takes seconds
        return found
    for node in ast.walk(ast.parse(source)):
        for module in imported(node):
            if any(module == bad or module.startswith(f"{bad}.") for bad in MODULES) or module in CALLS:
                found.append(f"{name}:{node.lineno} imports {module}")
        if isinstance(node, ast.Call):
            called = dotted(node.func)
            is_bare = isinstance(node.func, ast.Name) and called in BARE
            is_loader = any(called == bad or called.endswith(f".{bad}") for bad in CALLS)
            if is_bare or is_loader:
                found.append(f"{name}:{node.lineno} calls {called}")
    return found


def shipped_files() -> list[Path]:
    files = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py") if "libs/stratos/api/" not in p.as_posix()]
    assert len(files) > 100
    return files


def test_no_shipped_file_loads_code_from_data() -> None:
    found = [o for path in shipped_files() for o in offences(path.read_text(), str(path.relative_to(ROOT)))]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "import yaml\nyaml.load('x')",
        "eval('1')",
        "exec('1')",
        "from multiprocessing import shared_memory",
        "import torch.distributed as dist\ndist.init_process_group('gloo')",
        "import numpy as np\nnp.load('x')",
    ],
)
def test_the_scan_sees(code: str) -> None:
    if code == "from torch import load":
        assert offences(code, "sample") == ["sample:1 imports torch.load"]
    assert offences(code, "sample")


def test_the_scan_lets_ordinary_code_pass() -> None:
    code = "import re\nmodel.eval()\nre.compile('x')\njson.loads('1')\nyaml.safe_load('x')"
    assert offences(code, "sample") == []
