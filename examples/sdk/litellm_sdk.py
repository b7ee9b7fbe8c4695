"""LiteLLM against a running platform, in the forms of OpenAI and of Anthropic: chat, stream, tools, a schema, errors.

BASE_URL=http://127.0.0.1:8000/v1 API_KEY=sk-... python examples/sdk/litellm_sdk.py
"""

import json
import os
from typing import Literal

import litellm
from pydantic import BaseModel

key, base_url = os.environ["API_KEY"], os.environ["BASE_URL"]
question = [{"role": "user", "content": "How is the weather in Paris?"}]
schema = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Bern"]}},
    "required": ["city"],
    "additionalProperties": False,
}
function = {"name": "get_weather", "description": "Weather of a city", "parameters": schema}
calling = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
servers = (
    {"model": "hosted_vllm/base", "api_base": base_url},
    {"model": "openai/base", "api_base": base_url},
    {"model": "anthropic/base", "api_base": base_url.removesuffix("/v1")},
)


class City(BaseModel):
    """A schema that the answer obeys."""

    name: Literal["Paris", "Bern"]
    is_capital: bool


def ask(server: dict, messages: list = question, **more: object) -> object:
    """An answer, or its stream."""
    fixed = {"api_key": key, "temperature": 0, "max_tokens": 60, "num_retries": 2}
    return litellm.completion(messages=messages, **{**fixed, **server, **more})


for server in servers:
    answer = ask(server).choices[0].message.content
    assert answer
    assert "".join(chunk.choices[0].delta.content or "" for chunk in ask(server, stream=True)) == answer
    asked = ask(server, **calling).choices[0]
    assert asked.finish_reason == "tool_calls", asked
    call = asked.message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    assert (call.function.name, arguments["city"] in ("Paris", "Bern")) == ("get_weather", True), call
    chunks = list(ask(server, **calling, stream=True))
    again = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0]
    assert json.loads(again.function.arguments) == arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    final = ask(server, [*question, asked.message.model_dump(), result], tools=calling["tools"])
    assert final.choices[0].finish_reason
    if not server["model"].startswith("anthropic/"):
        city = City.model_validate_json(ask(server, response_format=City).choices[0].message.content)
        print(server["model"], city)

counted = litellm.responses(input="How is the weather in Paris?", max_output_tokens=20, api_key=key, **servers[1])
assert counted.status in ("completed", "incomplete"), counted

for change, kind in (
    ({"model": "hosted_vllm/gone"}, litellm.NotFoundError),
    ({"api_key": "sk-wrong"}, litellm.AuthenticationError),
    ({"max_tokens": 0}, litellm.BadRequestError),
):
    try:
        ask({**servers[0], **change}, num_retries=0)
    except kind as error:
        print(error.status_code)
    else:
        raise AssertionError(change)
