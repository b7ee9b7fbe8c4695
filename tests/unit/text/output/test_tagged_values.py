"""Values between tags: what is no JSON ends with the first end tag, and every split of a text gives the same."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from stratos.core.requests.tools import Tool, ToolUse
from stratos.text.output.syntax import CallSyntax
from stratos.text.output.syntaxes.glm import GLM
from stratos.text.output.syntaxes.qwen_coder import QWEN_CODER
from tests.support.reference.call_matchers import shape_of
from tests.support.reference.output_events import calls_of, events_of, text_of

FREE: dict[str, Any] = {"description": "anything"}
MAYBE, NUMBER, LIST = {"type": ["string", "null"]}, {"type": "integer"}, {"type": "array"}
END = {QWEN_CODER.name: "</parameter>", GLM.name: "</arg_value>"}


def written(syntax: CallSyntax, value: str) -> str:
    """A call of two arguments."""
    if syntax is GLM:
        pairs = (
            f"<arg_key>a</arg_key>\n<arg_value>{value}</arg_value>\n<arg_key>b</arg_key>\n<arg_value>x</arg_value>\n"
        )
        return f"<tool_call>f\n{pairs}</tool_call> after"
    pairs = f"<parameter=a>\n{value}\n</parameter>\n<parameter=b>\nx\n</parameter>\n"
    return f"<tool_call>\n<function=f>\n{pairs}</function>\n</tool_call> after"


@pytest.mark.parametrize("syntax", [QWEN_CODER, GLM], ids=lambda syntax: syntax.name)
@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ('12" pizza', FREE),
        ('12" pizza', MAYBE),
        ('12" pizza', NUMBER),
        ('"odd', FREE),
        ('"odd', MAYBE),
        ('"a" or 12"', MAYBE),
        ('[1, "x', LIST),
        ('["a] b', LIST),
        ("[1, 2", LIST),
        ("{{}", LIST),
        ("]", LIST),
        ('"\\', MAYBE),
        ('"in END it"', MAYBE),
        ('["in END it", {"\\"END": "\\\\"}]', LIST),
        (' ["in END it"] ', LIST),
        ("null", MAYBE),
        ("7", NUMBER),
    ],
)
def test_a_value_ends_where_it_does(syntax: CallSyntax, value: str, schema: dict[str, Any]) -> None:
    value = value.replace("END", END[syntax.name])
    parameters = {"type": "object", "properties": {"a": schema, "b": {"type": "string"}}}
    shape, output = shape_of(syntax, ToolUse(tools=(Tool("f", parameters=parameters),))), written(syntax, value)
    whole = events_of(shape, [output])
    try:
        expected = json.loads(value)
    except ValueError:
        expected = value
    [(_, arguments)] = calls_of(whole)
    assert (json.loads(arguments), text_of(whole).strip()) == ({"a": expected, "b": "x"}, "after")
    assert events_of(shape, list(output)) == whole
    for begin, end in itertools.combinations_with_replacement(range(len(output) + 1), 2):
        if end - begin <= 2 or end % 23 == 0:
            assert events_of(shape, [output[:begin], output[begin:end], output[end:]]) == whole, (begin, end)


EITHER = {"anyOf": [{"type": "string"}, {"type": "integer"}]}


@pytest.mark.parametrize("syntax", [QWEN_CODER, GLM], ids=lambda syntax: syntax.name)
@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("12345678901234567890", MAYBE, "12345678901234567890"),
        ("true", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "true"),
        ("True", MAYBE, "True"),
        ("[1]", MAYBE, "[1]"),
        ("None", MAYBE, None),
        ('"7"', MAYBE, "7"),
        ("7", EITHER, 7),
        ("false", EITHER, "false"),
        ("1", {"enum": ["1", None]}, "1"),
        ("1", {"const": "1"}, "1"),
        ("7", {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a"}]}, 7),
        ("7", {"anyOf": [{"type": "string"}, {"enum": [7, [1], {"a": 1}, True]}]}, 7),
    ],
)
def test_what_may_be_a_text_is_one_unless_its_type_is_in_the_schema(
    syntax: CallSyntax, value: str, schema: dict[str, Any], expected: object
) -> None:
    parameters = {"type": "object", "properties": {"a": schema, "b": {"type": "string"}}}
    shape = shape_of(syntax, ToolUse(tools=(Tool("f", parameters=parameters),)))
    [(_, arguments)] = calls_of(events_of(shape, [written(syntax, value)]))
    assert json.loads(arguments) == {"a": expected, "b": "x"}
