"""The Responses API: a text, typed events of a stream, a function call and its result, an answer that obeys a schema.

The shipped model was never trained to call functions, so its choice is made by the grammar of `tool_choice`.
"""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])
common = {"model": "base", "temperature": 0, "max_output_tokens": 60, "store": False}

response = client.responses.create(instructions="Be brief.", input="Once upon a time", **common)
assert response.status in ("completed", "incomplete")
assert response.output_text
assert response.usage.output_tokens <= 60
print(response.output_text)

types, text = [], ""
for event in client.responses.create(instructions="Be brief.", input="Once upon a time", stream=True, **common):
    assert event.sequence_number == len(types)
    types.append(event.type)
    if event.type == "response.output_text.delta":
        text += event.delta
assert text == response.output_text
assert types[:2] == ["response.created", "response.in_progress"]
assert types[-1] in ("response.completed", "response.incomplete")
print(len(types), "events")

schema = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Bern"]}},
    "required": ["city"],
    "additionalProperties": False,
}
tool = {"type": "function", "name": "get_weather", "parameters": schema, "strict": True}
question = {"role": "user", "content": "How is the weather in Paris?"}
first = client.responses.create(
    input=[question], tools=[tool], tool_choice={"type": "function", "name": "get_weather"}, **common
)
[call] = first.output
assert call.type == "function_call"
assert json.loads(call.arguments)["city"] in ("Paris", "Bern")
print(call.name, call.arguments)

result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 20 degrees"}
last = client.responses.create(input=[question, call, result], tools=[tool], tool_choice="none", **common)
assert last.output_text
print(last.output_text)

form = {"type": "json_schema", "name": "place", "schema": schema, "strict": True}
obeys = client.responses.create(input="A city?", text={"format": form}, **common)
assert json.loads(obeys.output_text)["city"] in ("Paris", "Bern")
print(obeys.output_text)
