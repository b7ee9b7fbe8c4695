"""A class name means one thing: no two files of the product define a top-level class of the same name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.support.paths import ROOT

GENERATED = ROOT / "libs" / "stratos" / "api"


CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


def class_names() -> dict[str, list[Path]]:
    """Files by the names of the classes that they seem to define: those in texts are among them."""
    files = [path for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py")]
    found: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        if GENERATED not in path.parents:
            for name in CLASS.findall(path.read_text(encoding="utf-8")):
                found[name].append(path)
    return found


def defines(path: Path, name: str) -> bool:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return any(isinstance(node, ast.ClassDef) and node.name == name for node in body)


def test_no_class_name_is_defined_twice() -> None:
    names = class_names()
    assert len(names) > 500
    several = {name: [path for path in files if defines(path, name)] for name, files in names.items() if len(files) > 1}
    assert {name: files for name, files in several.items() if len(files) > 1} == {}
