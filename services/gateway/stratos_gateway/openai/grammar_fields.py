"""``response_format`` (OpenAI) and ``structured_outputs`` (vLLM) as one grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import (
    ANY_OBJECT,
    GrammarKind,
    GrammarSpec,
    check_grammar,
    choice_grammar,
    schema_grammar,
)
from stratos_gateway.openai.fields import Fields

_SCHEMA_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


@dataclass(frozen=True, slots=True)
class WantedGrammar:
    """A grammar, and the field that asked for it."""

    spec: GrammarSpec
    param: str


def take_grammar(fields: Fields) -> WantedGrammar | None:
    """Read both fields of a request.

    Raises:
        BadRequest: malformed, or both at once.
    """
    wanted = [_response_format(fields.take("response_format")), _structured(fields.take("structured_outputs"))]
    grammars = [grammar for grammar in wanted if grammar is not None]
    if len(grammars) > 1:
        message = "response_format and structured_outputs cannot be used together"
        raise BadRequest(message, param="structured_outputs")
    return grammars[0] if grammars else None


def _response_format(value: Any) -> WantedGrammar | None:
    if value is None:
        return None
    fields = _object(value, "response_format")
    kind = fields.take("type")
    schema = fields.take("json_schema")
    fields.end()
    if kind == "text":
        return None
    if kind == "json_object":
        return WantedGrammar(ANY_OBJECT, "response_format")
    if kind == "json_schema":
        return _named_schema(schema)
    message = "response_format.type must be text, json_object or json_schema"
    raise BadRequest(message, param="response_format.type")


def _named_schema(value: Any) -> WantedGrammar:
    """OpenAI's wrapper of a schema; with or without ``strict`` the output obeys it."""
    path = "response_format.json_schema"
    fields = _object(value, path)
    name, schema = fields.take("name"), fields.take("schema")
    fields.flag("strict")
    fields.ignore("description")
    fields.end()
    if not isinstance(name, str) or not _SCHEMA_NAME.match(name):
        message = f"{path}.name must be 1 to 64 letters, digits, underscores or dashes"
        raise BadRequest(message, param=f"{path}.name")
    return WantedGrammar(schema_grammar({} if schema is None else schema, f"{path}.schema"), f"{path}.schema")


def _structured(value: Any) -> WantedGrammar | None:
    if value is None:
        return None
    fields = _object(value, "structured_outputs")
    schema, regex, choice = fields.take("json"), fields.take("regex"), fields.take("choice")
    lark, any_object = fields.take("grammar"), fields.flag("json_object")
    fields.end()
    wanted: list[WantedGrammar] = []
    if schema is not None:
        param = "structured_outputs.json"
        wanted.append(WantedGrammar(schema_grammar(schema, param), param))
    if choice is not None:
        param = "structured_outputs.choice"
        wanted.append(WantedGrammar(choice_grammar(choice, param), param))
    for name, kind, text in (("regex", GrammarKind.REGEX, regex), ("grammar", GrammarKind.LARK, lark)):
        if text is not None:
            param = f"structured_outputs.{name}"
            wanted.append(WantedGrammar(check_grammar(kind, text, param), param))
    if any_object:
        wanted.append(WantedGrammar(ANY_OBJECT, "structured_outputs.json_object"))
    if len(wanted) != 1:
        message = "structured_outputs needs exactly one of json, regex, choice, grammar and json_object"
        raise BadRequest(message, param="structured_outputs")
    return wanted[0]


def _object(value: Any, path: str) -> Fields:
    if not isinstance(value, dict):
        raise BadRequest(f"{path} must be an object", param=path)
    return Fields(value, f"{path}.")
