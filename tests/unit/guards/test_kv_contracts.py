"""KV transfer has four contracts between a leg and a copy of bytes; those below them belong to single transports."""

from __future__ import annotations

import ast

from tests.support.paths import ROOT

ROOM = ROOT / "libs" / "stratos" / "kv_transfer"
CONTRACTS = {"DataPort", "Pages", "Ring", "PairSender"}
OF_TRANSPORTS = {
    "device": {"AttachedMemory", "DeviceMemory", "ExportedMemory"},
    "groups": {"GroupConfig", "GroupMaker", "OrderedGroup"},
}
"""By folder of the transport: what it wants of a driver, which tests put something else in the place of."""


def contracts_by_folder() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in ROOM.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and {"ABC", "Protocol"} & {ast.unparse(base) for base in node.bases}:
                folder = path.relative_to(ROOM).parts[0]
                found.setdefault(folder if folder in OF_TRANSPORTS else "", set()).add(node.name)
    return found


def test_contracts_of_kv_transfer_are_these_four() -> None:
    assert contracts_by_folder() == {"": CONTRACTS, **OF_TRANSPORTS}
