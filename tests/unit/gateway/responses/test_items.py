"""Input of a response -> messages: turns of the assistant are joined, what is no text is refused by its place."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import MAX_ALL_CONTENT_PARTS, MAX_CONTENT_PARTS, MAX_MESSAGES
from stratos.core.requests.pins import TTL_1H_S, TTL_24H_S
from stratos.core.requests.tools import ToolCall
from stratos.text.chat_template import ChatMessage
from stratos_gateway.openai.messages import read_file
from stratos_gateway.responses import items
from stratos_gateway.responses.items import check_input, with_instructions

USER = {"role": "user", "content": "hi"}


def call(name: str = "f", arguments: str = "{}", call_id: str = "a") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, "id": "fc_1"}


def output(text: Any = "sunny", call_id: str = "a") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def reasoning(text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content, "status": "completed"}


def said(text: str) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": parts}


def test_a_text_is_a_message_of_the_user() -> None:
    assert check_input("hi").messages == (ChatMessage("user", "hi"),)


def test_items_of_one_turn_are_one_message() -> None:
    found = check_input(
        [USER, reasoning("first"), said("look"), call(), call("g", '{"a": 1}', "b"), output(), output("dry", "b"), USER]
    ).messages
    calls = (ToolCall("a", "f", "{}"), ToolCall("b", "g", '{"a": 1}'))
    assert found == (
        ChatMessage("user", "hi"),
        ChatMessage("assistant", "look", tool_calls=calls, reasoning="first"),
        ChatMessage("tool", "sunny", tool_call_id="a"),
        ChatMessage("tool", "dry", tool_call_id="b"),
        ChatMessage("user", "hi"),
    )


def test_turns_that_follow_each_other_stay_apart() -> None:
    found = check_input([reasoning("a"), reasoning("b"), call(), said("x"), said("y"), reasoning("c")]).messages
    assert found == (
        ChatMessage("assistant", "", tool_calls=(ToolCall("a", "f", "{}"),), reasoning="ab"),
        ChatMessage("assistant", "x"),
        ChatMessage("assistant", "y"),
        ChatMessage("assistant", "", reasoning="c"),
    )


def test_all_kinds_of_text_parts_are_read() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b"},
        {"type": "text", "text": "c"},
        {"type": "refusal", "refusal": "d"},
    ]
    [message] = check_input([{"type": "message", "role": "developer", "content": parts}]).messages
    assert message == ChatMessage("system", "abcd")
    assert check_input([output([{"type": "input_text", "text": "e"}])]).messages[0].content == "e"


def test_a_summary_stands_where_the_reasoning_is_not_given() -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "x"}
    assert check_input([item]).messages[0].reasoning == "s"


def test_instructions_and_system_messages_at_the_beginning_are_one() -> None:
    found = with_instructions("Be brief.", check_input([{"role": "developer", "content": "No lists."}, USER]).messages)
    assert found == (ChatMessage("system", "Be brief.\n\nNo lists."), ChatMessage("user", "hi"))
    later = check_input([USER, {"role": "system", "content": "s"}]).messages
    assert with_instructions("", later) == later


PART = {"type": "input_text", "text": "x"}
NOTES = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}
PDF = {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERg=="}
DEEP = "[" * 70 + "]" * 70


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "input"),
        ([], "input"),
        (5, "input"),
        ({"role": "user"}, "input"),
        ([USER] * (MAX_MESSAGES + 1), "input"),
        ([{"role": "user", "content": [{}] * 200}] * (MAX_ALL_CONTENT_PARTS // 200 + 1), "input"),
        ([5], "input[0]"),
        ([{"content": "x"}], "input[0].type"),
        ([{"role": "robot", "content": "x"}], "input[0].role"),
        ([{"role": ["user"], "content": "x"}], "input[0].role"),
        ([USER, {"role": "user"}], "input[1].content"),
        ([{"role": "user", "content": [5]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * (MAX_CONTENT_PARTS + 1)}],
            "input[0].content",
        ),
        ([call(name="a" * 1025)], "input[0].name"),
        ([call(name=None)], "input[0].name"),
        ([call(arguments={})], "input[0].arguments"),  # type: ignore[arg-type]
        ([call(arguments=DEEP)], "input[0].arguments"),
        ([call(call_id="")], "input[0].call_id"),
        ([call(call_id="x" * 300)], "input[0].call_id"),
        ([output(5)], "input[0].output"),
        ([{"type": "reasoning", "content": "x"}], "input[0].content"),
    ],
)
def test_what_is_malformed_is_named(given: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_input(given)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "user", "content": [{"type": "input_image", "image_url": "https://x"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}, "input[0].content[0].file_id"),
        ({"role": "user", "content": [{**PDF, "file_url": "https://x"}]}, "input[0].content[0].file_url"),
        ({"role": "user", "content": [PDF]}, "input[0].content[0].file_data"),
        ({"type": "reasoning", "content": [NOTES]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "input[0].content[0].type"),
        (output([{"type": "input_audio", "data": "x"}]), "input[0].output[0].type"),
        ({"type": "item_reference", "id": "msg_1"}, "input[0].type"),
        ({"type": "web_search_call", "id": "ws_1"}, "input[0].type"),
        ({"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}, "input[0].encrypted_content"),
    ],
)
def test_what_is_not_there_is_refused_by_its_place(item: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_input([item])
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


def test_a_note_stands_for_an_image_that_a_function_has_made() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    given = [USER, call(), output([{"type": "input_text", "text": "look: "}, image])]
    [_, _, result] = check_input(given).messages
    assert result.content == "look: [image left out: this model reads text alone]"
    assert check_input(given).ignored == ("function_call_output.input_image",)
    assert check_input([USER, call(), output()]).ignored == check_input("hi").ignored == ()


def test_files_of_text_are_read() -> None:
    shown = "\n[document: a.txt]\nhi\n[end of document]\n"
    given = [{"role": "user", "content": [PART, NOTES]}, call(), output([PART, NOTES]), output([PDF])]
    asked, _, *results = check_input(given).messages
    assert asked.content == results[0].content == "x" + shown
    assert results[1].content == "[file left out: this model reads text alone]"
    assert check_input(given).ignored == ("function_call_output.input_file",)
    assert check_input(given[:3]).ignored == ()


def test_a_file_of_a_function_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = list[str]()

    def counted(value: Any, param: str) -> str:
        reads.append(param)
        return read_file(value, param)

    monkeypatch.setattr(items, "read_file", counted)
    check_input([call(), output([NOTES]), output([PDF])])
    assert len(reads) == 2


def test_marks_stand_where_their_parts_end() -> None:
    hour, day = {"mode": "explicit"}, {"mode": "explicit", "ttl": "12h"}
    marked = {"type": "input_text", "text": "abc", "prompt_cache_breakpoint": hour}
    later = {"type": "input_text", "text": "de", "prompt_cache_breakpoint": day}
    system = {"role": "developer", "content": [marked]}
    user, result = {"role": "user", "content": [later, marked]}, output([marked, PART])
    first, asked, _, told = with_instructions("Be brief.", check_input([system, user, call(), result]).messages)
    assert [(mark.end, mark.ttl_s) for mark in first.marks] == [(len("Be brief.\n\nabc"), TTL_1H_S)]
    assert [(mark.end, mark.ttl_s) for mark in asked.marks] == [(2, TTL_24H_S), (5, TTL_1H_S)]
    assert [mark.end for mark in told.marks] == [3]
    with pytest.raises(BadRequest) as caught:
        check_input([{"role": "user", "content": [{**marked, "prompt_cache_breakpoint": {"mode": "implicit"}}]}])
    assert caught.value.param == "input[0].content[0].prompt_cache_breakpoint.mode"


def test_a_call_of_a_namespace_has_the_name_that_the_model_is_told() -> None:
    [message] = check_input([{**call("close"), "namespace": "agents"}]).messages
    assert message.tool_calls == (ToolCall("a", "agents__close", "{}"),)
    with pytest.raises(BadRequest) as caught:
        check_input([{**call("close"), "namespace": "a b"}])
    assert caught.value.param == "input[0].namespace"
