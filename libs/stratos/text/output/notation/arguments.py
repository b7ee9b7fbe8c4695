"""The contract of a notation of arguments, and the one that most families have: JSON."""

from __future__ import annotations

from collections.abc import Callable

from stratos.text.output.notation.lark import LarkWriter, json_value
from stratos.text.output.notation.schemas import Schema

Arguments = Callable[[str, Schema, LarkWriter], list[str]]
"""Rules of arguments that obey a schema, the first one with this name; raises ``Unenforceable``."""


def json_arguments(rule: str, schema: Schema, lark: LarkWriter) -> list[str]:
    """A JSON object."""
    return [lark.rule(rule, json_value(schema))]
