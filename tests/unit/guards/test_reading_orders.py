"""Every package says in which order to read it, and the modules that it names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PHRASE = "Read in this order"
GENERATED = ROOT / "libs" / "stratos" / "api"
_IN_BRACKETS = re.compile(r"\([^()]*\)")
_NAME = re.compile(r"``([^`]+)``")


def packages() -> list[Path]:
    inits = [path for folder in ("libs", "services") for path in (ROOT / folder).rglob("__init__.py")]
    return sorted(path.parent for path in inits if not path.is_relative_to(GENERATED))


def docstring_of(package: Path) -> str:
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""


def names_in_order(docstring: str) -> list[str]:
    """Names after the phrase; what stands in brackets explains the name before it."""
    _, found, order = docstring.partition(PHRASE)
    return _NAME.findall(_IN_BRACKETS.sub("", order)) if found else []


def exists(package: Path, name: str) -> bool:
    """A module, a folder, a dotted path to one, or a file that is not Python."""
    path = package.joinpath(*name.split("."))
    return path.with_name(f"{path.name}.py").is_file() or (path / "__init__.py").is_file() or (package / name).is_file()


def modules_of(package: Path) -> set[str]:
    files = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    return files | {path.parent.name for path in package.glob("*/__init__.py")}


@pytest.mark.parametrize("package", packages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_module_of_a_reading_order_exists(package: Path) -> None:
    names = names_in_order(docstring_of(package))
    assert [name for name in names if not exists(package, name)] == []
    assert len(modules_of(package)) < 2 or len(names) >= 2, f"two modules or more, and no '{PHRASE}'"


def test_a_name_without_a_module_is_found() -> None:
    names = names_in_order("One line of ``words``.\n\nRead in this order: ``core`` (beside ``other``), ``gone``.")
    engine = ROOT / "libs" / "stratos" / "engine"
    assert names == ["core", "gone"]
    assert [exists(engine, name) for name in (*names, "native", "native.library", "native/gemm.h")] == [
        True,
        False,
        True,
        True,
        True,
    ]
