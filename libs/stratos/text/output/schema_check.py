"""A finished JSON value against the whole schema that its grammar was made of: a second look, by other code.

It knows the keywords that grammars are made of, but for ``pattern``, ``patternProperties`` and ``format``: those are
regular expressions, which only the grammar's automaton matches in a time that is bounded.  A check that would take
more than ``MAX_CHECKS`` looks ends without a verdict.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

Schema = Mapping[str, Any] | bool
MAX_CHECKS = 5_000
"""Values times schemas, some 2 us each: an answer of 4,096 tokens has fewer, unless its schema branches at each."""
MAX_DEPTH = 100
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float, Decimal),
    "integer": (int, float, Decimal),
}


_OF_MALFORMED = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""What a schema meets that has a value of the wrong kind: no grammar is made of it."""


class _TooMuch(Exception):
    """The check would take too long."""


def breach_of_text(text: str, schema: Schema) -> str | None:
    """The keyword that a JSON text breaks, "JSON" where it is none; ``None`` where it obeys, or nothing can be said."""
    try:
        value = json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=_refuse)
    except ValueError:
        return "JSON"
    except (RecursionError, InvalidOperation):
        return None  # too deep, or an exponent that no number here has
    return breach(value, schema)


def breach(value: object, schema: Schema) -> str | None:
    """The same of a value."""
    try:
        return _Check(schema).breach(value, schema, 0)
    except (_TooMuch, *_OF_MALFORMED):
        return None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class _Check:
    """One look at one value.

    Args:
        root: where references begin.
    """

    def __init__(self, root: Schema) -> None:
        self._root, self._left = root, MAX_CHECKS

    def breach(self, value: object, schema: Schema, depth: int) -> str | None:
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise _TooMuch
        if isinstance(schema, bool) or not isinstance(schema, Mapping):
            return "false" if schema is False else None
        own = _own_breach(value, schema)
        if own is not None:
            return own
        for part, within in self._parts(value, schema):
            if (found := self.breach(part, within, depth + 1)) is not None:
                return found
        return self._branches(value, schema, depth)

    def _parts(self, value: object, schema: Mapping[str, Any]) -> Iterator[tuple[object, Schema]]:
        """Values, and a schema that each must obey."""
        if "$ref" in schema:
            yield value, self._resolved(schema["$ref"])
        for whole in schema.get("allOf", ()):
            yield value, whole
        if isinstance(value, dict):
            yield from _fields(value, schema)
        elif isinstance(value, list):
            yield from _entries(value, schema)

    def _branches(self, value: object, schema: Mapping[str, Any], depth: int) -> str | None:
        if "anyOf" in schema and not any(self.breach(value, one, depth + 1) is None for one in schema["anyOf"]):
            return "anyOf"
        if "oneOf" in schema and sum(self.breach(value, one, depth + 1) is None for one in schema["oneOf"]) != 1:
            return "oneOf"
        return None

    def _resolved(self, reference: object) -> Schema:
        """The schema of a reference within this one; every value obeys what cannot be found."""
        found: Any = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            return True
        for name in reference[1:].split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                return True
        return found  # type: ignore[no-any-return]


def _own_breach(value: object, schema: Mapping[str, Any]) -> str | None:
    """The keyword that a value breaks without regard to its parts."""
    kinds = schema.get("type")
    if kinds is not None and not any(_is_kind(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return "type"
    if "const" in schema and not _equal(value, schema["const"]):
        return "const"
    if "enum" in schema and not any(_equal(value, one) for one in schema["enum"]):
        return "enum"
    if isinstance(value, dict):
        missing = any(name not in value for name in schema.get("required", ()))
        return "required" if missing else _size_breach(len(value), schema, "minProperties", "maxProperties")
    if isinstance(value, list):
        return _size_breach(len(value), schema, "minItems", "maxItems")
    if isinstance(value, str):
        return _size_breach(len(value), schema, "minLength", "maxLength")
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _number_breach(_exact(value), schema)
    return None


def _is_kind(value: object, kind: object) -> bool:
    """A value has a type of JSON schema; it has every one that is not known."""
    if not isinstance(kind, str) or kind not in _TYPES:
        return True
    if isinstance(value, bool) and kind != "boolean":
        return False
    return isinstance(value, _TYPES[kind]) and (kind != "integer" or _exact(value) % 1 == 0)


def _equal(value: object, other: object) -> bool:
    """Equality of JSON: 1 is 1.0 and not true, at every level."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, dict) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(_equal(one, other[name]) for name, one in value.items())
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_equal, value, other))
    if isinstance(value, int | float | Decimal) and isinstance(other, int | float | Decimal):
        return _exact(value) == _exact(other)
    return value == other


def _exact(value: Any) -> Decimal:
    """A number as it was written: 0.3 is a multiple of 0.1, and many nines are less than 1, which no float says."""
    return value if isinstance(value, Decimal) else Decimal(repr(value))


def _size_breach(size: int, schema: Mapping[str, Any], least: str, most: str) -> str | None:
    if least in schema and size < schema[least]:
        return least
    return most if most in schema and size > schema[most] else None


def _number_breach(value: Decimal, schema: Mapping[str, Any]) -> str | None:
    if "minimum" in schema and value < _exact(schema["minimum"]):
        return "minimum"
    if "maximum" in schema and value > _exact(schema["maximum"]):
        return "maximum"
    if "exclusiveMinimum" in schema and value <= _exact(schema["exclusiveMinimum"]):
        return "exclusiveMinimum"
    if "exclusiveMaximum" in schema and value >= _exact(schema["exclusiveMaximum"]):
        return "exclusiveMaximum"
    step = schema.get("multipleOf")
    return "multipleOf" if step and value % _exact(step) else None


def _fields(value: Mapping[str, object], schema: Mapping[str, Any]) -> Iterator[tuple[object, Schema]]:
    known, more = schema.get("properties", {}), schema.get("additionalProperties")
    for name, one in value.items():
        if name in known:
            yield one, known[name]
        elif more is not None and "patternProperties" not in schema:
            yield one, more


def _entries(value: Sequence[object], schema: Mapping[str, Any]) -> Iterator[tuple[object, Schema]]:
    first, rest = schema.get("prefixItems", ()), schema.get("items")
    if isinstance(rest, list):  # as older drafts have it
        first, rest = rest, schema.get("additionalItems")
    for place, one in enumerate(value):
        if place < len(first):
            yield one, first[place]
        elif rest is not None:
            yield one, rest
