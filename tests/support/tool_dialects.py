"""One conversation with functions in each dialect of the API, whole and streamed, by plain HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

Json = dict[str, Any]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SUM = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
FUNCTIONS = (("get_weather", "Weather of a city", CITY), ("calculate", "Evaluate an expression", SUM))
MAX_TOKENS = 160


@dataclass
class Answer:
    """What one answer says."""

    text: str = ""
    calls: list[tuple[str, Json]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    items: list[Json] = field(default_factory=list)
    """As the next request of the conversation repeats it."""


@dataclass
class Dialect:
    """How a route has calls.

    Args:
        path: of the route.
        body: everything of a request but the conversation.
        items: field of the conversation.
        joined: the whole answer of a stream's events.
        read: what an answer says.
        result: an item for the result of a call.
    """

    path: str
    body: Json
    items: str
    joined: Callable[[Iterator[Json]], Json]
    read: Callable[[Json], Answer]
    result: Callable[[str, str], Json]

    def conversation(self, http: httpx.Client, *, is_streamed: bool) -> Conversation:
        """A new one."""
        return Conversation(self, http, is_streamed)


@dataclass
class Conversation:
    """What was said so far."""

    dialect: Dialect
    http: httpx.Client
    is_streamed: bool
    items: list[Json] = field(default_factory=list)
    last: Answer = field(default_factory=Answer)

    def say(self, text: str) -> None:
        """A message of the user."""
        self.items.append({"role": "user", "content": text})

    def give(self, result: str) -> None:
        """The result of the last answer's one call."""
        [call_id] = self.last.ids
        self.items.append(self.dialect.result(call_id, result))

    def ask(self) -> Answer:
        """The next answer."""
        dialect = self.dialect
        body = {"model": "tools", "temperature": 0, **dialect.body, dialect.items: self.items}
        answer = self.http.post(dialect.path, json={**body, "stream": self.is_streamed})
        assert answer.status_code == 200, answer.text
        whole = dialect.joined(_events(answer.text)) if self.is_streamed else answer.json()
        self.last = dialect.read(whole)
        self.items += self.last.items
        return self.last


def _events(text: str) -> Iterator[Json]:
    for line in text.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def _read_chat(whole: Json) -> Answer:
    message = whole["choices"][0]["message"]
    calls = message.get("tool_calls") or []
    assert (whole["choices"][0]["finish_reason"] == "tool_calls") == bool(calls)
    return Answer(
        text=message["content"] or "",
        calls=[(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls],
        ids=[call["id"] for call in calls],
        items=[{key: message[key] for key in ("role", "content", "tool_calls") if message.get(key) is not None}],
    )


def _join_chat(events: Iterator[Json]) -> Json:
    text, calls, reason = "", list[Json](), None
    for event in events:
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            for piece in choice["delta"].get("tool_calls") or []:
                if piece["index"] == len(calls):
                    function = {"name": piece["function"]["name"], "arguments": ""}
                    calls.append({"id": piece["id"], "type": "function", "function": function})
                calls[piece["index"]]["function"]["arguments"] += piece["function"].get("arguments") or ""
            reason = choice["finish_reason"] or reason
    message = {"role": "assistant", "content": text or None, "tool_calls": calls or None}
    return {"choices": [{"message": message, "finish_reason": reason}]}


def _read_response(whole: Json) -> Answer:
    items = [item for item in whole["output"] if item["type"] != "reasoning"]
    calls = [item for item in items if item["type"] == "function_call"]
    texts = (part["text"] for item in items if item["type"] == "message" for part in item["content"])
    return Answer(
        text="".join(texts), calls=[(call["name"], json.loads(call["arguments"])) for call in calls],
        ids=[call["call_id"] for call in calls], items=items,
    )  # fmt: skip


def _join_response(events: Iterator[Json]) -> Json:
    whole, arguments = Json(), ""
    for event in events:
        if event["type"] == "response.function_call_arguments.delta":
            arguments += event["delta"]
        elif event["type"] == "response.completed":
            whole = event["response"]
    assert arguments == "".join(item["arguments"] for item in whole["output"] if item["type"] == "function_call")
    return whole


def _read_message(whole: Json) -> Answer:
    blocks = [block for block in whole["content"] if block["type"] in ("text", "tool_use")]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    assert (whole["stop_reason"] == "tool_use") == bool(calls)
    return Answer(
        text="".join(block["text"] for block in blocks if block["type"] == "text"),
        calls=[(call["name"], call["input"]) for call in calls], ids=[call["id"] for call in calls],
        items=[{"role": "assistant", "content": blocks}],
    )  # fmt: skip


def _join_message(events: Iterator[Json]) -> Json:
    blocks, inputs, reason = dict[int, Json](), dict[int, str](), None
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks[event["index"]] = event["content_block"]
            case "content_block_delta" if event["delta"]["type"] == "text_delta":
                blocks[event["index"]]["text"] += event["delta"]["text"]
            case "content_block_delta" if event["delta"]["type"] == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + event["delta"]["partial_json"]
            case "message_delta":
                reason = event["delta"]["stop_reason"]
    for index, text in inputs.items():
        blocks[index]["input"] = json.loads(text)
    return {"content": list(blocks.values()), "stop_reason": reason}


def _tool_result(call_id: str, result: str) -> Json:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": result}]}


_FLAT = [{"name": name, "description": about, "parameters": schema} for name, about, schema in FUNCTIONS]
DIALECTS = (
    Dialect(
        "/chat/completions",
        {"max_tokens": MAX_TOKENS, "tools": [{"type": "function", "function": function} for function in _FLAT]},
        "messages", _join_chat, _read_chat,
        lambda call_id, result: {"role": "tool", "tool_call_id": call_id, "content": result},
    ),
    Dialect(
        "/responses",
        {"max_output_tokens": MAX_TOKENS, "tools": [{"type": "function", **function} for function in _FLAT]},
        "input", _join_response, _read_response,
        lambda call_id, result: {"type": "function_call_output", "call_id": call_id, "output": result},
    ),
    Dialect(
        "/messages",
        {"max_tokens": MAX_TOKENS,
         "tools": [{"name": n, "description": about, "input_schema": schema} for n, about, schema in FUNCTIONS]},
        "messages", _join_message, _read_message, _tool_result,
    ),
)  # fmt: skip
