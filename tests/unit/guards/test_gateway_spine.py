"""The gateway's spine stays narrow: few imports per file, and no step or source is known to it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.paths import ROOT

GATEWAY = ROOT / "services" / "gateway" / "stratos_gateway"
NARROW = ("answering", "routes")
MAX_IMPORTS = 12
"""Modules of ours that a file of these rooms imports."""
RIBS = ("embedding", "generation", "ledger", "limits", "observe", "overflow", "policies", "response_cache")


def imported_modules(source: str) -> set[str]:
    """Modules of the project that a file imports."""
    nodes = ast.walk(ast.parse(source))
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name for name in names if name.partition(".")[0].startswith("stratos")}


def files(*rooms: str) -> list[Path]:
    found = [path for room in rooms for path in sorted((GATEWAY / room).glob("*.py"))]
    assert all((GATEWAY / room).is_dir() for room in rooms)
    return found


def test_a_file_of_the_spine_imports_few_modules() -> None:
    counts = {path.relative_to(GATEWAY): len(imported_modules(path.read_text())) for path in files(*NARROW)}
    assert max(counts.values()) > 5, "imports are found"
    assert {str(path): count for path, count in counts.items() if count > MAX_IMPORTS} == {}


@pytest.mark.parametrize("rib", RIBS)
def test_the_spine_knows_no_rib(rib: str) -> None:
    rooms = {path: imported_modules(path.read_text()) for path in files("answering")}
    known = {str(path): name for path, names in rooms.items() for name in names if f"stratos_gateway.{rib}." in name}
    assert files(rib)
    assert known == {}


def test_imports_of_our_own_are_told_from_others() -> None:
    source = "import os\nfrom starlette.types import Send\nfrom stratos.core.tenant import Tenant\n"
    assert imported_modules(source + "from stratos_gateway.app import GatewayApp\n") == {
        "stratos.core.tenant",
        "stratos_gateway.app",
    }
