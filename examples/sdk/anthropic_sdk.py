"""Anthropic's own SDK against a running platform, in an environment of its own: `pip install anthropic`.

BASE_URL=http://127.0.0.1:8000 API_KEY=sk-... python examples/sdk/anthropic_sdk.py
"""

import os

import anthropic
from pydantic import BaseModel

client = anthropic.Anthropic(base_url=os.environ["BASE_URL"].removesuffix("/v1"), api_key=os.environ["API_KEY"])
tool = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Bern"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
question = {"model": "base", "messages": [{"role": "user", "content": "How is the weather in Paris?"}]}
greedy = {"extra_body": {"temperature": 0}}

counted = client.messages.count_tokens(**question).input_tokens
message = client.messages.create(**question, **greedy, max_tokens=24)
assert (message.type, message.role) == ("message", "assistant")
assert message.stop_reason in ("max_tokens", "end_turn")
assert message.usage.input_tokens + message.usage.cache_read_input_tokens == counted
assert message.usage.output_tokens <= 24
text = message.content[0].text
print(repr(text))

with client.messages.stream(**question, **greedy, max_tokens=24) as stream:
    assert "".join(stream.text_stream) == text
    final = stream.get_final_message()
assert (final.content[0].text, final.stop_reason) == (text, message.stop_reason)
assert final.usage.output_tokens == message.usage.output_tokens

named = {"type": "tool", "name": "get_weather"}
with client.messages.stream(**question, **greedy, max_tokens=200, tools=[tool], tool_choice=named) as stream:
    kinds = [event.type for event in stream]
    call = stream.get_final_message()
assert "input_json" in kinds, kinds
[use] = call.content
assert (call.stop_reason, use.type, use.name) == ("tool_use", "tool_use", "get_weather")
assert use.input["city"] in ("Paris", "Bern")
messages = [
    *question["messages"],
    {"role": "assistant", "content": call.content},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]},
]
answer = client.messages.create(
    model="base", messages=messages, max_tokens=24, tools=[tool], tool_choice={"type": "none"}, system="Be brief."
)
assert answer.stop_reason in ("end_turn", "max_tokens")
print(use.input, answer.usage)


class City(BaseModel):
    """A schema that the answer obeys."""

    name: str
    is_capital: bool


parsed = client.messages.parse(**question, **greedy, max_tokens=200, output_format=City)
assert isinstance(parsed.parsed_output, City) or parsed.stop_reason == "max_tokens", parsed
print(parsed.parsed_output)


def failure(**change: object) -> anthropic.APIStatusError:
    """The error that a changed question gets."""
    key = change.pop("api_key", os.environ["API_KEY"])
    try:
        client.with_options(api_key=key).messages.create(**{**question, "max_tokens": 9, **change})
    except anthropic.APIStatusError as error:
        return error
    raise AssertionError(change)


for change, kind in (
    ({"model": "gone"}, anthropic.NotFoundError),
    ({"messages": []}, anthropic.BadRequestError),
    ({"max_tokens": 0}, anthropic.BadRequestError),
    ({"api_key": "sk-wrong"}, anthropic.AuthenticationError),
):
    error = failure(**change)
    assert type(error) is kind, error
    assert (error.body["type"], error.body["request_id"]) == ("error", error.request_id)
    print(error.status_code, error.body["error"]["type"])
