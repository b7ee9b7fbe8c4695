"""The second look at finished JSON says what the reference implementation says, keyword by keyword."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.core.requests.grammar import schema_grammar
from stratos.engine.grammar.matcher import GrammarMatcher
from stratos.text.grammar import compile_grammar
from stratos.text.output.schema_check import MAX_CHECKS, breach, breach_of_text
from tests.support.examples import examples
from tests.support.reference.call_matchers import grammar_tokenizer, random_output

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    1.5,
    -3,
    10,
    0.3,
    "",
    "a",
    "abc",
    "größer 😀",
    [],
    [1],
    [1, "a"],
    [1, 2, 3],
    ["a", 1, True],
    {},
    {"a": 1},
    {"a": "x", "b": 2},
    {"a": {"a": {"a": 1}}},
    {"b": [1, {"a": 2}], "c": None},
    [[1], [1.0]],
    {"a": True},
]
SCHEMAS: list[Any] = [
    True,
    False,
    {},
    {"type": "integer"},
    {"type": "number"},
    {"type": ["string", "null"]},
    {"type": "boolean"},
    {"const": 1},
    {"const": True},
    {"const": [[1], [1]]},
    {"enum": [1, "a", {"a": 1}]},
    {"enum": [True, None]},
    {"minimum": 1, "maximum": 5},
    {"exclusiveMinimum": 1},
    {"exclusiveMaximum": 1},
    {"multipleOf": 0.1},
    {"multipleOf": 2},
    {"minLength": 2},
    {"maxLength": 8},
    {"minItems": 2},
    {"maxItems": 1},
    {"items": {"type": "integer"}},
    {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    {"minProperties": 1},
    {"maxProperties": 1},
    {"properties": {"a": {"type": "integer"}}},
    {"required": ["a", "b"]},
    {"additionalProperties": False},
    {"properties": {"a": True}, "additionalProperties": {"type": "array"}},
    {"anyOf": [{"type": "string"}, {"minItems": 2}]},
    {"oneOf": [{"type": "number"}, {"type": "integer"}]},
    {"allOf": [{"minimum": 1}, {"type": "integer"}]},
    {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [{"type": "integer"}, {"properties": {"a": {"$ref": "#"}}}]}}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_the_verdict_is_that_of_the_reference(schema: Any) -> None:
    reference = jsonschema.Draft202012Validator(schema)
    verdicts = [(value, breach(value, schema) is None, reference.is_valid(value)) for value in VALUES]
    differ = [value for value, ours, theirs in verdicts if ours != theirs and schema != {"multipleOf": 0.1}]
    assert differ == []
    if schema == {"multipleOf": 0.1}:
        assert breach(0.3, schema) is None  # where floats lie, the decimals that were written count
        assert breach(0.35, schema) == "multipleOf"


@given(value=st.sampled_from(VALUES), schemas=st.lists(st.sampled_from(SCHEMAS[2:-1]), min_size=1, max_size=3))
@settings(max_examples=examples(200), deadline=None, derandomize=True)
def test_nested_schemas_are_looked_at_at_every_level(value: Any, schemas: list[Any]) -> None:
    nested = {"properties": {"v": {"type": "array", "items": {"allOf": schemas}}}, "required": ["v"]}
    if {"multipleOf": 0.1} in schemas:
        return
    assert (breach({"v": [value]}, nested) is None) == jsonschema.Draft202012Validator(nested).is_valid({"v": [value]})


@pytest.mark.parametrize("text", ["", "{", '{"a": 1} x', "NaN", "[1, Infinity]", "'a'"])
def test_what_is_no_json_obeys_nothing(text: str) -> None:
    assert breach_of_text(text, {}) == "JSON"


def test_numbers_count_as_they_are_written() -> None:
    assert breach_of_text("0." + "9" * 40, {"exclusiveMaximum": 1}) is None
    assert breach_of_text("1.0", {"type": "integer", "const": 1, "exclusiveMaximum": 1}) == "exclusiveMaximum"
    assert breach_of_text("0.1", {"enum": [0.1]}) is None
    assert breach_of_text("0.30", {"multipleOf": 0.1}) is None
    assert breach_of_text("1e400", {"type": "number", "minimum": 5}) is None


ENFORCED: list[Any] = [
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string", "maxLength": 4}], "items": False},
    {"type": "number", "multipleOf": 0.1, "minimum": 0, "exclusiveMaximum": 3},
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2},
    {"type": ["integer", "string"], "minimum": 5, "maximum": 50, "minLength": 2, "maxLength": 4},
    {"oneOf": [{"type": "string", "maxLength": 4}, {"type": "integer"}, {"type": "null"}]},
    {"enum": [1, 1.5, "a", None, True, {"a": [1, 2.5]}, [], "größe\n"]},
    {
        "$ref": "#/$defs/n",
        "$defs": {"n": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/n"}}]}},
    },
]


@pytest.mark.parametrize("schema", ENFORCED, ids=json.dumps)
def test_what_a_grammar_lets_through_obeys(schema: Any) -> None:
    compiled, texts = compile_grammar(schema_grammar(schema, "schema"), grammar_tokenizer()), list[str]()
    for seed in range(20):
        text = random_output(GrammarMatcher(compiled.deep_copy()), seed)
        texts += [] if text is None else [text]
    assert len(texts) >= 5
    assert {text: found for text in texts if (found := breach_of_text(text, schema)) is not None} == {}


def test_a_check_that_branches_without_end_ends_without_a_verdict() -> None:
    both = [{"properties": {"a": {"$ref": "#"}}}] * 2
    value: Any = 1
    for _ in range(90):
        value = {"a": value}
    begin_s = time.process_time()
    assert breach(value, {"allOf": both}) is None
    assert time.process_time() - begin_s < 1.0, f"{MAX_CHECKS} looks take some 10 ms"
    assert breach_of_text("[" * 5000 + "]" * 5000, {"type": "array"}) is None


@pytest.mark.parametrize("schema", [{"required": 5}, {"properties": 5}, {"enum": 5}, {"anyOf": 7}, {"minLength": "x"}])
def test_a_malformed_schema_says_nothing(schema: Any) -> None:
    assert breach({"a": 1}, schema) is None
    assert breach("a", schema) is None


@pytest.mark.parametrize("text", ["1e" + "9" * 30, "-1e-" + "9" * 30, "1" * 5000])
@pytest.mark.parametrize("schema", [{"type": "number"}, {"type": "integer"}])
def test_a_number_that_no_machine_holds_is_no_breach(text: str, schema: dict[str, Any]) -> None:
    assert breach_of_text(text, schema) is None
