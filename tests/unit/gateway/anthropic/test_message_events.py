"""Golden sequences of a Messages stream, and the whole message that says the same."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.common.errors import Overloaded
from stratos.core.requests.tools import ToolMode
from stratos.text.output.parser import OutputShape, ReasoningTags
from stratos.text.output.syntaxes.hermes import HERMES
from stratos_gateway.anthropic.rendering import MessageRenderer
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.rendering import Answer
from tests.support.examples import examples
from tests.support.reference.message_stream import assembled, named_events
from tests.support.reference.shipped_model import shipped_tokenizer

SHAPE = OutputShape(syntax=HERMES, reasoning=ReasoningTags("<think>", "</think>"))
ARGUMENTS = '{"city": "Z\u00fcrich", "n": 12345678901234567890123, "note": "\\"}{\\" \U0001f600"}'
TEXT = (
    "<think>\nso it is\n</think>\n\nLet me look."
    f'\n<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
    '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
USAGE = Usage(7, 20, 3)
COUNTS = {
    "input_tokens": 4,
    "cache_creation_input_tokens": 0,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    "cache_read_input_tokens": 3,
    "output_tokens": 20,
}


def renderer(shape: OutputShape | None = SHAPE) -> MessageRenderer:
    return MessageRenderer(
        Answer(
            id="msg-1", created=1, model="base", num_logprobs=None, num_prompt_logprobs=None, echoes_logprobs=False,
            return_token_ids=False, include_usage=False, prompts=[[5] * 7], num_choices=1, shape=shape,
            tool_mode=ToolMode.AUTO,
        ),
        shipped_tokenizer(),
    )  # fmt: skip


def chunks(*texts: str, reason: str = "stop", stop: str | None = None) -> list[ChoiceChunk]:
    last = len(texts) - 1
    return [
        ChoiceChunk(0, text, [9], [], reason if i == last else None, i == 0, stop=stop if i == last else None)
        for i, text in enumerate(texts)
    ]


def streamed(found: list[ChoiceChunk], shape: OutputShape | None = SHAPE) -> str:
    made = renderer(shape)
    return (b"".join(made.stream_part([chunk]) for chunk in found) + made.stream_end(USAGE)).decode()


def whole(found: list[ChoiceChunk], shape: OutputShape | None = SHAPE) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(orjson.dumps(renderer(shape).body(found, USAGE)))
    return parsed


def sequence(stream: str) -> list[tuple[Any, ...]]:
    """Events without what differs from run to run, ids of calls among it."""
    found: list[tuple[Any, ...]] = []
    for event in named_events(stream):
        match event["type"]:
            case "content_block_start":
                found.append(("start", event["index"], event["content_block"]["type"]))
            case "content_block_delta":
                kind, text = event["delta"]["type"], list(event["delta"].values())[1]
                found.append((kind, event["index"]) if kind == "signature_delta" else (kind, event["index"], text))
            case "content_block_stop":
                found.append(("stop", event["index"]))
            case "message_delta":
                found.append(("message_delta", event["delta"]["stop_reason"]))
            case kind:
                found.append((kind,))
    return found


def test_the_events_of_plain_text() -> None:
    events = named_events(streamed(chunks("Hel", "lo"), None))
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "base", "content": [], "stop_reason": None,
        "stop_sequence": None,
        "usage": {**COUNTS, "input_tokens": 7, "cache_read_input_tokens": 0, "output_tokens": 0},
    }  # fmt: skip
    assert events == [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": COUNTS},
        {"type": "message_stop"},
    ]


def test_the_events_of_thinking_text_and_calls() -> None:
    cut = TEXT.index(ARGUMENTS) + 4
    pieces = [TEXT[:15], TEXT[15:60], TEXT[60:cut], TEXT[cut:]]
    assert sequence(streamed(chunks(*pieces))) == [
        ("message_start",),
        ("start", 0, "thinking"),
        ("thinking_delta", 0, "so it i"),
        ("thinking_delta", 0, "s"),
        ("signature_delta", 0),
        ("stop", 0),
        ("start", 1, "text"),
        ("text_delta", 1, "Let me look."),
        ("stop", 1),
        ("start", 2, "tool_use"),
        ("input_json_delta", 2, ARGUMENTS[:4]),
        ("input_json_delta", 2, ARGUMENTS[4:]),
        ("stop", 2),
        ("start", 3, "tool_use"),
        ("input_json_delta", 3, "{}"),
        ("stop", 3),
        ("message_delta", "tool_use"),
        ("message_stop",),
    ]


def told(message: dict[str, Any]) -> dict[str, Any]:
    """A message but for its count of thinking, which is an estimate by text where tokens do not tell."""
    return {**message, "usage": {**message["usage"], "output_tokens_details": None}}


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, len(TEXT)), max_size=12))
def test_however_the_text_is_cut_the_message_is_the_same(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[begin:end] for begin, end in pairwise(places)]
    message = assembled(streamed(chunks(*pieces)))
    assert told(message) == told(whole(chunks(TEXT)))
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] in range(1, 20)
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert message["content"][2]["input"] == json.loads(ARGUMENTS)


def test_arguments_are_byte_for_byte_what_was_written() -> None:
    assert ARGUMENTS.encode() in orjson.dumps(renderer().body(chunks(TEXT), USAGE))


@pytest.mark.parametrize(
    ("text", "reason", "stop", "told"),
    [
        ("x", "stop", None, ("end_turn", None)),
        ("x", "length", None, ("max_tokens", None)),
        ("x", "stop", "END", ("stop_sequence", "END")),
        ("x", "content_filter", None, ("refusal", None)),
        (TEXT, "stop", None, ("tool_use", None)),
        (TEXT, "length", None, ("max_tokens", None)),
        (TEXT[:-20], "stop", None, ("end_turn", None)),
        ("", "stop", None, ("end_turn", None)),
    ],
)
def test_stop_reasons(text: str, reason: str, stop: str | None, told: tuple[str, str | None]) -> None:
    for message in (
        whole(chunks(text, reason=reason, stop=stop)),
        assembled(streamed(chunks(text, reason=reason, stop=stop))),
    ):
        assert (message["stop_reason"], message["stop_sequence"]) == told
        assert COUNTS.items() <= message["usage"].items()


def test_arguments_that_are_no_object_are_not_lost() -> None:
    broken = '<tool_call>\n{"name": "f", "arguments": {"a": 1'
    [block] = whole(chunks(broken, reason="length"))["content"]
    assert block["input"] == {"raw_arguments": '{"a": 1'}


def test_a_stream_that_fails_ends_with_the_error() -> None:
    made = renderer(None)
    begun = made.stream_part(chunks("a", "b")[:1])
    events = named_events((begun + made.stream_failure(Overloaded("full"))).decode())
    assert [event["type"] for event in events][-1] == "error"
    assert events[-1]["error"]["type"] == "overloaded_error"
    assert named_events(made.keep_alive.decode()) == [{"type": "ping"}]


def test_ids_of_calls_are_their_own_and_the_same_for_every_rendering() -> None:
    first, second = whole(chunks(TEXT))["content"], assembled(streamed(chunks(TEXT)))["content"]
    ids = [block["id"] for block in first if block["type"] == "tool_use"]
    assert ids == [block["id"] for block in second if block["type"] == "tool_use"]
    assert len(set(ids)) == 2
