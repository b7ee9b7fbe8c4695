"""Schemas of answers: what was written obeys, and what lacks something does not."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from scripts.openapi.answers import answer_schemas, schema_of


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
