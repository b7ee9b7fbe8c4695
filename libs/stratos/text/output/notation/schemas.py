"""Schemas of arguments that are not written as JSON: their parts, and keywords that cannot be enforced there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

Schema = Mapping[str, Any]
COMBINING = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "enum", "const", "type"}
)
"""Keywords that say something of values of every type."""
OF_OBJECTS = frozenset(
    {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"}
    | {"maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"}
)
OF_ARRAYS = frozenset(
    {"items", "minItems", "maxItems", "prefixItems", "additionalItems", "contains", "minContains", "maxContains"}
    | {"uniqueItems", "unevaluatedItems"}
)
OF_TEXTS = frozenset({"minLength", "maxLength", "pattern", "format"})
OF_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
ASSERTIONS = COMBINING | OF_OBJECTS | OF_ARRAYS | OF_TEXTS | OF_NUMBERS
TYPES = ("object", "array", "string", "number", "boolean", "null")
DEFINITIONS = ("$defs", "definitions")
_MAX_CHAIN = 16
"""References that lead to one another."""


class Unenforceable(Exception):
    """A schema asks for what cannot be enforced in this notation; the message says what."""


def refuse_keywords(schema: Schema, among: Collection[str], known: Collection[str]) -> None:
    """Refuse a keyword that would be passed over; raises ``Unenforceable``."""
    for name in schema:
        if name in among and name not in known:
            raise Unenforceable(f"the keyword {name} cannot be enforced in the call syntax of this model")


def resolved(schema: Schema, root: Schema) -> Schema:
    """The schema that a reference is to, or ``schema``; raises ``Unenforceable``."""
    seen = set[str]()
    while isinstance(reference := schema.get("$ref"), str):
        refuse_keywords(schema, ASSERTIONS, ("$ref",))
        if reference in seen or len(seen) == _MAX_CHAIN or not reference.startswith("#"):
            raise Unenforceable(f"the reference {reference[:100]} cannot be followed")
        seen.add(reference)
        schema = _at(root, reference)
    return schema


def _at(root: Schema, reference: str) -> Schema:
    found: Any = root
    for part in reference.split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        raise Unenforceable(f"the reference {reference[:100]} cannot be followed")
    return found


def with_definitions(schema: Schema, root: Schema) -> Schema:
    """A part of a schema that stands for itself; raises ``Unenforceable`` for references to other parts."""
    references = list(_references(schema))
    if not references:
        return schema
    kept = {name: root[name] for name in DEFINITIONS if name in root}
    for reference in (*references, *_references(kept)):
        if not reference.startswith(tuple(f"#/{name}/" for name in kept)):
            raise Unenforceable(f"the reference {reference[:100]} cannot be followed in the call syntax of this model")
    return {**schema, **kept}


def _references(value: Any) -> list[str]:
    found, left = list[str](), [value]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            left.extend(part.values())
            if isinstance(part.get("$ref"), str):
                found.append(part["$ref"])
        elif isinstance(part, list):
            left.extend(part)
    return found


def is_free(schema: Schema) -> bool:
    """Whether any value obeys."""
    return ASSERTIONS.isdisjoint(schema)


def is_text(schema: Schema) -> bool:
    """Whether a value is a text, whatever it looks like."""
    kind, values = schema.get("type"), schema.get("enum")
    if isinstance(values, list):
        return all(isinstance(value, str) for value in values)
    return kind == "string" or kind == ["string"]


def told_types(schema: Schema) -> frozenset[str] | None:
    """Types that a value may have, integers being numbers; ``None`` where the schema does not list them."""
    if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        return frozenset(map(_type_of, values))
    if isinstance(kinds := schema.get("type"), str | list):
        listed = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if isinstance(kind, str)]
        return frozenset("number" if kind == "integer" else kind for kind in listed)
    branches = schema.get("anyOf", schema.get("oneOf"))
    if not isinstance(branches, list):
        return None
    found = [told_types(one) if isinstance(one, Mapping) else None for one in branches]
    known = [kinds for kinds in found if kinds is not None]
    return frozenset[str]().union(*known) if len(known) == len(found) else None


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
    return "object" if isinstance(value, Mapping) else "number"


def types_of(schema: Schema) -> list[str]:
    """Types that a value may have, each once; raises ``TypeError`` for what is no list of types."""
    kinds = schema.get("type", TYPES)
    return [kinds] if isinstance(kinds, str) else list(dict.fromkeys(kinds))
