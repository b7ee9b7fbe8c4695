"""Tool calls: the model decides to call, streamed fragments, the result given back; and calls that a schema enforces.

`tools` was trained to call functions, so it does by itself. `base` was not: the grammar of `tool_choice` makes it call.
"""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
weather = {"name": "get_weather", "description": "Weather of a city", "parameters": schema}
schema = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
calculate = {"name": "calculate", "description": "Evaluate an expression", "parameters": schema}
tools = [{"type": "function", "function": weather}, {"type": "function", "function": calculate}]
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
ask = {"model": "tools", "tools": tools, "temperature": 0, "max_tokens": 160}

answer = client.chat.completions.create(messages=messages, **ask)
[call] = answer.choices[0].message.tool_calls
assert answer.choices[0].finish_reason == "tool_calls"
assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
print(call.function.name, call.function.arguments)

name, fragments, reason = "", [], None
for chunk in client.chat.completions.create(messages=messages, stream=True, **ask):
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
told = client.chat.completions.create(messages=messages, **ask).choices[0].message
assert told.tool_calls is None
assert "20 degrees" in told.content
print(told.content)

days = {"type": "integer", "minimum": 1, "maximum": 7}
schema = {"type": "object", "properties": {"days": days}, "required": ["days"], "additionalProperties": False}
strict = {"name": "forecast", "description": "Weather of days", "parameters": schema, "strict": True}
named = {"type": "function", "function": {"name": "forecast"}}
forced = client.chat.completions.create(
    model="base",
    messages=messages[:1],
    tools=[{"type": "function", "function": strict}],
    tool_choice=named,
    temperature=0,
    max_tokens=100,
)
[call] = forced.choices[0].message.tool_calls
assert forced.choices[0].finish_reason == "stop"  # as OpenAI says it of a named function
assert 1 <= json.loads(call.function.arguments)["days"] <= 7
print(call.function.name, call.function.arguments)
