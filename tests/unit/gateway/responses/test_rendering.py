"""Golden sequences of a response's stream, and the same response whole; both read strictly by OpenAI's own types."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from stratos.common.errors import BadRequest, Overloaded
from stratos.core.requests.grammar import GrammarSpec
from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos.text.chat_template import ChatTemplate
from stratos.text.output.chat_format import chat_format
from stratos_gateway.answering.request import PreparedGeneration
from stratos_gateway.models.grammar_check import GrammarCheck
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.preparation.dialects import RESPONSE
from stratos_gateway.preparation.generation import GenerationPreparer
from tests.support.reference.shipped_model import preparation_tools, served_model

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
THINKING = PLAIN + "{{ '<think>\\n' }}{# </think> #}"
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
STRICT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CREATED = ["response.created", "response.in_progress"]


def message(num_deltas: int = 1) -> list[str]:
    deltas = ["response.output_text.delta"] * num_deltas
    return [*added(), *deltas, "response.output_text.done", *done()]


def thought(num_deltas: int = 1) -> list[str]:
    deltas = ["response.reasoning_text.delta"] * num_deltas
    return [*added(), *deltas, "response.reasoning_text.done", *done()]


def called(num_deltas: int) -> list[str]:
    deltas = ["response.function_call_arguments.delta"] * num_deltas
    ends = ["response.function_call_arguments.done", "response.output_item.done"]
    return ["response.output_item.added", *deltas, *ends]


def added() -> list[str]:
    return ["response.output_item.added", "response.content_part.added"]


def done() -> list[str]:
    return ["response.content_part.done", "response.output_item.done"]


class AnyGrammar:
    """Starts no process to try one."""

    async def check(self, spec: GrammarSpec, param: str, tenant: str) -> None: ...


async def prepared(template: str = PLAIN, **body: Any) -> PreparedGeneration:
    shipped = served_model()
    template_of = ChatTemplate(template, shipped.tokenizer)
    grammars = cast("GrammarCheck", AnyGrammar())
    model = replace(shipped, template=template_of, chat=chat_format(template), grammars=grammars)
    tools = preparation_tools(model, wall_clock=lambda: 1234.5)
    fields = {"model": "base", "input": "hi", **body}
    return await GenerationPreparer(tools, RESPONSE).prepare(fields, Tenant(name="t"), NO_TRACE)


def pieces(*texts: str, reason: str = "stop") -> list[ChoiceChunk]:
    last = len(texts) - 1
    return [ChoiceChunk(0, t, [7], [], reason if i == last else None, i == 0) for i, t in enumerate(texts)]


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """Events; each is read by the SDK's types, and numbered by its place."""
    found = []
    for block in stream.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        STRICT.validate_python(event)
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


async def streamed(chunks: list[ChoiceChunk], template: str = PLAIN, **body: Any) -> list[dict[str, Any]]:
    """Events of a stream, whose response is checked against the whole answer of the same output."""
    renderer = (await prepared(template, **body)).renderer
    stream = b"".join(renderer.stream_part([chunk]) for chunk in chunks) + renderer.stream_end(Usage(3, 5, 2))
    events = events_of(stream)
    other = (await prepared(template, **body)).renderer
    text = "".join(chunk.text for chunk in chunks)
    merged = ChoiceChunk(0, text, [7] * len(chunks), [], chunks[-1].finish_reason, True)
    whole = other.body([merged], Usage(3, 5, 2))
    Response.model_validate(whole)
    shown = events[-1]["response"]
    assert without_ids({**whole, "usage": None}) == without_ids({**shown, "usage": None})
    return events


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    items = [{**item, "id": "", "call_id": ""} for item in response["output"]]
    return {**response, "id": "", "output": items}


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


async def test_a_text() -> None:
    events = await streamed(pieces("he", "", "llo"))
    assert types(events) == [*CREATED, *message(2), "response.completed"]
    response = events[-1]["response"]
    [item] = response["output"]
    assert (item["content"][0]["text"], item["status"], response["status"]) == ("hello", "completed", "completed")
    assert (response["created_at"], response["completed_at"]) == (1234, 1234)
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 8,
    }
    assert {event.get("item_id", item["id"]) for event in events} == {item["id"]}


async def test_an_answer_without_a_text_is_an_empty_message() -> None:
    events = await streamed(pieces(""))
    assert types(events) == [*CREATED, *message(0), "response.completed"]


@pytest.mark.parametrize(("reason", "told"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_an_answer_that_was_cut_short_is_incomplete(reason: str, told: str) -> None:
    events = await streamed(pieces("he", reason=reason))
    assert types(events) == [*CREATED, *message(), "response.incomplete"]
    response = events[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": told})
    assert (response["output"][0]["status"], response["completed_at"]) == ("incomplete", None)


async def test_reasoning_comes_before_the_message() -> None:
    events = await streamed(pieces("so", " it", " is</think>\n", "yes"), THINKING)
    assert types(events) == [*CREATED, *thought(3), *message(), "response.completed"]
    thinking, said = events[-1]["response"]["output"]
    assert (thinking["content"], thinking["summary"]) == ([{"type": "reasoning_text", "text": "so it is"}], [])
    assert said["content"][0]["text"] == "yes"
    assert [event["output_index"] for event in events if "output_index" in event] == [0] * 8 + [1] * 6
    assert 0 < events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] < 5


async def test_calls_come_as_items_of_their_own() -> None:
    events = await streamed(pieces("look\n", CALL[:40], CALL[40:], f"\n{CALL}"), tools=TOOLS)
    assert types(events) == [*CREATED, *message(), *called(2), *called(1), "response.completed"]
    said, one, two = events[-1]["response"]["output"]
    assert said["content"][0]["text"] == "look"
    assert (one["name"], one["arguments"], one["status"]) == ("f", '{"a": 1}', "completed")
    assert len({one["call_id"], two["call_id"], one["id"], two["id"]}) == 4


async def test_a_call_that_was_cut_short_is_incomplete() -> None:
    events = await streamed(pieces(CALL[:40], reason="length"), tools=TOOLS)
    assert types(events) == [*CREATED, *called(1), "response.incomplete"]
    [item] = events[-1]["response"]["output"]
    assert item["status"] == "incomplete"
    assert CALL[:40].endswith(item["arguments"])


async def test_a_stream_that_fails_ends_with_what_it_had() -> None:
    renderer = (await prepared()).renderer
    stream = renderer.stream_part(pieces("he", "llo")[:1]) + renderer.stream_failure(Overloaded("secret"))
    events = events_of(stream)
    begun = [*added(), "response.output_text.delta"]
    assert types(events) == [*CREATED, *begun, "error", "response.failed"]
    error, failed = events[-2], events[-1]["response"]
    assert (error["code"], "secret" in error["message"]) == ("overloaded", False)
    assert failed["error"] == {"code": "server_error", "message": error["message"]}
    assert (failed["status"], failed["output"][0]["content"][0]["text"]) == ("failed", "he")


async def test_a_stream_that_fails_before_its_first_token_has_a_beginning_and_an_end() -> None:
    events = events_of((await prepared()).renderer.stream_failure(Overloaded()))
    assert types(events) == [*CREATED, "error", "response.failed"]


async def test_fields_of_the_request_are_repeated_as_they_were_understood() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    found = await prepared(
        instructions="Be brief.", temperature=0.5, max_output_tokens=9, metadata={"a": "b"}, user="u", text=text,
        tools=TOOLS, tool_choice={"type": "function", "name": "f"}, parallel_tool_calls=False, store=False,
    )  # fmt: skip
    body = found.renderer.body(pieces("x"), Usage(1, 1))
    Response.model_validate(body)
    expected = {
        "instructions": "Be brief.", "temperature": 0.5, "top_p": 1.0, "max_output_tokens": 9, "metadata": {"a": "b"},
        "user": "u", "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": False, "store": False,
        "text": {**text, "verbosity": "medium"}, "previous_response_id": None, "truncation": "disabled",
        "service_tier": "default", "error": None, "incomplete_details": None, "background": False,
    }  # fmt: skip
    assert {name: body[name] for name in expected} == expected
    assert body["tools"] == [{**TOOLS[0], "description": None, "strict": False}]


async def test_log_probabilities_are_refused_where_tokens_are_not_all_of_the_text() -> None:
    with pytest.raises(BadRequest) as caught:
        await prepared(include=["message.output_text.logprobs"], tools=TOOLS)
    assert caught.value.param == "include"


async def test_effort_reaches_a_template_that_knows_it_and_is_repeated() -> None:
    found = await prepared("{{ reasoning_effort }}" + PLAIN, reasoning={"effort": "low"})
    prompt = served_model().tokenizer.decode(found.specs[0].prompt_ids, skip_special=False)
    assert prompt == "lowhi"
    assert found.renderer.body(pieces("x"), Usage(1, 1))["reasoning"] == {"effort": "low", "summary": None}
    with pytest.raises(BadRequest) as caught:
        await prepared(reasoning={"effort": "low"})
    assert caught.value.param == "reasoning.effort"
