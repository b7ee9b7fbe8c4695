"""An object as its properties one after the other, in the order of its schema; optional ones may be left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratos.text.output.notation.lark import LarkWriter, choice, regex
from stratos.text.output.notation.schemas import COMBINING, OF_OBJECTS, Schema, Unenforceable, refuse_keywords


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyForm:
    """How one property is written."""

    value: Callable[[str, Schema], list[str]]
    """Rules of a value, the first one with this name."""
    before: Callable[[str], str]
    """Expression of all that stands before the value of a property of this name."""
    key: str
    """Terminal of names that no schema has."""
    after_key: str
    """Expression of all that stands between such a name and its value; ``before_key`` stands before the name."""
    can_name: Callable[[str], bool]
    before_key: str = '""'
    between: str = '""'


@dataclass(frozen=True, slots=True)
class _Property:
    name: str
    schema: Schema | None
    """``None`` for one that is required alone: it has the values of all that the schema does not name."""
    is_required: bool


def object_rules(rule: str, schema: Schema, form: PropertyForm, lark: LarkWriter) -> list[str]:
    """Rules of the properties of an object that obeys.

    Raises:
        Unenforceable: the schema asks for more than these keywords, or for a property that cannot be written.
    """
    refuse_keywords(schema, OF_OBJECTS | COMBINING, ("properties", "required", "additionalProperties", "type"))
    declared, found = _declared(schema), list[str]()
    listed = [one for one in declared if _is_written(one, form)]
    for place, one in enumerate(listed):
        item, rest = f"{rule}_i{place}", place + 1
        skip_first, skip_more = ("", "") if one.is_required else (f" | {rule}_f{rest}", f" | {rule}_m{rest}")
        value = f"{rule}_xv" if one.schema is None else f"{item}_v"
        found += [
            lark.rule(f"{rule}_f{place}", f"{item} {rule}_m{rest}{skip_first}"),
            lark.rule(f"{rule}_m{place}", f"{form.between} {item} {rule}_m{rest}{skip_more}"),
            lark.rule(item, f"{form.before(one.name)} {value}"),
            *(() if one.schema is None else form.value(value, one.schema)),
        ]
    names = [one.name for one in declared]
    return [lark.rule(rule, f"{rule}_f0"), *found, *_others(rule, len(listed), schema, names, form, lark)]


def _others(
    rule: str, place: int, schema: Schema, names: Sequence[str], form: PropertyForm, lark: LarkWriter
) -> list[str]:
    """The end of the rules: properties that the schema does not name, where it lets them be; ``_xv`` is their value."""
    extra = _schema(schema.get("additionalProperties", True))
    if extra is None:
        return [lark.rule(f"{rule}_f{place}", '""'), lark.rule(f"{rule}_m{place}", '""')]
    key = f"{form.key} & ~{regex(choice(names))}" if names else form.key
    return [
        lark.rule(f"{rule}_f{place}", f"({rule}_x {rule}_m{place})?"),
        lark.rule(f"{rule}_m{place}", f"({form.between} {rule}_x)*"),
        lark.rule(f"{rule}_x", f"{form.before_key} {rule.upper()}_KEY {form.after_key} {rule}_xv"),
        lark.rule(f"{rule.upper()}_KEY", key),
        *form.value(f"{rule}_xv", extra),
    ]


def _declared(schema: Schema) -> list[_Property]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise Unenforceable("properties must be an object, and required a list")
    if not all(isinstance(name, str) for name in required):
        raise Unenforceable("required must be a list of names")
    wanted, found = dict.fromkeys(required), list[_Property]()
    for name, given in properties.items():
        one = _schema(given)
        if one is not None:
            found.append(_Property(name, one, name in wanted))
        elif name in wanted:
            raise Unenforceable(f"no value of {name[:100]} obeys the schema")
    others = [name for name in wanted if name not in properties]
    if others and _schema(schema.get("additionalProperties", True)) is None:
        raise Unenforceable(f"no value of {others[0][:100]} obeys the schema")
    return [*found, *(_Property(name, None, True) for name in others)]


def _schema(given: Any) -> Schema | None:
    """A schema; ``None`` where no value obeys."""
    if given is False:
        return None
    return given if isinstance(given, Mapping) else {}


def _is_written(one: _Property, form: PropertyForm) -> bool:
    if form.can_name(one.name):
        return True
    if one.is_required:
        raise Unenforceable(f"a property {one.name[:100]!r} cannot be written in the call syntax of this model")
    return False


ANY_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
