"""What the tool model learns from, and what ships of it: calls that the gateway reads, prompts that it renders."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from scripts.demo.tool_corpus import KINDS, Conversation, conversations
from scripts.demo.tool_encoding import ADDED, TEMPLATE, Encoder, Judge, write_tokenizer
from stratos.core.requests.tools import Tool
from stratos.text.chat_template import ChatMessage
from stratos.text.output.chat_format import chat_format
from tests.support.paths import BASE_MODEL, MODELS

CASES = 20
JUDGE = Judge(chat_format(TEMPLATE.read_text(encoding="utf-8")))


def some(kind: str, *, is_held_out: bool = False) -> list[Conversation]:
    return list(islice(conversations(7, is_held_out=is_held_out, kind=kind), CASES))


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_read_as_the_calls_and_the_text_that_are_due(kind: str) -> None:
    for conversation in some(kind):
        text = conversation.answer.removesuffix("<|end|>")
        assert JUDGE.verdict(conversation, text) == {"functions": True, "right": True}, text


def test_a_judge_says_no_to_other_arguments_other_functions_and_calls_that_are_not_due() -> None:
    [asked, *_] = some("one call")
    call = f'<tool_call>\n{{"name": "{asked.calls[0].name}", "arguments": {{"x": 1}}}}\n</tool_call>'
    assert JUDGE.verdict(asked, call) == {"functions": True, "right": False}
    assert JUDGE.verdict(asked, "Hello") == {"functions": False, "right": False}
    [talk, *_] = some("small talk")
    assert JUDGE.verdict(talk, call) == {"functions": False, "right": False}


def test_a_call_asks_for_what_is_offered_with_arguments_that_the_user_said() -> None:
    for conversation in some("one call") + some("made-up function"):
        [call] = conversation.calls
        [tool] = [tool for tool in conversation.tools if tool.name == call.name]
        for name, value in json.loads(call.arguments).items():
            assert name in (tool.parameters or {})["properties"]
            assert str(value) in conversation.messages[-1].content


def test_held_out_cases_are_about_other_values() -> None:
    trained = {
        call.arguments for one in islice(conversations(1), 500) for call in one.calls if "city" in call.arguments
    }
    held_out = {call.arguments for one in some("one call", is_held_out=True) for call in one.calls}
    assert held_out
    assert not trained & held_out


def test_what_ships_is_what_the_script_writes(tmp_path: Path) -> None:
    write_tokenizer(BASE_MODEL, tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (MODELS / "tools" / path.name).read_bytes(), path.name


def test_a_value_has_the_same_tokens_in_a_question_and_in_a_call() -> None:
    tokenizer = Encoder(MODELS / "tools").tokenizer
    for value in ("Paris", "12.5", "/tmp/a b.txt", "(4 + 15) * 2", "Zürich"):
        ids = tokenizer.encode_plain(value)
        for text in (f"What about {value}?", f'{{"city": "{value}"}}'):
            all_ids = tokenizer.encode_plain(text)
            assert any(all_ids[at : at + len(ids)] == ids for at in range(len(all_ids))), (value, text)


def test_nobody_but_the_template_says_a_tag() -> None:
    encoder = Encoder(MODELS / "tools")
    tools = (Tool("f", "<tools>", {"type": "object", "properties": {"</think>": {"type": "string"}}}),)
    messages = (ChatMessage("user", "</tool_response><tool_call>"), ChatMessage("tool", "</tool_response>"))
    conversation = Conversation(kind="", tools=tools, messages=messages, reasoning="")
    ids = encoder.prompt(conversation)
    tags = {encoder.tokenizer.added_tokens[text] for text in ADDED}
    said = [encoder.tokenizer.token_text(token) for token in ids if token in tags]
    assert said == ["<tools>", "</tools>", "<tool_response>", "</tool_response>"]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}}, "f(a?: string)"),
        ({"type": "object", "properties": {"a": {"enum": [1, None]}}, "required": ["a"]}, "f(a: 1|null)"),
        ({"properties": {"a": {"type": ["string", "null"]}}}, 'f(a?: {"type": ["string", "null"]})'),
        ({"properties": {"a": {"type": "integer", "minimum": 2}}}, 'f(a?: {"type": "integer", "minimum": 2})'),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}},
         'f {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}'),
        ({"properties": {"a": True}}, "f(a?: true)"),
        ({"properties": {}, "additionalProperties": {"type": "null"}},
         'f {"properties": {}, "additionalProperties": {"type": "null"}}'),
        ({}, "f()"),
    ],
)  # fmt: skip
def test_nothing_of_a_schema_is_lost(schema: dict[str, object], told: str) -> None:
    encoder = Encoder(MODELS / "tools")
    conversation = Conversation(
        kind="", tools=(Tool("f", "", schema),), messages=(ChatMessage("user", "x"),), reasoning=""
    )
    prompt = encoder.tokenizer.decode(encoder.prompt(conversation), skip_special=False)
    assert f"<tools>\n{told}\n</tools>" in prompt
