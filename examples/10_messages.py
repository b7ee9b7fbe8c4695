"""Anthropic's Messages API over plain HTTP: text, a stream of events, a tool call, tokens counted beforehand."""

import json
import os

import httpx

headers = {"x-api-key": os.environ["API_KEY"], "anthropic-version": "2023-06-01"}
base_url = os.environ["BASE_URL"].rstrip("/").removesuffix("/v1")
client = httpx.Client(base_url=base_url, headers=headers, timeout=120)
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
question = {
    "model": "base",
    "system": "Answer briefly.",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "How is the weather in Paris?"}]}],
}


def post(path: str, **more: object) -> httpx.Response:
    """A question with further fields."""
    answer = client.post(path, json={**question, **more})
    answer.raise_for_status()
    return answer


counted = post("/v1/messages/count_tokens").json()["input_tokens"]
message = post("/v1/messages", max_tokens=24, temperature=0).json()
assert (message["type"], message["role"], message["stop_reason"]) == ("message", "assistant", "max_tokens")
usage = message["usage"]
assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted
assert usage["output_tokens"] == 24
[block] = message["content"]
print(repr(block["text"]))

stream = post("/v1/messages", max_tokens=24, temperature=0, stream=True).text
events = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]
kinds = [event["type"] for event in events]
assert (kinds[0], kinds[1], kinds[-2:]) == ("message_start", "content_block_start", ["message_delta", "message_stop"])
assert "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta") == block["text"]
print(kinds)

named = {"type": "tool", "name": "get_weather"}
call = post("/v1/messages", max_tokens=200, temperature=0, tools=[tool], tool_choice=named).json()
[use] = call["content"]
assert (call["stop_reason"], use["type"], use["name"]) == ("tool_use", "tool_use", "get_weather")
assert use["input"]["city"] in ("Paris", "Bern")
result = {"type": "tool_result", "tool_use_id": use["id"], "content": "sunny, 20 degrees"}
turns = [{"role": "assistant", "content": call["content"]}, {"role": "user", "content": [result]}]
messages = [*question["messages"], *turns]
answer = post("/v1/messages", max_tokens=24, tools=[tool], tool_choice={"type": "none"}, messages=messages).json()
assert answer["stop_reason"] in ("end_turn", "max_tokens")
print(use["input"], answer["usage"])

error = client.post("/v1/messages", json={**question, "mesages": []})
assert (error.status_code, error.json()["error"]["type"]) == (400, "invalid_request_error")
