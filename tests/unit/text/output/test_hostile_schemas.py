"""Schemas of tools that are hostile or malformed: what is written for them is bounded, and each is refused by name."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from typing import Any

import jsonschema
import pytest

from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import MAX_GRAMMAR_BYTES
from stratos.core.requests.tools import Tool, ToolMode, ToolUse
from stratos.text.output.call_grammar import call_grammar
from stratos.text.output.syntax import CallSyntax
from stratos.text.output.syntaxes.deepseek import DEEPSEEK, DEEPSEEK_FENCED
from stratos.text.output.syntaxes.gemma import GEMMA
from stratos.text.output.syntaxes.glm import GLM
from stratos.text.output.syntaxes.harmony import HARMONY
from stratos.text.output.syntaxes.hermes import HERMES
from stratos.text.output.syntaxes.llama_json import LLAMA_JSON
from stratos.text.output.syntaxes.mistral import MISTRAL, MISTRAL_ARGS
from stratos.text.output.syntaxes.phi import PHI
from stratos.text.output.syntaxes.pythonic import PYTHONIC
from stratos.text.output.syntaxes.qwen_coder import QWEN_CODER
from tests.support.reference.call_matchers import matcher_of, random_output, shape_of
from tests.support.reference.output_events import calls_of, events_of

OWN = [QWEN_CODER, GLM, GEMMA, PYTHONIC]
SYNTAXES = [HERMES, PHI, MISTRAL, MISTRAL_ARGS, LLAMA_JSON, DEEPSEEK, DEEPSEEK_FENCED, HARMONY, *OWN]
BY_NAME = pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
BY_OWN_NAME = pytest.mark.parametrize("syntax", OWN, ids=lambda syntax: syntax.name)
NAMES = [f"n{place}" for place in range(8)]


def use_of(schema: dict[str, Any]) -> ToolUse:
    tool = Tool("f", parameters={"type": "object", **schema}, is_strict=True, place="tools[0].function")
    return ToolUse(tools=(tool,), mode=ToolMode.REQUIRED)


def grammar_of(syntax: CallSyntax, schema: dict[str, Any]) -> str:
    use = use_of(schema)
    return call_grammar(use, shape_of(syntax, use), {})


@BY_NAME
def test_a_small_schema_unfolds_to_no_large_grammar(syntax: CallSyntax) -> None:
    large = {"required": [f"n{n}" for n in range(100)], "additionalProperties": {"enum": ["x" * 20_000, 1]}}
    assert len(grammar_of(syntax, large)) <= MAX_GRAMMAR_BYTES
    for depth in (5, 31):
        copied: dict[str, Any] = {"type": "string"}
        doubled: dict[str, Any] = {"type": "string"}
        for _ in range(depth):
            copied = {"type": "object", "required": NAMES, "additionalProperties": copied}
            doubled = {"type": ["object", "object", "object", "object"], "properties": {"a": doubled}}
        for schema in (copied, {"properties": {"a": doubled}}):
            with suppress(BadRequest) if depth == 31 else nullcontext():
                assert len(grammar_of(syntax, schema)) <= MAX_GRAMMAR_BYTES


@BY_OWN_NAME
def test_a_grammar_is_refused_while_it_is_written(syntax: CallSyntax) -> None:
    if syntax is GEMMA:
        large: dict[str, Any] = {"properties": {"a": {"enum": ["x" * MAX_GRAMMAR_BYTES]}}}
    else:
        fields = {f"p{place}": {"$ref": "#/$defs/D"} for place in range(100)}
        large = {"properties": fields, "$defs": {"D": {"enum": ["x" * 30_000, 1]}}}
    with pytest.raises(BadRequest, match=str(MAX_GRAMMAR_BYTES)) as caught:
        grammar_of(syntax, large)
    assert (caught.value.param, caught.value.code) == ("tools[0].function.parameters", "unsupported_parameter")


@BY_OWN_NAME
@pytest.mark.parametrize(
    "schema",
    [
        {"required": [[]]},
        {"required": 5},
        {"properties": {"a": {"enum": 5}}},
        {"properties": {"a": {"anyOf": 5}}},
        {"properties": {"a": {"allOf": 5}}},
        {"properties": {"a": {"type": 5}}},
        {"properties": {"a": {"type": [[]]}}},
        {"properties": {"a": {"type": "array", "minItems": "x"}}},
        {"properties": {"a": {"type": "string", "enum": 5}}},
    ],
    ids=json.dumps,
)
def test_a_malformed_schema_is_refused(syntax: CallSyntax, schema: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        matcher_of(use_of(schema), shape_of(syntax, use_of(schema)))


@BY_NAME
def test_long_chains_of_references_end(syntax: CallSyntax) -> None:
    def chain(link: str) -> dict[str, Any]:
        def to(place: int) -> dict[str, Any]:
            reference = {"$ref": f"#/$defs/d{place}"}
            return {"properties": {"a": reference}} if link == "nested" else reference

        definitions = {f"d{place}": to(place + 1) for place in range(400)}
        return {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**definitions, "d400": {"type": "object"}}}

    for schema in (chain("nested"), chain("direct")):
        if syntax is GEMMA:
            with pytest.raises(BadRequest):
                grammar_of(syntax, schema)
        else:
            assert len(grammar_of(syntax, schema)) <= MAX_GRAMMAR_BYTES


@BY_OWN_NAME
def test_names_that_are_only_required_have_the_values_of_all_others(syntax: CallSyntax) -> None:
    schema = {"required": ["a", "b"], "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 99}}
    shape, num_outputs = shape_of(syntax, use_of(schema)), 0
    for seed in range(4):
        output = random_output(matcher_of(use_of(schema), shape), seed)
        for _, arguments in [] if output is None else calls_of(events_of(shape, [output])):
            jsonschema.validate(json.loads(arguments), schema)
            num_outputs += 1
    assert num_outputs
