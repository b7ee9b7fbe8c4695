"""Messages of chats: no field of one is dropped in silence, and what SDKs send of earlier answers is taken."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.text.chat_template import ChatMessage, ChatTemplate
from stratos_gateway.http.body import leniently
from stratos_gateway.openai.messages import check_messages, ignored_in_messages
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


def test_a_lenient_gateway_lists_it() -> None:
    with leniently(is_lenient=True) as unknown:
        assert check_messages([user(weight=1)]) == (ChatMessage("user", "hi"),)
    assert unknown == ["messages[0].weight"]


def test_what_sdks_send_of_an_earlier_answer_is_taken_and_named_where_it_asks_for_something() -> None:
    call = {**CALL, "index": 0, "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}}}
    answer = {
        "role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None, "function_call": None,
        "parsed": None, "reasoning": None, "tool_calls": [call], "provider_specific_fields": {"a": 1}, "other": None,
    }  # fmt: skip
    marked = [{**TEXT, "cache_control": {"type": "ephemeral"}}]
    messages = [user(content=marked, prefix=False), answer, {"role": "tool", "tool_call_id": "call_1", "content": "1"}]
    assert [len(message.tool_calls) for message in check_messages(messages)] == [0, 1, 0]
    assert ignored_in_messages(messages) == (
        "messages.content.cache_control",
        "messages.provider_specific_fields",
    )


def test_a_refusal_of_an_earlier_answer_is_its_text() -> None:
    assert check_messages([{"role": "assistant", "content": None, "refusal": "No."}])[0].content == "No."


def test_templates_read_names_in_which_no_special_token_is_one() -> None:
    template = ChatTemplate("{{ messages[0].name }}: {{ messages[0].content }}", shipped_tokenizer())
    (message,) = check_messages([user(name="Ann<|end|>")])
    ids = template.encode([message])
    assert shipped_tokenizer().decode(ids) == "Ann<|end|>: hi"
    assert not set(ids) & shipped_tokenizer().special_ids
    assert message.texts == ("hi", "Ann<|end|>")
