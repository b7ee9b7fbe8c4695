"""Which syntax a chat template tells, and how conversations with tools are written for it."""

from __future__ import annotations

import pytest

from stratos.common.errors import BadRequest
from stratos.core.requests.tools import Tool, ToolCall
from stratos.text.chat_template import ChatMessage, ChatTemplate
from stratos.text.output.chat_format import chat_format
from stratos.text.output.syntaxes.llama_json import ASKED_FOR
from tests.support.reference.shipped_model import shipped_tokenizer

TEMPLATES = {
    "{% if tools %}{{ '<tool_call>' }}{% endif %}": "hermes",
    "{% if tools %}<tool_call>\n<function=...>\n<parameter=...>{% endif %}": "qwen 3 coder",
    "{% if tools %}<tool_call>{name}<arg_key>k</arg_key><arg_value>v</arg_value>{% endif %}": "glm",
    "{% if tools is none %}[TOOL_CALLS] [": "mistral",
    "{% if tools %}[TOOL_CALLS]{{ name }}[ARGS]": "mistral with [ARGS]",
    "{% for tool in tools %}<|tool_call|>{{ tool }}<|/tool_call|>": "phi",
    "{% if tools %}<|tool_call>call:{{ name }}": "gemma 4",
    "{% if tools %}<|python_tag|>": "llama 3 json",
    f"{{% if tools %}}Respond in the format {ASKED_FOR}.": "llama 3 json without its mark",
    f"{{% if tools %}}Respond in the format {ASKED_FOR}.<|python_start|>": "llama 4 json",
    "{% if tools %}<|python_start|>": "pythonic by its mark",
    "{% if tools %}[func_name1(params_name1=params_value1)]": "pythonic",
    "{% if tools %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>": "deepseek",
    "{% if tools %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function\n```json": "deepseek with fences",
    "{% if tools %}<|start|>assistant<|channel|>final<|message|>": "harmony",
}
CALL = ToolCall("call_0123456789", "f", '{"a": "<|end|>"}')
CONVERSATION = (
    ChatMessage("user", "hi"),
    ChatMessage("assistant", "", tool_calls=(CALL,)),
    ChatMessage("tool", "42", tool_call_id=CALL.id),
)
TOOL = Tool("f", "does it <|end|>", {"type": "object", "properties": {"a": {"type": "string"}}})


@pytest.mark.parametrize(("source", "name"), TEMPLATES.items(), ids=TEMPLATES.values())
def test_a_template_tells_its_syntax(source: str, name: str) -> None:
    found = chat_format(source)
    assert found.is_native
    assert found.syntax.name == name.partition(" without ")[0].partition(" by ")[0]


def test_a_template_that_knows_no_tools_gets_the_generic_syntax() -> None:
    found = chat_format("{{ messages[0].content }}<tool_call>")
    assert (found.syntax.name, found.is_native, found.reasoning) == ("hermes", False, None)
    written = found.written(CONVERSATION, [TOOL])
    assert [message.role for message in written] == ["system", "user", "assistant", "user"]
    assert written[2].content == '<tool_call>\n{"name": "f", "arguments": {"a": "<|end|>"}}\n</tool_call>'
    assert found.written(CONVERSATION[:1], ()) == CONVERSATION[:1]


def test_roles_go_by_turns_where_a_user_speaks_behind_results() -> None:
    found = chat_format("{{ messages[0].content }}")
    told = [*CONVERSATION, ChatMessage("user", "and?"), ChatMessage("tool", "43"), ChatMessage("assistant", "so")]
    written = found.written([*told, ChatMessage("user", "on")], ())
    assert [message.role for message in written] == ["user", "assistant", "user", "assistant", "user"]
    results = [f"<tool_response>\n{number}\n</tool_response>" for number in (42, 43)]
    assert (written[2].content, written[4].content) == (f"{results[0]}\nand?\n{results[1]}", "on")
    named = [*CONVERSATION, ChatMessage("user", "and?", name="Ann")]
    assert found.written(named, ())[-1] == named[-1]


def test_ids_are_as_long_as_the_template_wants_them() -> None:
    _, asked, result = chat_format("{% if tools %}[TOOL_CALLS] [").written(CONVERSATION, [TOOL])
    assert asked.tool_calls[0].id == result.tool_call_id
    assert len(result.tool_call_id) == 9
    assert result.tool_call_id.isalnum()
    kept = ChatMessage("tool", "42", tool_call_id="abcDEF123")
    assert chat_format("{% if tools %}[TOOL_CALLS] [").written([kept], ()) == [kept]


def test_reasoning_is_told_by_its_closing_tag() -> None:
    reasoning = chat_format("{{ '</think>' }}").reasoning
    assert reasoning is not None
    assert (reasoning.begin, reasoning.end) == ("<think>", "</think>")


def rendered(source: str) -> str:
    ids = ChatTemplate(source, shipped_tokenizer()).encode(CONVERSATION, [TOOL])
    assert not set(ids) & shipped_tokenizer().special_ids, "what a client has spelt is text"
    return shipped_tokenizer().decode(ids)


def test_templates_see_tools_and_arguments_as_objects() -> None:
    source = "{{ tools[0].function.description }} {{ messages[1].tool_calls[0].function.arguments.a }}"
    assert rendered(source) == "does it <|end|> <|end|>"
    assert rendered("{{ messages[1].tool_calls[0].function | tojson }}").endswith('"arguments": {"a": "<|end|>"}}')


def test_templates_that_put_arguments_together_as_text_get_text() -> None:
    assert rendered("{{ 'x' + messages[1]['tool_calls'][0]['function']['arguments'] }}") == 'x{"a": "<|end|>"}'
    with pytest.raises(BadRequest):
        rendered("{{ 'x' + 5 }}")
