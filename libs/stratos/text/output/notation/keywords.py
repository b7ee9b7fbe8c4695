"""Keyword arguments of Python: ``city="Paris", days=[1, 2]``.

Values are JSON, which is read as well as Python's literals.
"""

from __future__ import annotations

import re
from functools import partial

from stratos.text.output.notation.lark import LarkWriter, json_value
from stratos.text.output.notation.objects import ANY_KEY, PropertyForm, object_rules
from stratos.text.output.notation.schemas import ASSERTIONS, Schema, resolved, with_definitions

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def keyword_arguments(rule: str, schema: Schema, lark: LarkWriter) -> list[str]:
    """Rules of what stands between the brackets; raises ``Unenforceable``."""
    form = PropertyForm(
        value=partial(_value, lark, schema),
        before=lambda name: lark.literal(f"{name}="),
        key=ANY_KEY,
        after_key='"="',
        can_name=lambda name: NAME.fullmatch(name) is not None,
        between='", "',
    )
    return object_rules(rule, resolved(schema, schema), form, lark)


def _value(lark: LarkWriter, root: Schema, rule: str, schema: Schema) -> list[str]:
    if schema.get("type") == "boolean" and ASSERTIONS.intersection(schema) == {"type"}:
        return [lark.rule(rule, "/[Tt]rue|[Ff]alse/")]
    return [lark.rule(rule, json_value(with_definitions(schema, root)))]
