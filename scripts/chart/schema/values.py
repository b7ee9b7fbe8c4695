"""JSON schema of the chart's values: types from the defaults in values.yaml, the rest from its "@schema" lines.

    # -- What it is.                             the description
    # @schema {"minimum": 0}                     what the default does not say; "$ref" replaces what it says
    replicas: 2                                  the type: integer

A map is closed: its keys are those of the default. An empty map or list needs an "@schema" line.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

_SCHEMA, _TEXT = "# @schema ", "# -- "
_SCALARS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


class InvalidValues(ValueError):
    """values.yaml does not say what a value may be; the message names it."""


def schema_of_values(text: str) -> dict[str, Any]:
    """The schema of a values file, its ``$ref`` left as they are.

    Raises:
        InvalidValues: an empty list or map without an "@schema" line, or one that is not JSON.
    """
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    return _schema(node, text.splitlines(), "")


def _schema(node: Any, lines: list[str], path: str) -> dict[str, Any]:
    if isinstance(node, yaml.MappingNode):
        properties = {}
        for key, value in node.value:
            name, inner = str(key.value), f"{path}.{key.value}".lstrip(".")
            properties[name] = _described(value, lines, inner, _comments(lines, key.start_mark.line))
        return {"type": "object", "additionalProperties": False, "properties": properties}
    if isinstance(node, yaml.SequenceNode):
        return {"type": "array"}
    value = yaml.safe_load(yaml.serialize(node))
    return {"type": _SCALARS[type(value).__name__]}


def _described(node: Any, lines: list[str], path: str, comments: list[str]) -> dict[str, Any]:
    text = " ".join(line.removeprefix(_TEXT).removeprefix("# ") for line in comments if not line.startswith(_SCHEMA))
    given = [line.removeprefix(_SCHEMA) for line in comments if line.startswith(_SCHEMA)]
    try:
        more = json.loads(given[0]) if given else {}
    except json.JSONDecodeError as error:
        raise InvalidValues(f"{path}: @schema is not JSON: {error}") from error
    if not given and not node.value and not isinstance(node, yaml.ScalarNode):
        raise InvalidValues(f"{path}: an empty default needs an @schema line")
    if "$ref" in more:  # draft 7 ignores what is beside a $ref
        return {"allOf": [more], "description": text} if text else dict(more)
    schema = {**_schema(node, lines, path), **({"description": text} if text else {})}
    if "enum" in more or "anyOf" in more:
        schema.pop("type")
    return {**schema, **more}


def _comments(lines: list[str], line: int) -> list[str]:
    """The comment lines directly above a key."""
    found: list[str] = []
    for text in reversed(lines[:line]):
        if not text.strip().startswith("#"):
            break
        found.insert(0, text.strip())
    return found
