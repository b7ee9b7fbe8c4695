"""Objects with bare keys and texts between marks, as Gemma writes them: ``{city:<|"|>Paris<|"|>,days:[1,2]}``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from stratos.text.output.notation.lark import LarkWriter, json_value
from stratos.text.output.notation.objects import ANY_KEY, PropertyForm, object_rules
from stratos.text.output.notation.schemas import (
    ASSERTIONS,
    COMBINING,
    OF_ARRAYS,
    OF_NUMBERS,
    OF_TEXTS,
    Schema,
    Unenforceable,
    is_free,
    refuse_keywords,
    resolved,
    types_of,
)
from stratos.text.output.notation.texts import text_rules

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class BareKeys:
    """Arguments in this notation.

    Args:
        quote: the mark before and after every text.
    """

    def __init__(self, quote: str) -> None:
        self._quote = quote

    def __call__(self, rule: str, schema: Schema, lark: LarkWriter) -> list[str]:
        """Rules of an object; raises ``Unenforceable``."""
        rules = _Rules(rule, schema, lark, self._quote)
        rules.write_object(rule, resolved(schema, schema))
        return rules.written


class _Rules:
    """Rules of one schema, with one for every part that others refer to."""

    def __init__(self, name: str, root: Schema, lark: LarkWriter, quote: str) -> None:
        self._name = name
        self._root = root
        self._lark = lark
        self._quote = quote
        self._mark = lark.literal(quote)
        self._references: dict[str, str] = {}
        self._has_any = False
        self._num_values = 0
        self.written: list[str] = []

    def _write(self, rule: str, expression: str) -> None:
        self.written.append(self._lark.rule(rule, expression))

    def write_object(self, rule: str, schema: Schema) -> None:
        """An object that obeys."""
        form = PropertyForm(
            value=lambda name, one: [self._lark.rule(name, self._value(self._new_name(), one))],
            before=lambda name: f'{self._key(name)} ":"',
            key=ANY_KEY,
            after_key='":"',
            can_name=lambda name: self._quote not in name,
            between='","',
        )
        inner = object_rules(f"{rule}_o", schema, form, self._lark)
        self.written += [self._lark.rule(rule, f'"{{" {rule}_o "}}"'), *inner]

    def _new_name(self) -> str:
        """Begins the names of a value's rules: names that grew with every level would fill the grammar."""
        self._num_values += 1
        return f"{self._name}_v{self._num_values}"

    def _key(self, name: str) -> str:
        text = name if _BARE.fullmatch(name) else f"{self._quote}{name}{self._quote}"
        return self._lark.literal(text)

    def _value(self, rule: str, schema: Schema) -> str:
        """An expression for values that obey; what it needs is written under names that begin with ``rule``."""
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(reference, schema)
        if is_free(schema):
            return self._any()
        for name in ("anyOf", "allOf"):
            if name in schema:
                refuse_keywords(schema, ASSERTIONS, (name,))
                return self._alternatives(rule, name, schema[name])
        if "enum" in schema or "const" in schema:
            refuse_keywords(schema, ASSERTIONS, ("type", "enum", "const"))
            values = [schema["const"]] if "const" in schema else schema["enum"]
            return " | ".join(f"({self._constant(value)})" for value in values)
        refuse_keywords(schema, COMBINING, ("type",))
        return " | ".join(self._typed(f"{rule}_{kind}", kind, schema) for kind in types_of(schema))

    def _reference(self, reference: str, schema: Schema) -> str:
        rule = self._references.get(reference)
        if rule is None:
            rule = self._references[reference] = f"{self._name}_r{len(self._references)}"
            self._write(rule, self._value(self._new_name(), resolved(schema, self._root)))
        return rule

    def _alternatives(self, rule: str, keyword: str, schemas: Any) -> str:
        if keyword == "allOf" and len(schemas) != 1:
            raise Unenforceable("allOf with several schemas cannot be enforced in the call syntax of this model")
        found = list[str]()
        for place, one in enumerate(schemas):
            name = f"{rule}_a{place}"
            self._write(name, self._value(self._new_name(), one if isinstance(one, Mapping) else {}))
            found.append(name)
        return " | ".join(found)

    def _typed(self, rule: str, kind: str, schema: Schema) -> str:
        """The name of a rule for values of one type."""
        match kind:
            case "object":
                self.write_object(rule, schema)
            case "array":
                self._write_list(rule, schema)
            case "string":
                kept = {name: value for name, value in schema.items() if name in OF_TEXTS}
                inner = text_rules(f"{rule}_t", kept, self._quote, self._lark)
                self.written += [self._lark.rule(rule, f"{self._mark} {rule}_t"), *inner]
            case _:
                kept = {name: value for name, value in schema.items() if name in OF_NUMBERS}
                self._write(rule, json_value({"type": kind, **kept}))
        return rule

    def _write_list(self, rule: str, schema: Schema) -> None:
        refuse_keywords(schema, OF_ARRAYS, ("items", "minItems", "maxItems"))
        items, least, most = schema.get("items", {}), schema.get("minItems", 0), schema.get("maxItems")
        if items is False or most == 0:
            self._write(rule, '"[" "]"')
            return
        item, more = f"{rule}_e", f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        optional = "" if least else "?"
        self._write(item, self._value(self._new_name(), items if isinstance(items, Mapping) else {}))
        self._write(rule, f'"[" ({item} ("," {item}){more}){optional} "]"')

    def _constant(self, value: Any) -> str:
        match value:
            case str():
                if self._quote in value:
                    raise Unenforceable("a value of enum cannot be written in the call syntax of this model")
                return f"{self._mark} {self._lark.literal(value)} {self._mark}"
            case list():
                return " ".join(('"["', ' "," '.join(map(self._constant, value)), '"]"'))
            case dict():
                pairs = (f'{self._key(name)} ":" {self._constant(one)}' for name, one in value.items())
                return " ".join(('"{"', ' "," '.join(pairs), '"}"'))
        return json.dumps(json.dumps(value))

    def _any(self) -> str:
        """Any value."""
        rule = f"{self._name}_any"
        if not self._has_any:
            self._has_any = True
            self._write(rule, f'{self._mark} {rule}_t | {rule}_n | "[" ({rule} ("," {rule})*)? "]" | {rule}_o')
            self.written += text_rules(f"{rule}_t", {}, self._quote, self._lark)
            self._write(f"{rule}_n", json_value({"type": ["number", "boolean", "null"]}))
            self._write(f"{rule}_o", f'"{{" ({rule}_p ("," {rule}_p)*)? "}}"')
            self._write(f"{rule}_p", f'{rule.upper()}_KEY ":" {rule}')
            self._write(f"{rule.upper()}_KEY", ANY_KEY)
        return rule
