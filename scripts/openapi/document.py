"""The OpenAPI document: routes of the gateway's table, bodies as its parsers read them, answers as its renderers write
them, statuses of its errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scripts.openapi.answers import answer_schemas, event_schemas
from scripts.openapi.bodies import body_schema, parsers
from scripts.openapi.examples import EXAMPLES
from scripts.openapi.operations import OPERATIONS, Operation
from scripts.openapi.views import view_schemas
from stratos.common import continuation_errors, errors
from stratos.common.errors import StratosError
from stratos_gateway.http.errors import public_error
from stratos_gateway.preparation.dialects import CHAT, COMPLETION, ERROR_FORMS

_OF_BODIES = (408, 413, 415, 422)
"""Statuses that a request without a body does not get."""
_OF_CLIENTS = (errors.__name__, continuation_errors.__name__)
"""Modules with errors that clients may see; others are of hand-offs, and known or not by what has been imported."""
_MARKED = (CHAT.path, COMPLETION.path)
"""Routes whose whole streams end with a mark."""
SAME = {
    ("get", "/v1/responses/{response_id}"): "v1_responses_answer",
    ("post", "/v1/responses/{response_id}/cancel"): "v1_responses_answer",
}
"""Answers that are those of another route."""
_PARAMETER = re.compile(r"\{(\w+)\}")


def build_document() -> dict[str, Any]:
    """The document of every route of one gateway."""
    paths: dict[str, dict[str, Any]] = {}
    schemas = dict[str, Any](_FORMS)
    bodies, answers, events, views = parsers(), answer_schemas(), event_schemas(), view_schemas()
    for (method, path), operation in OPERATIONS.items():
        found = _operation(method, path, operation)
        if path in bodies:
            schemas[_name(path)] = body_schema(path, bodies[path])
            found["requestBody"] = _request_body(path)
        if operation.form:
            found["requestBody"] = _form(operation.form)
        content = found["responses"].get("200", {}).get("content", {})
        if path in answers and method == "post":
            content["application/json"] = _told(schemas, f"{_name(path)}_answer", answers[path])
            data = _told(schemas, f"{_name(path)}_event", events[path])
            content["text/event-stream"] = {"schema": _event(data, marks_end=path in _MARKED)}
        elif (method, path) in SAME:
            content["application/json"] = {"schema": {"$ref": f"#/components/schemas/{SAME[method, path]}"}}
        elif (method, path) in views:
            content["application/json"] = {"schema": views[method, path]}
        paths.setdefault(path, {})[method] = found
    return {
        "openapi": "3.1.0",
        "info": {"title": "StratosServe", "version": "1", "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {_answer_name(form, status): answer for form in _FORMS for status, answer in _answers(form)},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _told(schemas: dict[str, Any], name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A schema by its name, among the others."""
    schemas[name] = schema
    return {"schema": {"$ref": f"#/components/schemas/{name}"}}


def _event(data: dict[str, Any], *, marks_end: bool) -> dict[str, Any]:
    """An event of a stream, whose data is JSON of a schema, or the mark of a whole stream."""
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": data["schema"]}
    told = {"anyOf": [text, {"const": "[DONE]"}]} if marks_end else text
    return {"type": "object", "properties": {"event": _TEXT, "data": told}, "required": ["data"]}


def error_codes() -> Mapping[int, list[str]]:
    """Codes of all errors that clients may see, by status; a 400 may have a narrower one."""
    found: dict[int, set[str]] = {}
    for kind in _kinds(StratosError):
        shown = public_error(kind())
        found.setdefault(shown.http_status, set()).add(shown.code)
    return {status: sorted(codes) for status, codes in sorted(found.items())}


def _kinds(base: type[StratosError]) -> list[type[StratosError]]:
    children = [child for child in base.__subclasses__() if child.__module__ in _OF_CLIENTS]
    return [kind for child in children for kind in (child, *_kinds(child))]


def _operation(method: str, path: str, operation: Operation) -> dict[str, Any]:
    content: dict[str, dict[str, Any]] = {media: {"schema": {}} for media in operation.media}
    answers: dict[str, Any] = {
        str(status): {"description": "done", **({"content": content} if content and status != 204 else {})}
        for status in operation.statuses
    }
    if operation.is_probe:
        answers["503"] = {"description": "not now", **({"content": content} if content else {})}
    if operation.needs_key:
        answers |= _errors(path, has_body=path in EXAMPLES or bool(operation.form))
    return {
        "operationId": f"{method}_{_name(path)}",
        "summary": operation.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": _TEXT} for name in _PARAMETER.findall(path)),
            *({"name": name, "in": "query", "schema": _TEXT} for name in operation.query),
        ],
        "security": [{"key": []}] if operation.needs_key else [],
        "responses": answers,
    }


def _errors(path: str, *, has_body: bool) -> dict[str, Any]:
    is_message = any(path == base or path.startswith(f"{base}/") for base in ERROR_FORMS)
    form = "MessagesError" if is_message else "OpenAIError"
    statuses = [status for status in error_codes() if has_body or status not in _OF_BODIES]
    return {str(status): {"$ref": f"#/components/responses/{_answer_name(form, status)}"} for status in statuses}


def _answers(form: str) -> list[tuple[int, dict[str, Any]]]:
    """Errors in one form, by status."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{form}"}}}
    return [(status, {"description": ", ".join(codes), "content": content}) for status, codes in error_codes().items()]


def _answer_name(form: str, status: int) -> str:
    return f"{form}{status}"


def _request_body(path: str) -> dict[str, Any]:
    examples = {f"example{number}": {"value": body} for number, body in enumerate(EXAMPLES[path], 1)}
    schema = {"$ref": f"#/components/schemas/{_name(path)}"}
    return {"required": True, "content": {"application/json": {"schema": schema, "examples": examples}}}


def _form(names: tuple[str, ...]) -> dict[str, Any]:
    """A multipart body, whose file is its part of that name."""
    parts = {name: {"type": "string", **({"format": "binary"} if name == "file" else {})} for name in names}
    schema = {"type": "object", "properties": parts, "required": list(names)}
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}


def _name(path: str) -> str:
    """A path as a name: v1_chat_completions."""
    return re.sub(r"\W+", "_", path).strip("_") or "root"


_TEXT = {"type": "string"}
_ABOUT = (
    "Fields are those that the gateway reads; any other is refused by name. "
    "A field without a type is checked by rules that docs/api.md has. "
    "The schema of a text/event-stream is that of one event."
)
_OPENAI_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_MESSAGES_ERROR = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": _TEXT, "message": _TEXT},
        },
    },
}
_FORMS = {"OpenAIError": _OPENAI_ERROR, "MessagesError": _MESSAGES_ERROR}
