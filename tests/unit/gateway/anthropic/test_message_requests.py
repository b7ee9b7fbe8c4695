"""Bodies of /v1/messages: lenient in their form, strict in what they ask for."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.core.requests.tools import ToolCall, ToolMode
from stratos.text.chat_template import PLAIN_USE, ChatMessage
from stratos_gateway.anthropic.requests import parse_message
from stratos_gateway.openai.requests import Conversation, GenerationBody

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "get_weather", "description": "Weather", "input_schema": {"type": "object", "properties": {}}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Bern"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
B = {"role": "system", "content": "b"}
EMPTY = {"role": "assistant", "content": ""}
DOCUMENT = {
    "type": "document",
    "title": "report",
    "source": {"type": "text", "media_type": "text/plain", "data": "Rain."},
}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def parsed(**body: Any) -> GenerationBody:
    return parse_message({"model": "base", "max_tokens": 9, "messages": [USER], **body}, 4096)


def conversation(**body: Any) -> Conversation:
    [prompt] = parsed(**body).prompts
    assert isinstance(prompt, Conversation)
    return prompt


def shown(**body: Any) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in conversation(**body).messages]


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        ({}, [("user", "hi")]),
        ({"system": "Be brief."}, [("system", "Be brief."), ("user", "hi")]),
        ({"system": [text("a"), text("b", **CACHED)]}, [("system", "a\n\nb"), ("user", "hi")]),
        ({"system": "a", "messages": [B, USER]}, [("system", "a\n\nb"), ("user", "hi")]),
        (
            {"messages": [USER, {"role": "system", "content": [text("later")]}, USER]},
            [("user", "hi"), ("system", "later"), ("user", "hi")],
        ),
        ({"messages": [user(text("a"), text("b"))]}, [("user", "a\n\nb")]),
        ({"messages": [USER, USER]}, [("user", "hi\n\nhi")]),
        ({"messages": [{"role": "developer", "content": "x"}, USER]}, [("system", "x"), ("user", "hi")]),
        ({"messages": [USER, EMPTY, USER]}, [("user", "hi"), ("assistant", ""), ("user", "hi")]),
        (
            {"system": [text("x-anthropic-billing-header: cc_version=2.1; cch=ab12;"), text("You are")]},
            [("system", "You are"), ("user", "hi")],
        ),
    ],
)  # fmt: skip
def test_texts_may_have_any_form(body: dict[str, Any], messages: list[tuple[str, str]]) -> None:
    assert shown(**body) == messages


def test_calls_and_results_become_those_of_a_chat() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    failed = {**RESULT, "tool_use_id": "b", "content": [text("dry"), text("warm")], "is_error": True}
    answer = assistant(thinking, text("Let me look."), USE, {**USE, "id": "b"})
    messages = [USER, answer, user(RESULT, failed, text("so?"))]
    call = ToolCall("toolu_1", "get_weather", '{"city": "Bern"}')
    assert conversation(messages=messages, tools=[TOOL]).messages == (
        ChatMessage("user", "hi"),
        ChatMessage(
            "assistant",
            "Let me look.",
            tool_calls=(call, ToolCall("b", "get_weather", call.arguments)),
            reasoning="hm",
        ),
        ChatMessage("tool", "sunny", tool_call_id="toolu_1"),
        ChatMessage("tool", "Error: dry\n\nwarm", tool_call_id="b"),
        ChatMessage("user", "so?"),
    )


def test_a_result_may_say_nothing() -> None:
    messages = [USER, assistant(USE), user({"type": "tool_result", "tool_use_id": "toolu_1"})]
    assert conversation(messages=messages).messages[-1] == ChatMessage("tool", "", tool_call_id="toolu_1")


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({}, ""),
        ({"citations": {"enabled": False}, **CACHED}, ""),
        ({"context": "Of May.", "source": {"type": "content", "content": "Rain."}}, "Of May.\n\n"),
        ({"source": {"type": "content", "content": [text("Rain.")]}}, ""),
    ],
)
def test_documents_of_text_are_read(changes: dict[str, Any], about: str) -> None:
    document = {**DOCUMENT, **changes}
    content = conversation(messages=[user(text("Look:"), document, text("Well?"))]).messages[0].content
    assert content == f"Look:\n\n[document: report]\n{about}Rain.\n[end of document]\n\nWell?"


def test_a_document_of_text_that_a_tool_has_made_is_read() -> None:
    body = parsed(messages=[USER, assistant(USE), user({**RESULT, "content": [DOCUMENT]})])
    [prompt] = body.prompts
    assert prompt.messages[-1].content == "[document: report]\nRain.\n[end of document]"  # type: ignore[union-attr]
    assert body.ignored == ()


def test_a_note_stands_for_an_image_that_a_tool_has_made() -> None:
    messages = [USER, assistant(USE), user({**RESULT, "content": [text("look"), IMAGE, {"type": "document"}]})]
    body = parsed(messages=messages)
    assert conversation(messages=messages).messages[-1].content == (
        "look\n\n[image left out: this model reads text alone]\n\n[document left out: this model reads text alone]"
    )
    assert body.ignored == ("tool_result.image", "tool_result.document")


@pytest.mark.parametrize(
    ("choice", "mode", "named", "is_parallel"),
    [
        (None, ToolMode.AUTO, "", True),
        ({"type": "auto"}, ToolMode.AUTO, "", True),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolMode.REQUIRED, "", False),
        ({"type": "tool", "name": "get_weather"}, ToolMode.NAMED, "get_weather", True),
        ({"type": "none"}, ToolMode.NONE, "", True),
    ],
)
def test_choices_of_tools(choice: Any, mode: ToolMode, named: str, is_parallel: bool) -> None:
    use = conversation(tools=[{**TOOL, "type": "custom", "strict": True, **CACHED}], tool_choice=choice).tools
    assert (use.mode, use.named, use.is_parallel) == (mode, named, is_parallel)
    assert (use.tools[0].name, use.tools[0].is_strict, use.tools[0].parameters) == (
        "get_weather",
        True,
        TOOL["input_schema"],
    )


def test_options() -> None:
    options = parsed(
        stop_sequences=["END"], temperature=0.5, top_p=0.9, top_k=40, stream=True, metadata={"user_id": "u"}, seed=3,
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
    ).options  # fmt: skip
    assert (options.stop, options.stream, options.max_tokens) == (("END",), True, 9)
    assert (options.session, options.seed) == ("u", 3)
    assert {name: options.sampling[name] for name in ("temperature", "top_p", "top_k")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
    }
    assert options.grammar is not None
    assert (options.grammar.param, json.loads(options.grammar.spec.text)) == (
        "output_config.format.schema",
        {"type": "object"},
    )
    assert parsed(max_tokens=None).options.max_tokens is None


def test_what_cannot_change_an_answer_is_named() -> None:
    body = parsed(
        system=[text("x-anthropic-billing-header: cch=1;\nYou are", **CACHED)],
        messages=[USER, assistant({"type": "redacted_thinking", "data": "x"}, text("a")), USER],
        thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2048,
        output_config={"effort": "high"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        service_tier="auto", diagnostics={"previous_message_id": "msg_1"},
    )  # fmt: skip
    assert body.keep_fields == ("cache_control",), "that of the line that is left out is of the text behind it"
    assert body.ignored == (
        "x-anthropic-billing-header",
        "redacted_thinking",
        "context_management",
        "diagnostics",
    )
    [conversation] = body.prompts
    assert isinstance(conversation, Conversation)
    assert (conversation.wish.effort, conversation.wish.budget) == ("high", 1024), "the model says what it can do"
    assert parsed().ignored == ()


@pytest.mark.parametrize(
    ("thinking", "thinks"), [(None, None), ({"type": "adaptive"}, True), ({"type": "disabled"}, False)]
)
def test_thinking_is_wanted_or_not(thinking: Any, thinks: bool | None) -> None:
    assert conversation(thinking=thinking).thinks is thinks


@pytest.mark.parametrize(
    ("last", "is_continued"),
    [
        ({"role": "assistant", "content": "It is"}, True),
        ({"role": "assistant", "content": ""}, False),
        (assistant(text("a"), USE), False),
        (USER, False),
    ],
)
def test_an_answer_that_the_client_has_begun_goes_on(last: dict[str, Any], is_continued: bool) -> None:
    use = conversation(messages=[USER, last]).use
    assert use.continues_last is is_continued
    assert is_continued or use == PLAIN_USE


DEEP: Any = functools.reduce(lambda inner, _: {"a": inner}, range(70), {})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{**USER, "name": "x"}]}, "messages[0].name"),
        ({"messages": [user(text("a"), IMAGE)]}, "messages[0].content[1]"),
        ({"messages": [user({"type": "document"})]}, "messages[0].content[0].source"),
        ({"messages": [user({**DOCUMENT, "source": IMAGE["source"]})]}, "messages[0].content[0].source.type"),
        (
            {"messages": [user({**DOCUMENT, "source": {"type": "content", "content": [IMAGE]}})]},
            "messages[0].content[0].source.content[0]",
        ),
        ({"messages": [user({**DOCUMENT, "citations": {"enabled": True}})]}, "messages[0].content[0].citations"),
        ({"messages": [user({**DOCUMENT, "title": 5})]}, "messages[0].content[0].title"),
        ({"messages": [assistant(DOCUMENT)]}, "messages[0].content[0]"),
        ({"messages": [user({"text": "x"})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
        ({"messages": [user(text("x", more=1))]}, "messages[0].content[0].more"),
        ({"messages": [user({**RESULT, "content": [USE]})]}, "messages[0].content[0].content[0]"),
        ({"messages": [user({**RESULT, "tool_use_id": ""})]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [user({**RESULT, "is_error": 1})]}, "messages[0].content[0].is_error"),
        ({"messages": [user(USE)]}, "messages[0].content[0]"),
        ({"messages": [assistant(RESULT)]}, "messages[0].content[0]"),
        ({"messages": [assistant({**USE, "input": "x"})]}, "messages[0].content[0].input"),
        ({"messages": [assistant({**USE, "input": DEEP})]}, "messages[0].content[0].input"),
        ({"messages": [assistant({**USE, "name": 5})]}, "messages[0].content[0].name"),
        ({"messages": [assistant(*[USE] * 129)]}, "messages"),
        ({"messages": [user(*[text("x")] * 257)]}, "messages[0].content"),
        ({"messages": [user(*[text("x")] * 250)] * 17}, "messages"),
        ({"messages": [USER] * 1025}, "messages"),
        ({"system": [text("x", cache_control={"type": "ephemeral", "ttl": "7d"})]}, "system[0].cache_control.ttl"),
        ({"tools": [{**TOOL, "cache_control": "yes"}]}, "tools[0].cache_control.type"),
        ({"system": 5}, "system"),
        ({"system": [IMAGE]}, "system[0]"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{**TOOL, "name": "x" * 129}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "input_schema": []}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools[0].input_examples"),
        ({"tools": [{**TOOL, "more": 1}]}, "tools[0].more"),
        ({"tools": [TOOL, TOOL]}, "tools[1]"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "required"}, "tools": [TOOL]}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool", "name": "gone"}, "tools": [TOOL]}, "tool_choice.name"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"stream": 1}, "stream"),
        ({"stop": ["x"]}, "stop"),
        ({"n": 2}, "n"),
        ({"metadata": {"user_id": 1}}, "metadata.user_id"),
        ({"metadata": {"more": "x"}}, "metadata.more"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1000}, "max_tokens": 2000}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4000}, "max_tokens": 2000}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"effort": "most"}}, "output_config.effort"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0]"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"container": "x"}, "container"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"mesages": []}, "mesages"),
        ({"model": None}, "model"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(**body)
    assert caught.value.param == param
    assert len(caught.value.message) < 300
