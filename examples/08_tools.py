"""Tool calls: a named function, one that must be chosen, streamed fragments, and the result given back.

The shipped model was never trained to call functions, so its choice is made by the grammar of `tool_choice`.
"""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])
schema = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Bern"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
function = {"name": "get_weather", "description": "Weather of a city", "parameters": schema, "strict": True}
tools = [{"type": "function", "function": function}]
messages = [{"role": "user", "content": "How is the weather in Paris?"}]


def check(arguments: str) -> dict:
    """Arguments that obey the schema."""
    found = json.loads(arguments)
    assert found["city"] in ("Paris", "Bern"), found
    assert 1 <= found["days"] <= 7, found
    return found


named = {"type": "function", "function": {"name": "get_weather"}}
answer = client.chat.completions.create(
    model="base", messages=messages, tools=tools, tool_choice=named, temperature=0, max_tokens=200
)
[call] = answer.choices[0].message.tool_calls
assert answer.choices[0].finish_reason == "stop"  # as OpenAI says it of a named function
print(call.function.name, check(call.function.arguments))

stream = client.chat.completions.create(
    model="base",
    messages=messages,
    tools=tools,
    tool_choice="required",
    parallel_tool_calls=False,
    temperature=0,
    max_tokens=200,
    stream=True,
)
name, fragments, reason = "", [], None
for chunk in stream:
    choice = chunk.choices[0]
    for delta in choice.delta.tool_calls or []:
        name += delta.function.name or ""
        fragments.append(delta.function.arguments)
    reason = choice.finish_reason or reason
assert (name, reason) == ("get_weather", "tool_calls")
assert "".join(fragments) == call.function.arguments
print(fragments)

messages += [
    answer.choices[0].message.model_dump(include={"role", "content", "tool_calls"}),
    {"role": "tool", "tool_call_id": call.id, "content": "sunny, 20 degrees"},
]
last = client.chat.completions.create(
    model="base", messages=messages, tools=tools, tool_choice="none", temperature=0, max_tokens=30
)
assert last.choices[0].message.content
assert last.choices[0].message.tool_calls is None
print(last.choices[0].message.content)
