"""Checked reading of single fields of ``config.json``: a malformed value is refused by name, never guessed."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from stratos.common.errors import InvalidCheckpoint

Fields = Mapping[str, Any]
MAX_INT = 2**31 - 1
"""Maximum of anything that a configuration counts, so that no arithmetic on it grows without bound."""
MIN_NUMBER, MAX_NUMBER = 1e-30, 1e30
"""Well inside float32, so that one division or product of two does not overflow."""


def shown(value: object) -> str:
    """A value from a file, cut to what fits into a message."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = 80
    return shortener.repr(value)


def positive_int(fields: Fields, name: str, default: int | None = None, *, maximum: int = MAX_INT) -> int:
    """An integer in [1, ``maximum``]; ``default`` when absent or null."""
    value = _value(fields, name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InvalidCheckpoint(f"config.json: {name} must be a positive integer, not {shown(value)}")
    if value > maximum:
        raise InvalidCheckpoint(f"config.json: {name} must be at most {maximum}, not {shown(value)}")
    return value


def positive_number(fields: Fields, name: str, default: float | None = None) -> float:
    """A number above zero, of a size that can be computed with; ``default`` when absent or null."""
    value = _value(fields, name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not MIN_NUMBER <= value <= MAX_NUMBER:
        raise InvalidCheckpoint(
            f"config.json: {name} must be a positive number, from {MIN_NUMBER} to {MAX_NUMBER}, not {shown(value)}"
        )
    return float(value)


def flag(fields: Fields, name: str, default: bool) -> bool:
    """A boolean; ``default`` when absent or null."""
    value = _value(fields, name, default)
    if not isinstance(value, bool):
        raise InvalidCheckpoint(f"config.json: {name} must be true or false, not {shown(value)}")
    return value


def index_list(fields: Fields, name: str) -> frozenset[int]:
    """A list of layer indices; empty when absent or null."""
    value = _value(fields, name, [])
    if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        raise InvalidCheckpoint(f"config.json: {name} must be a list of layer indices, not {shown(value)}")
    return frozenset(value)


def _value(fields: Fields, name: str, default: Any) -> Any:
    value = fields.get(name)
    return default if value is None else value
