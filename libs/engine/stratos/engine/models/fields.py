"""Checked reading of single fields of ``config.json``: a malformed value is refused by name, never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratos.common.errors import InvalidCheckpoint

Fields = Mapping[str, Any]


def positive_int(fields: Fields, name: str, default: int | None = None) -> int:
    """An integer above zero; ``default`` when absent or null."""
    value = _value(fields, name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InvalidCheckpoint(f"config.json: {name} must be a positive integer, not {value!r}")
    return value


def positive_number(fields: Fields, name: str, default: float | None = None) -> float:
    """A number above zero; ``default`` when absent or null."""
    value = _value(fields, name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        raise InvalidCheckpoint(f"config.json: {name} must be a positive number, not {value!r}")
    return float(value)


def flag(fields: Fields, name: str, default: bool) -> bool:
    """A boolean; ``default`` when absent or null."""
    value = _value(fields, name, default)
    if not isinstance(value, bool):
        raise InvalidCheckpoint(f"config.json: {name} must be true or false, not {value!r}")
    return value


def index_list(fields: Fields, name: str) -> frozenset[int]:
    """A list of layer indices; empty when absent or null."""
    value = _value(fields, name, [])
    if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        raise InvalidCheckpoint(f"config.json: {name} must be a list of layer indices, not {value!r}")
    return frozenset(value)


def _value(fields: Fields, name: str, default: Any) -> Any:
    value = fields.get(name)
    return default if value is None else value
