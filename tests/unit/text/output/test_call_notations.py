"""Enforced calls whose arguments are not JSON, and answers whose calls have no mark."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest

from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import calls_grammar
from stratos.core.requests.tools import Tool, ToolMode, ToolUse
from stratos.engine.grammar.matcher import GrammarMatcher
from stratos.text.grammar import compile_grammar
from stratos.text.output.call_grammar import bound_shape, call_grammar
from stratos.text.output.events import CallEnd
from stratos.text.output.parser import OutputShape
from stratos.text.output.syntax import CallSyntax
from stratos.text.output.syntaxes.gemma import GEMMA
from stratos.text.output.syntaxes.glm import GLM
from stratos.text.output.syntaxes.harmony import HARMONY
from stratos.text.output.syntaxes.hermes import HERMES
from stratos.text.output.syntaxes.llama_json import LLAMA_JSON
from stratos.text.output.syntaxes.pythonic import PYTHONIC
from stratos.text.output.syntaxes.qwen_coder import QWEN_CODER
from tests.support.reference.call_matchers import (
    grammar_tokenizer,
    matcher_of,
    random_output,
    shape_of,
    takes,
    takes_ids,
)
from tests.support.reference.output_events import calls_of, events_of, text_of
from tests.support.reference.shipped_model import shipped_tokenizer

RICH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "maxLength": 9},
        "code": {"type": "string", "pattern": "^[a-c]{2,3}$"},
        "maybe": {"type": ["string", "null"], "maxLength": 4},
        "flag": {"type": "boolean"},
        "kind": {"$ref": "#/$defs/Kind"},
        "when": {"type": "string", "format": "date"},
        "list": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "t": {"enum": ["a", 3, None]}},
                "required": ["n"],
                "additionalProperties": False,
            },
            "maxItems": 2,
        },
    },
    "required": ["code", "kind", "flag"],
    "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9},
    "$defs": {"Kind": {"enum": ["x", "y z"]}},
}
FAMILIES = [QWEN_CODER, GLM, GEMMA, PYTHONIC, HARMONY]
BY_NAME = pytest.mark.parametrize("syntax", FAMILIES, ids=lambda syntax: syntax.name)
STRICT, FREE = Tool("f", parameters=RICH, is_strict=True), Tool("g-1")


@BY_NAME
def test_random_arguments_obey_in_every_one_and_two_cut_split(syntax: CallSyntax) -> None:
    use = ToolUse(tools=(STRICT,), mode=ToolMode.NAMED, named="f")
    shape, outputs = shape_of(syntax, use), list[str]()
    for seed in range(5):
        output = random_output(matcher_of(use, shape), seed, 500)
        outputs += [] if output is None else [output]
    assert len(outputs) > 1
    for output in outputs:
        whole = events_of(shape, [output])
        ((name, arguments),) = calls_of(whole)
        assert name == "f"
        jsonschema.validate(json.loads(arguments), RICH, format_checker=jsonschema.FormatChecker())
        assert [event.is_complete for event in whole if isinstance(event, CallEnd)] == [True]
        assert text_of(whole) == ""
    output = min(outputs, key=len)
    whole = events_of(shape, [output])
    for begin, end in itertools.combinations_with_replacement(range(len(output) + 1), 2):
        if end - begin <= 9 or end % 11 == 0:
            assert events_of(shape, [output[:begin], output[begin:end], output[end:]]) == whole, (begin, end)


CALLS = {
    "qwen 3 coder": (
        "<tool_call>\n<function=f>\n<parameter=code>\nab\n</parameter>\n<parameter=flag>\ntrue\n</parameter>\n"
        '<parameter=kind>\n"x"\n</parameter>\n</function>\n</tool_call>'
    ),
    "glm": (
        "<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>ab</arg_value>\n<arg_key>flag</arg_key>\n"
        '<arg_value>true</arg_value>\n<arg_key>kind</arg_key>\n<arg_value>"x"</arg_value>\n</tool_call>'
    ),
    "gemma 4": '<|tool_call>call:f{code:<|"|>ab<|"|>,flag:true,kind:<|"|>x<|"|>}<tool_call|>',
    "pythonic": '[f(code="ab", flag=True, kind="x")]',
    "harmony": (
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"code": "ab", "flag": true, "kind": "x"}'
    ),
}
OTHER = {
    "qwen 3 coder": "<tool_call>\n<function=g-1>\n<parameter=any>\n<b> \n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>g-1\n<arg_key>any</arg_key>\n<arg_value><b> </arg_value>\n</tool_call>",
    "gemma 4": '<|tool_call>call:g-1{any:[1,{deep:<|"|>x<|"|>}]}<tool_call|>',
    "pythonic": '[g-1(any={"a": [1]})]',
    "harmony": '<|channel|>commentary to=functions.g-1 <|constrain|>json<|message|>{"any": 1}',
}
FINAL = "<|channel|>final<|message|>"


@BY_NAME
def test_strict_calls_obey_among_free_text(syntax: CallSyntax) -> None:
    use = ToolUse(tools=(STRICT, FREE))
    shape, good, other = shape_of(syntax, use), CALLS[syntax.name], OTHER[syntax.name]
    text = FINAL if syntax is HARMONY else ""
    for output, is_allowed in (
        (f"{text}no call at all", True),
        (good, True),
        (other, True),
        (good.replace("ab", "zz"), False),
        (good.replace("kind", "kin"), False),
        (other.replace("g-1", "h"), False),
    ):
        assert takes(matcher_of(use, shape), output) is is_allowed, output
    [(_, arguments)] = calls_of(events_of(shape, [good]))
    assert json.loads(arguments) == {"code": "ab", "flag": True, "kind": "x"}
    [(name, _)] = calls_of(events_of(shape, [other]))
    assert name == "g-1"


def test_messages_of_a_framed_output_come_in_their_order() -> None:
    use = ToolUse(tools=(STRICT, FREE))
    shape, good = shape_of(HARMONY, use), CALLS["harmony"]
    thought, next_one = "<|channel|>analysis<|message|>f or g?<|end|>", "<|start|>assistant"
    preamble = "<|channel|>commentary<|message|>I look.<|end|>"
    for output, is_allowed in (
        (f"{thought}{next_one}{preamble}{next_one}{good}", True),
        (f"{good}<|call|>{next_one}{OTHER['harmony']}", True),
        (f"{thought}{next_one}{FINAL}yes", True),
        (f"{thought}{good}", False),
        (f"{FINAL}yes<|end|>{good}", False),
        ("yes", False),
    ):
        assert takes(matcher_of(use, shape), output) is is_allowed, output
    forced = ToolUse(tools=(STRICT,), mode=ToolMode.REQUIRED)
    assert takes(matcher_of(forced, shape), f"{thought}{next_one}{good}")
    assert not takes(matcher_of(forced, shape), f"{thought}{next_one}{FINAL}")
    events = events_of(shape, [f"{thought}{next_one}{preamble}{next_one}{good}<|call|>"])
    assert (text_of(events), len(calls_of(events))) == ("I look.", 1)


@pytest.mark.parametrize(
    ("syntax", "output", "is_allowed"),
    [
        (LLAMA_JSON, '{"name": "g-1", "parameters": {"a": 1}}; {"name": "g-1", "parameters": {}}', True),
        (LLAMA_JSON, 'Look: <|python_tag|>{"name": "g-1", "parameters": {}}', True),
        (LLAMA_JSON, 'Look: {"name": "g-1"}', True),
        (LLAMA_JSON, '{"answer": 1, "name": "x"}', True),
        (LLAMA_JSON, '{"name": "f", "parameters": {}}', False),
        (LLAMA_JSON, ' {"type": "f"', False),
        (LLAMA_JSON, '{"n\\u0061me": "f"', False),
        (PYTHONIC, "[1, 2] and [text](url) are lists", True),
        (PYTHONIC, "Look: <|python_start|>[g-1(a=1)]", True),
        (PYTHONIC, "[f(a=1)]", False),
        (PYTHONIC, "\n[ f(", False),
    ],
)
def test_what_would_be_read_as_a_call_is_one_that_obeys(syntax: CallSyntax, output: str, is_allowed: bool) -> None:
    use = ToolUse(tools=(STRICT, FREE))
    assert takes(matcher_of(use, shape_of(syntax, use)), output) is is_allowed
    if is_allowed:
        calls = calls_of(events_of(shape_of(syntax, use), [output]))
        assert all(name == "g-1" for name, _ in calls)
        assert len(calls) == output.count("g-1") * (output != 'Look: {"name": "g-1"}')


@pytest.mark.parametrize("syntax", [HERMES, LLAMA_JSON, PYTHONIC, HARMONY, GEMMA, GLM], ids=lambda syntax: syntax.name)
def test_content_that_obeys_is_no_call(syntax: CallSyntax) -> None:
    content = {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False}
    for tools in ((STRICT, FREE), ()):
        use = ToolUse(tools=tools) if tools else ToolUse(mode=ToolMode.NONE)
        shape = bound_shape(shape_of(syntax, use))
        spec = calls_grammar(call_grammar(use, shape, {}, content), [content], "tools")
        output = f'{FINAL if syntax is HARMONY else ""}{{"name": "f"}}'
        for text, is_allowed in ((output, True), (output.replace("name", "age"), False), ("text", False)):
            assert takes(GrammarMatcher(compile_grammar(spec, grammar_tokenizer())), text) is is_allowed
        events = events_of(shape, [output])
        assert (calls_of(events), text_of(events)) == ([], '{"name": "f"}')


@pytest.mark.parametrize(
    ("syntax", "schema", "keyword"),
    [
        (GLM, {"patternProperties": {"a": {}}}, "patternProperties"),
        (QWEN_CODER, {"properties": {"a": {"type": "string", "format": "iri"}}}, "iri"),
        (QWEN_CODER, {"properties": {"a": {"type": "string", "not": {}}}}, "not"),
        (PYTHONIC, {"properties": {"a b": {}}, "required": ["a b"]}, "a b"),
        (PYTHONIC, {"properties": {"a": {"$ref": "#/properties/b"}, "b": {}}}, "#/properties/b"),
        (GEMMA, {"properties": {"a": {"oneOf": []}}}, "oneOf"),
        (GEMMA, {"properties": {"a": {"items": {"uniqueItems": True}}}}, "uniqueItems"),
        (GEMMA, {"properties": {"a": {"$ref": "#/$defs/none"}}}, "#/$defs/none"),
    ],
)
def test_what_a_notation_cannot_enforce_is_refused_by_name(
    syntax: CallSyntax, schema: dict[str, Any], keyword: str
) -> None:
    tool = Tool("f", parameters={"type": "object", **schema}, is_strict=True, place="tools[0].function")
    use = ToolUse(tools=(tool,))
    with pytest.raises(BadRequest, match=keyword.replace("$", r"\$")) as caught:
        call_grammar(use, shape_of(syntax, use), {})
    assert (caught.value.param, caught.value.code) == ("tools[0].function.parameters", "unsupported_parameter")


@pytest.mark.parametrize("syntax", [QWEN_CODER, GLM], ids=lambda syntax: syntax.name)
def test_the_end_of_a_value_within_a_json_text_is_none(syntax: CallSyntax) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}, "required": ["a"]}
    use = ToolUse(tools=(Tool("f", parameters=schema),), mode=ToolMode.REQUIRED)
    value = '["x</parameter>\\"y</arg_value>"]'
    output = {
        "qwen 3 coder": f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>",
        "glm": f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>",
    }[syntax.name]
    shape = shape_of(syntax, use)
    assert takes(matcher_of(use, shape), output)
    whole = events_of(shape, [output])
    assert calls_of(whole) == [("f", f'{{"a": {value}}}')]
    for begin, end in itertools.combinations_with_replacement(range(len(output) + 1), 2):
        if end - begin <= 9 or end % 11 == 0:
            assert events_of(shape, [output[:begin], output[begin:end], output[end:]]) == whole


def test_names_of_functions_that_only_other_syntaxes_would_take_are_read() -> None:
    shape = OutputShape(syntax=PYTHONIC)
    assert calls_of(events_of(shape, ["[2nd-one(a=1)]"])) == [("2nd-one", '{"a": 1}')]
    assert calls_of(events_of(shape, ["[2(3)]"])) == []


def test_marks_that_are_tokens_are_written_by_their_ids_alone() -> None:
    use, special = ToolUse(tools=(FREE,)), {"<tool_call>": 1, "</tool_call>": 2}
    shape, encode = shape_of(GLM, use), shipped_tokenizer().encode_plain
    call = encode("g-1\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n")
    for ids, is_allowed in (
        ([*encode("Look: "), 1, *call, 2, *encode(" done")], True),
        ([*encode("Look: "), 1, *call, *encode("</tool_call>")], False),
        (encode("Look: <tool_call>"), False),
        ([1, *encode("h")], False),
    ):
        strict = ToolUse(tools=(*use.tools, STRICT))
        assert takes_ids(matcher_of(strict, shape, special), ids) is is_allowed, ids


def test_objects_may_be_nested_deeply() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    value = "1"
    for _ in range(30):
        schema, value = {"type": "object", "properties": {"deep": schema}, "required": ["deep"]}, f"{{deep:{value}}}"
    use = ToolUse(tools=(Tool("f", parameters=schema),), mode=ToolMode.REQUIRED)
    call = f"<|tool_call>call:f{value}<tool_call|>"
    assert takes(matcher_of(use, shape_of(GEMMA, use)), call)
    assert not takes(matcher_of(use, shape_of(GEMMA, use)), call.replace("1", '"1"'))
