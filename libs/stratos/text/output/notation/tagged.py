"""Arguments between tags: texts as they are, all other values as JSON.

A schema that allows any value allows any text: what is no JSON is read as a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from stratos.text.output.notation.lark import LarkWriter, json_value
from stratos.text.output.notation.objects import PropertyForm, object_rules
from stratos.text.output.notation.schemas import Schema, is_free, is_text, resolved, with_definitions
from stratos.text.output.notation.texts import text_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedNotation:
    """One family's tags: ``before_key`` key ``after_key`` value ``margin`` ``end`` ``after``."""

    before_key: str
    after_key: str
    end: str
    after: str
    margin: str = ""

    def __call__(self, rule: str, schema: Schema, lark: LarkWriter) -> list[str]:
        """Rules of all arguments; raises ``Unenforceable``."""
        form = PropertyForm(
            value=partial(self._value, lark, schema),
            before=lambda name: lark.literal(f"{self.before_key}{name}{self.after_key}"),
            before_key=lark.literal(self.before_key),
            key="/[A-Za-z0-9_.$-]{1,64}/",
            after_key=lark.literal(self.after_key),
            can_name=lambda name: name == name.strip() != "" and not set("<>\n").intersection(name),
        )
        return object_rules(rule, resolved(schema, schema), form, lark)

    def _value(self, lark: LarkWriter, root: Schema, rule: str, schema: Schema) -> list[str]:
        """Rules of a value and of all that follows it."""
        after = lark.literal(self.after)
        if is_text(schema) or is_free(schema):
            inner = text_rules(f"{rule}_t", schema, self.end, lark, margin=self.margin)
            return [lark.rule(rule, f"{rule}_t {after}"), *inner]
        ending = lark.literal(f"{self.margin}{self.end}")
        value = lark.rule(f"{rule}_j", json_value(with_definitions(schema, root)))
        return [lark.rule(rule, f"{rule}_j {ending} {after}"), value]
