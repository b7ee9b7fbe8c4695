"""Tests ask objects what they hold through public names: a private read breaks with every change inside a class."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

EXEMPT = {
    (
        "tests/support/reference/triton_interpreter.py",
        "_patch_lang_tensor",
    ): "mends Triton's interpreter, which has no hook for it",
    (
        "tests/support/reference/triton_interpreter.py",
        "_convert_float",
    ): "mends Triton's interpreter, which has no hook for it",
    (
        "tests/support/reference/triton_interpreter.py",
        "_patch_lang",
    ): "mends Triton's interpreter, which has no hook for it",
    (
        "tests/support/reference/triton_interpreter.py",
        "_patch_attr",
    ): "mends Triton's interpreter, which has no hook for it",
    (
        "tests/support/reference/triton_interpreter.py",
        "_get_np_dtype",
    ): "mends Triton's interpreter, which has no hook for it",
    (
        "tests/support/reference/triton_interpreter.py",
        "_LangPatchScope",
    ): "mends Triton's interpreter, which has no hook for it",
    ("tests/support/worlds/worker_world.py", "_transports"): "puts faulty senders in the place of sound ones",
    ("tests/unit/cli/data/test_folder.py", "_locks"): "drops the locks as the kernel does when a process is killed",
    ("tests/unit/worker/test_metrics.py", "_blocks"): "loses a block, which no public name allows",
    ("tests/unit/worker/test_metrics.py", "_free"): "loses a block, which no public name allows",
}
"""(file, attribute): why there is no public name for it. At most ten."""
MAY_READ = re.compile(r"(?<!\bself)(?<!\bcls)(?<!\bsuper\(\))\s*\.\s*_(?!_)")


def private_reads(source: str) -> list[tuple[int, str]]:
    """(line, attribute) of attributes with a leading underscore on anything but ``self``, ``cls`` and ``super()``."""
    found: list[tuple[int, str]] = []
    if not MAY_READ.search(source):  # reading the syntax of all tests takes seconds
        return found
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        if ast.unparse(node.value) not in ("self", "cls", "super()") and ast.unparse(node) != "os._exit":
            found.append((node.lineno, node.attr))
    return found


@cache
def reads_of_tests() -> list[tuple[str, int, str]]:
    files = [(path.relative_to(ROOT).as_posix(), path) for path in sorted((ROOT / "tests").rglob("*.py"))]
    return [(name, line, attribute) for name, path in files for line, attribute in private_reads(_text(path))]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_private_state_of_other_objects_is_not_read() -> None:
    others = [f"{file}:{line} {name}" for file, line, name in reads_of_tests() if (file, name) not in EXEMPT]
    assert others == []


def test_exemptions_are_few_and_in_use() -> None:
    assert len(EXEMPT) <= 10
    assert EXEMPT.keys() <= {(file, name) for file, _, name in reads_of_tests()}


@pytest.mark.parametrize(
    ("source", "attributes"),
    [
        ("engine._blocks._free.pop()", ["_free", "_blocks"]),
        ("runners[0]._forward", ["_forward"]),
        ("self.process._gate", ["_gate"]),
        ("self._x, cls._x, super()._x, thing.x, thing.__class__, os._exit(1)", []),
    ],
)
def test_reads_are_found(source: str, attributes: list[str]) -> None:
    assert [name for _, name in private_reads(source)] == attributes
