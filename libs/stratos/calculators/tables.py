"""Tables that ship as JSON beside their readers: each entry has its source and the day it was read."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def read_table(package: str, name: str) -> dict[str, dict[str, Any]]:
    """Entries of ``name`` in the folder of ``package``, by their names."""
    table: dict[str, dict[str, Any]] = json.loads(files(package).joinpath(name).read_text(encoding="utf-8"))
    return table
