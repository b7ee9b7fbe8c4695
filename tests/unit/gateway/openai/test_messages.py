"""Messages of chats: no field of one is dropped in silence, and what SDKs send of earlier answers is taken."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.text.chat_template import ChatMessage, ChatTemplate
from stratos_gateway.http.body import Leniently
from stratos_gateway.openai.fields import Fields
from stratos_gateway.openai.messages import check_messages, ignored_in_messages
from stratos_gateway.openai.requests import parse_chat
from stratos_gateway.overflow.request import external_request
from tests.support.reference.shipped_model import shipped_tokenizer

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TEXT = {"type": "text", "text": "hi"}


def user(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": "hi", **fields}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (user(weight=1), "messages[0].weight"),
        (user(prefix=True), "messages[0].prefix"),
        (user(reasoning_content="hm"), "messages[0].reasoning_content"),
        (user(tool_call_id="call_1"), "messages[0].tool_call_id"),
        (user(name="n" * 65), "messages[0].name"),
        (user(images=["aGk="]), "messages[0].images"),
        ({"role": "assistant", "content": "", "partial": True}, "messages[0].partial"),
        (user(content=[{**TEXT, "detail": "high"}]), "messages[0].content[0].detail"),
        ({"role": "assistant", "tool_calls": [{**CALL, "caller": "x"}]}, "messages[0].tool_calls[0].caller"),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "function": {**CALL["function"], "strict": True}}]},  # type: ignore[dict-item]
            "messages[0].tool_calls[0].function.strict",
        ),
    ],
)
def test_a_field_that_is_not_known_is_refused_by_its_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_messages([message])
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("field", "value"), [("weight", 1), ("prefix", True), ("name", 5), ("name", "n" * 65), ("images", ["aGk="])]
)
def test_a_lenient_gateway_and_one_that_reads_a_record_list_it(field: str, value: object) -> None:
    with Leniently(is_lenient=True) as unknown:
        assert check_messages([user(**{field: value})]) == (ChatMessage("user", "hi"),)
    assert unknown == [f"messages[0].{field}"]


def test_what_asks_for_nothing_is_left_out() -> None:
    function = {"name": "f", "arguments": "{}", "strict": False, "more": None}
    messages = [
        user(tool_call_id="", reasoning_content="", extras={}, images=[]),
        {"role": "assistant", "tool_calls": [{**CALL, "custom": None, "more": "", "function": function}]},
    ]
    assert [len(message.tool_calls) for message in check_messages(messages)] == [0, 1]
    assert ignored_in_messages(messages) == ()


def test_what_clients_note_for_themselves_is_taken_and_named() -> None:
    noted = {"provider_specific_fields": {"thought_signature": "x"}, "cache_control": {"type": "ephemeral"}}
    call = {**CALL, **noted, "index": 1, "extra_content": {"a": 1}, "function": {**CALL["function"], **noted}}  # type: ignore[dict-item]
    messages = [
        user(content=[{**TEXT, "id": "lc_1", "index": 1, "extras": {"a": 1}}]),
        {"role": "assistant", "tool_calls": [call], "images": ["aGk="], "reasoning_details": [{"data": "x"}]},
    ]
    assert [message.content for message in check_messages(messages)] == ["hi", ""]
    assert set(ignored_in_messages(messages)) == {
        "messages.images",
        "messages.reasoning_details",
        *(f"messages.content.{name}" for name in ("extras", "id", "index")),
        *(f"messages.tool_calls.{name}" for name in ("extra_content", "index", *noted)),
        *(f"messages.tool_calls.function.{name}" for name in noted),
    }


def test_what_sdks_send_of_an_earlier_answer_is_taken_and_named_where_it_asks_for_something() -> None:
    call = {**CALL, "index": 0, "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}}}
    answer = {
        "role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None, "function_call": None,
        "parsed": None, "reasoning": None, "tool_calls": [call], "provider_specific_fields": {"a": 1}, "other": None,
    }  # fmt: skip
    marked = [{**TEXT, "cache_control": {"type": "ephemeral"}}]
    messages = [user(content=marked, prefix=False), answer, {"role": "tool", "tool_call_id": "call_1", "content": "1"}]
    assert [len(message.tool_calls) for message in check_messages(messages)] == [0, 1, 0]
    assert ignored_in_messages(messages) == ("messages.provider_specific_fields",)


@pytest.mark.parametrize("content", [None, ""])
def test_a_refusal_of_an_earlier_answer_is_its_text(content: str | None) -> None:
    assert check_messages([{"role": "assistant", "content": content, "refusal": "No."}])[0].content == "No."


def test_a_recorded_mark_of_caching_that_is_none_is_listed() -> None:
    with Leniently(is_lenient=True) as unknown:
        assert Fields({"cache_control": {"type": "forever"}}, "system[0].").take_ttl("cache_control") is None
    assert unknown == ["system[0].cache_control.type"]


def test_others_serve_a_chat_with_a_name_but_none_whose_reasoning_is_to_be_hidden() -> None:
    body = {"model": "m", "messages": [user(name="Ann")]}
    external = external_request(parse_chat(body, 100))
    assert external is not None
    assert external.body["messages"] == [user(name="Ann")]
    assert external_request(parse_chat({**body, "include_reasoning": False}, 100)) is None


def test_a_file_of_text_is_read_in_its_place() -> None:
    file = {"filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}
    [message] = check_messages([user(content=[TEXT, {"type": "file", "file": file}, TEXT])])
    assert message.content == "hi\n[document: a.txt]\nhi\n[end of document]\nhi"


@pytest.mark.parametrize(
    ("file", "param"),
    [
        (None, "file"),
        ({"file_id": "file-1"}, "file.file_id"),
        ({"file_data": "data:application/pdf;base64,JVBERg=="}, "file.file_data"),
        ({"file_data": "data:text/plain;base64,aGk=", "filename": "a\nb"}, "file.filename"),
        ({"file_data": "data:text/plain;base64,aGk=", "more": 1}, "file.more"),
    ],
)
def test_other_files_are_refused_by_their_place(file: object, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_messages([user(content=[{"type": "file", "file": file}])])
    assert caught.value.param == f"messages[0].content[0].{param}"


def test_templates_read_names_in_which_no_special_token_is_one() -> None:
    template = ChatTemplate("{{ messages[0].name }}: {{ messages[0].content }}", shipped_tokenizer())
    (message,) = check_messages([user(name="Ann<|end|>")])
    ids = template.encode([message])
    assert shipped_tokenizer().decode(ids) == "Ann<|end|>: hi"
    assert not set(ids) & shipped_tokenizer().special_ids
    assert message.texts == ("hi", "Ann<|end|>")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (r'{"a": "\ud800"}', '{"a": "\ufffd"}'),
        (r'{"\udc00": 1}', '{"\ufffd": 1}'),
        (r'{"a":  "\ud83d\ude00"}', r'{"a":  "\ud83d\ude00"}'),
        (r'{"a": "\\ud800"}', r'{"a": "\\ud800"}'),
        (r'{"a": "\ud800', r'{"a": "\ud800'),
    ],
)
def test_half_a_character_in_arguments_is_one_that_a_template_can_write(given: str, told: str) -> None:
    call = {**CALL, "function": {"name": "f", "arguments": given}}
    [_, message] = check_messages([user(), {"role": "assistant", "tool_calls": [call]}])
    assert message.tool_calls[0].arguments == told
    source = "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"
    assert ChatTemplate(source, shipped_tokenizer()).encode([message])


@pytest.mark.parametrize("name", ["functions.get_weather", "get weather", ""])
def test_a_call_of_what_no_function_can_be_named_comes_back(name: str) -> None:
    call = {**CALL, "function": {"name": name, "arguments": '{"a": "b"}'}}
    [message] = check_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message.tool_calls[0].name == name
    assert [text for text in message.texts if text] == [*filter(None, [name]), "a", "b"]


def test_the_name_of_a_function_is_no_text_of_its_call() -> None:
    [message] = check_messages([{"role": "assistant", "content": "", "tool_calls": [CALL]}])
    assert message.texts == ("",)
