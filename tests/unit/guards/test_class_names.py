"""A class name means one thing: no two files of the product define a top-level class of the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.support.paths import ROOT

GENERATED = ROOT / "libs" / "stratos" / "api"


def class_names() -> dict[str, list[str]]:
    """Files by the names of the classes that they define."""
    files = [path for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py")]
    found: dict[str, list[str]] = defaultdict(list)
    for path in files:
        if GENERATED not in path.parents:
            for name in _classes(path):
                found[name].append(str(path.relative_to(ROOT)))
    return found


def _classes(path: Path) -> list[str]:
    return [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]


def test_no_class_name_is_defined_twice() -> None:
    names = class_names()
    assert len(names) > 500
    assert {name: files for name, files in names.items() if len(files) > 1} == {}
