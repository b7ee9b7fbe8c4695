"""/v1/responses through the official SDK and as plain HTTP: items in, items and events out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from stratos.core.tenancy.content import ContentPolicy, PromptMessage, PromptTemplate, PromptVersion
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import World, gateway_world, say

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Z\u00fcrich"}}\n</tool_call>'
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
STRICT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world() as made:
        yield made


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "base", "input": "How is the weather?", "max_output_tokens": 500, **more}


async def events_of(world: World, **more: Any) -> list[dict[str, Any]]:
    """Events of a stream as they are on the wire; each is read strictly by the SDK's types."""
    answer = await world.http.post("/v1/responses", json=ask(**more, stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.text.split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        STRICT.validate_python(event)
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


async def test_the_sdk_gets_a_text(world: World) -> None:
    response = await world.openai.responses.create(**ask(instructions="Be brief.", metadata={"a": "b"}))
    assert (response.output_text, response.status, response.error) == ("hello world", "completed", None)
    assert (response.instructions, response.metadata, response.model) == ("Be brief.", {"a": "b"}, "base")
    assert response.usage is not None
    assert response.usage.output_tokens == len(shipped_tokenizer().encode_plain("hello world")) + 1
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    prompt = shipped_tokenizer().decode(list(world.worker.submits[0].prompt_ids), skip_special=False)
    assert "Be brief." in prompt
    assert "How is the weather?" in prompt


async def test_a_response_has_all_fields_of_the_sdks_types(world: World) -> None:
    body = (await world.http.post("/v1/responses", json=ask())).json()
    Response.model_validate(body)
    needed = {name for name, field in Response.model_fields.items() if field.is_required()}
    assert needed <= set(body)


async def test_a_text_streams_event_by_event(world: World) -> None:
    events = await events_of(world)
    begin = ["created", "in_progress", "output_item.added", "content_part.added"]
    end = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    types = [event["type"].removeprefix("response.") for event in events]
    deltas = types[len(begin) : -len(end)]
    assert types == [*begin, *deltas, *end]
    assert set(deltas) == {"output_text.delta"}
    assert "".join(event["delta"] for event in events if "delta" in event) == "hello world"
    text = await world.openai.responses.create(**ask())
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text.output_text


async def test_the_sdks_stream_helper_follows(world: World) -> None:
    async with world.openai.responses.stream(**ask()) as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(texts) == final.output_text == "hello world"


async def test_a_call_and_its_result_make_a_conversation(world: World) -> None:
    world.worker.script = say(f"Let me look.\n{CALL}")
    first = await world.openai.responses.create(**ask(tools=[WEATHER]))
    said, call = first.output
    assert (said.type, call.type) == ("message", "function_call")
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Z\u00fcrich"})  # type: ignore[union-attr]
    world.worker.script = say("It is sunny.")
    items = [{"role": "user", "content": "How is the weather?"}, *(item.model_dump() for item in first.output)]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})  # type: ignore[union-attr]
    second = await world.openai.responses.create(**ask(input=items, tools=[WEATHER]))
    assert second.output_text == "It is sunny."
    prompt = shipped_tokenizer().decode(list(world.worker.submits[1].prompt_ids), skip_special=False)
    assert f"Let me look.\n{CALL}" in prompt
    assert "<tool_response>\nsunny\n</tool_response>" in prompt


async def test_calls_stream_by_fragments(world: World) -> None:
    world.worker.script = say(CALL)
    events = await events_of(world, tools=[WEATHER])
    deltas = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    [done] = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert len(deltas) > 1
    assert "".join(deltas) == done["arguments"] == events[-1]["response"]["output"][0]["arguments"]


async def test_a_call_of_a_namespace_tells_both_of_its_names(world: World) -> None:
    world.worker.script = say(CALL.replace("get_weather", "earth__get_weather"))
    earth = {"type": "namespace", "name": "earth", "description": "Of this planet.", "tools": [WEATHER]}
    more: dict[str, Any] = {"tools": [{"type": "web_search"}, earth], "client_metadata": {"turn": "1"}}
    events = await events_of(world, **more)
    [added] = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert (added["namespace"], added["name"]) == ("earth", "get_weather")
    [call] = events[-1]["response"]["output"]
    assert (call["namespace"], call["name"], call["arguments"]) == ("earth", "get_weather", '{"city": "Z\u00fcrich"}')
    assert [tool["type"] for tool in events[-1]["response"]["tools"]] == ["namespace"]
    answer = await world.http.post(
        "/v1/responses",
        json=ask(input=[call, {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}], **more),
    )
    assert answer.headers["x-stratos-ignored"] == "tools[0], client_metadata"
    prompt = shipped_tokenizer().decode(list(world.worker.submits[-1].prompt_ids), skip_special=False)
    assert '"name": "earth__get_weather", "description": "Of this planet.\\nWeather of a city"' in prompt
    assert '<tool_call>\n{"name": "earth__get_weather", "arguments": {"city": "Z\u00fcrich"}}' in prompt


async def test_required_calls_and_schemas_are_enforced_at_the_worker(world: World) -> None:
    world.worker.script = say(CALL)
    await world.openai.responses.create(**ask(tools=[WEATHER], tool_choice="required"))
    world.worker.script = say("{}")
    text = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}}
    await world.openai.responses.create(**ask(text=text))
    await world.openai.responses.create(**ask(text={"format": {"type": "json_object"}}))
    kinds = [submit.sampling.grammar.kind for submit in world.worker.submits]
    assert kinds == ["calls", "json_schema", "json_schema"]


class Weather(BaseModel):
    city: str
    days: int


async def test_the_sdks_parse_helper_reads_a_schema(world: World) -> None:
    world.worker.script = say('{"city": "Bern", "days": 3}')
    response = await world.openai.responses.parse(**ask(), text_format=Weather)
    assert response.output_parsed == Weather(city="Bern", days=3)


async def test_log_probabilities_come_with_the_text(world: World) -> None:
    more = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = await world.openai.responses.create(**ask(**more))
    [part] = whole.output[0].content  # type: ignore[union-attr]
    entries = part.logprobs or []  # type: ignore[union-attr]
    assert len(entries) == len(shipped_tokenizer().encode_plain("hello world")) + 1
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    events = await events_of(world, **more)
    told = [entry for event in events if event["type"] == "response.output_text.delta" for entry in event["logprobs"]]
    assert [entry["token"] for entry in told] == [entry.token for entry in entries]
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == told


async def test_an_answer_that_is_cut_short_is_incomplete(world: World) -> None:
    response = await world.openai.responses.create(**ask(max_output_tokens=1))
    assert (response.status, response.output[0].status) == ("incomplete", "incomplete")  # type: ignore[union-attr]
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize("num_tokens", [1, 3, 12])
async def test_a_worker_killed_in_the_middle_changes_nothing(num_tokens: int) -> None:
    async with gateway_world(2) as world:
        for worker in world.workers:
            worker.script = say(f"Look.\n{CALL}")
        world.worker.die_after = num_tokens
        events = await events_of(world, tools=[WEATHER])
        said, call = events[-1]["response"]["output"]
        assert (said["content"][0]["text"], call["arguments"]) == ("Look.", '{"city": "Z\u00fcrich"}')
        assert [len(worker.submits) for worker in world.workers] == [1, 1]


async def test_a_stream_that_fails_ends_with_a_terminal_event(world: World) -> None:
    world.worker.script, world.worker.step_s = say("hello world " * 60), 0.01
    async with world.http.stream("POST", "/v1/responses", json=ask(stream=True)) as answer:
        lines = answer.aiter_lines()
        async for line in lines:
            if "output_text.delta" in line:
                world.stop.set()
                world.force.set()
                break
        rest = [json.loads(line.removeprefix("data: ")) async for line in lines if line.startswith("data: ")]
    assert [event["type"] for event in rest[-2:]] == ["error", "response.failed"]
    assert (rest[-2]["code"], rest[-1]["response"]["status"]) == ("draining", "failed")


async def test_errors_before_the_first_byte_have_a_status(world: World) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await world.openai.responses.create(**ask(model="gone"))
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        await world.openai.responses.create(**ask(input="word " * 6000, stream=True))
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")


async def test_a_plans_bound_has_the_name_of_this_route(world: World) -> None:
    world.keys.change_plan(KEY, max_tokens=10)
    with pytest.raises(openai.BadRequestError) as refused:
        await world.openai.responses.create(**ask())
    assert refused.value.param == "max_output_tokens"


async def test_a_content_policy_reads_items_and_cuts_answers(world: World) -> None:
    world.content.policies["rules"] = ContentPolicy(words={"foul": ("bad stuff",)}, replacement="[cut]")
    world.keys.change_plan(KEY, content_policy="rules")
    item = {"type": "function_call_output", "call_id": "a", "output": "bad stuff"}
    with pytest.raises(openai.BadRequestError) as caught:
        await world.openai.responses.create(**ask(input=[item]))
    assert (caught.value.code, caught.value.param) == ("content_filter", "input")
    world.worker.script = say("some bad stuff here")
    response = await world.openai.responses.create(**ask())
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "content_filter"
    assert response.output_text.endswith("[cut]")


async def test_a_prompt_template_stands_before_the_input(world: World) -> None:
    version = PromptVersion(messages=(PromptMessage(role="system", text="You help with {{ product }}."),))
    world.content.templates["", "support"] = PromptTemplate(versions={1: version})
    prompt = {"id": "support", "variables": {"product": "boats"}}
    await world.openai.responses.create(**ask(prompt=prompt))
    told = shipped_tokenizer().decode(list(world.worker.submits[0].prompt_ids), skip_special=False)
    assert "You help with boats." in told
    assert "How is the weather?" in told
