"""Schemas of answers: what was written obeys, and what lacks something does not."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from scripts.openapi.answers import answer_schemas, event_schemas, schema_of
from scripts.openapi.views import view_schemas


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        ([], {}),
        ([None], {}),
        (["a", None], {"type": ["null", "string"]}),
        ([1, 0.5], {"type": "number"}),
        ([True, "x"], {"type": ["boolean", "string"]}),
        ([[1], []], {"type": "array", "items": {"type": "integer"}}),
        (
            [{"a": 1, "b": None}, {"a": None}],
            {"type": "object", "properties": {"a": {"type": ["integer", "null"]}, "b": {}}, "required": ["a"]},
        ),
    ],
)
def test_a_schema_is_as_narrow_as_what_was_written(values: list[Any], schema: dict[str, Any]) -> None:
    assert schema_of(values) == schema
    for value in values:
        jsonschema.validate(value, schema)


def test_answers_have_their_fields() -> None:
    schema = answer_schemas()["/v1/chat/completions"]
    message = schema["properties"]["choices"]["items"]["properties"]["message"]
    assert {"id", "choices", "usage", "model", "created", "object"} <= set(schema["required"])
    assert message["properties"]["content"] == {"type": ["null", "string"]}
    assert message["required"] == ["content", "refusal", "role"]
    call = message["properties"]["tool_calls"]["items"]
    assert call["required"] == ["function", "id", "type"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"id": "x", "choices": []}, schema)


def test_events_are_told_by_their_types() -> None:
    schemas = event_schemas()
    kinds = {one["properties"]["type"]["const"] for one in schemas["/v1/responses"]["anyOf"]}
    assert {"response.created", "response.output_text.delta", "response.completed", "response.failed"} <= kinds
    assert {"message_start", "message_stop", "ping"} <= {
        one["properties"]["type"]["const"] for one in schemas["/v1/messages"]["anyOf"]
    }
    chat = schemas["/v1/chat/completions"]
    event = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "base"}
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}
    jsonschema.validate({**event, "choices": [choice]}, chat)
    jsonschema.validate({"error": {"message": "m", "type": "t", "param": None, "code": "c"}}, chat)
    for broken in ({**event, "choices": [{"index": 0}]}, event, {"error": "m"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, chat)


def test_other_routes_have_the_fields_of_their_views() -> None:
    schemas = view_schemas()
    assert "request_counts" in schemas["post", "/v1/batches"]["required"]
    assert schemas["get", "/v1/files"]["properties"]["data"]["items"] == schemas["post", "/v1/files"]
    score = schemas["post", "/v1/score"]["properties"]["data"]["items"]
    assert score["properties"]["score"] == {"type": "number"}
