"""Declarations of plans, tenants and keys as YAML files, and the changes that applying one makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from stratos.common.errors import BadRequest


def read_declaration(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        BadRequest: it cannot be read.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadRequest(f"{path} cannot be read: {error}") from error


def declaration_text(declaration: dict[str, Any]) -> str:
    """Text of a file for ``read_declaration``."""
    text: str = yaml.safe_dump(declaration, sort_keys=True, allow_unicode=True)
    return text


def changes_text(changes: list[dict[str, Any]]) -> str:
    """Changes, one line per field."""
    lines = []
    for change in changes:
        lines.append(f"{change['action']} {change['kind']} {change['name']}")
        for name, values in change["changes"].items():
            lines.append(f"  {name}: {json.dumps(values['before'])} -> {json.dumps(values['after'])}")
    return "\n".join(lines)
