"""Grammar of an output: the record that travels from the gateway to the engine."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import BadRequest

MAX_GRAMMAR_BYTES = 64 * 1024
"""Of a JSON schema, and of all choices together."""
MAX_REGEX_BYTES = 4096
"""Of a regular expression, and of all patterns of a schema together: the time of a mask grows with its square, and is
about 10 ms at the limit."""
MAX_LARK_BYTES = 8192
MAX_GRAMMAR_CHOICES = 1024
TOO_COMPLEX = "the grammar is too complex"


class GrammarKind(enum.StrEnum):
    """How the text of a grammar is read."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    """A JSON list of strings: the output is one of them."""
    LARK = "lark"
    CALLS = "calls"
    """Lark's syntax, made by the gateway: calls of tools around JSON schemas."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar in source form; equal specs allow equal outputs."""

    kind: GrammarKind
    text: str


_MAX_BYTES = {GrammarKind.REGEX: MAX_REGEX_BYTES, GrammarKind.LARK: MAX_LARK_BYTES}
ANY_OBJECT = GrammarSpec(GrammarKind.JSON_SCHEMA, '{"type":"object"}')


def check_grammar(kind: str, text: object, param: str) -> GrammarSpec:
    """Check kind and size; whether the text can be compiled is for ``stratos.text.grammar`` to say.

    Raises:
        BadRequest: with ``param``.
    """
    if not isinstance(text, str) or not text:
        raise BadRequest(f"{param} must be a non-empty string", param=param)
    if kind not in list(GrammarKind):
        raise BadRequest(f"the kind of grammar must be one of {', '.join(GrammarKind)}", param=param)
    most = _MAX_BYTES.get(GrammarKind(kind), MAX_GRAMMAR_BYTES)
    try:
        num_bytes = len(text) if len(text) > most else len(text.encode())
    except UnicodeEncodeError as error:
        raise BadRequest(f"{param} holds half of a surrogate pair", param=param) from error
    if num_bytes > most:
        raise BadRequest(f"{param} may have at most {most} bytes", param=param)
    return GrammarSpec(GrammarKind(kind), text)


def schema_grammar(schema: object, param: str) -> GrammarSpec:
    """A JSON schema, as an object or as text; the order of its properties is the order of the output's.

    Raises:
        BadRequest: not a JSON object, or too large.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{param} is not JSON", param=param) from error
    if not isinstance(schema, dict):
        raise BadRequest(f"{param} must be a JSON schema: an object", param=param)
    grammar = check_grammar(GrammarKind.JSON_SCHEMA, _compact(schema, param), param)
    if sum(map(len, _patterns(schema))) > MAX_REGEX_BYTES:
        raise BadRequest(f"the patterns of {param} may have at most {MAX_REGEX_BYTES} characters", param=param)
    return grammar


def _patterns(schema: object) -> Iterator[str]:
    """Regular expressions in a schema; what only looks like one counts too."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left.extend(value.values())
            named, pattern = value.get("patternProperties"), value.get("pattern")
            yield from named if isinstance(named, dict) else ()
            yield from (pattern,) if isinstance(pattern, str) else ()
        elif isinstance(value, list):
            left.extend(value)


def calls_grammar(text: str, schemas: Sequence[object], param: str) -> GrammarSpec:
    """The grammar of calls whose arguments obey these schemas.

    Raises:
        BadRequest: they are too large together.
    """
    if sum(len(pattern) for schema in schemas for pattern in _patterns(schema)) > MAX_REGEX_BYTES:
        raise BadRequest(f"the patterns of {param} may have at most {MAX_REGEX_BYTES} characters", param=param)
    return check_grammar(GrammarKind.CALLS, text, param)


def choice_grammar(choices: object, param: str) -> GrammarSpec:
    """A list of strings, one of which is the output."""
    is_list = isinstance(choices, list) and 0 < len(choices) <= MAX_GRAMMAR_CHOICES
    if not is_list or not all(isinstance(choice, str) and choice for choice in choices):  # type: ignore[attr-defined]
        message = f"{param} must be a list of 1 to {MAX_GRAMMAR_CHOICES} non-empty strings"
        raise BadRequest(message, param=param)
    return check_grammar(GrammarKind.CHOICE, _compact(choices, param), param)


def choices_of(spec: GrammarSpec) -> Sequence[str]:
    """The strings of a ``CHOICE`` grammar.

    Raises:
        BadRequest: the text is no list of non-empty strings.
    """
    try:
        choices = json.loads(spec.text)
    except (ValueError, RecursionError) as error:
        raise BadRequest("the choices are not JSON", param="grammar") from error
    choice_grammar(choices, "grammar")
    return list(choices)


def _compact(value: Any, param: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{param} is nested too deeply", param=param) from error
