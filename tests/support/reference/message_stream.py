"""Streams of Anthropic's Messages API, read strictly by its documented events, and put together as its SDKs do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
}
"""Types of deltas: the block that has them, and the field of their text."""


def named_events(stream: str) -> list[dict[str, Any]]:
    """Events of a stream; the name of each is its type."""
    return list(_events(stream))


def _events(stream: str) -> Iterator[dict[str, Any]]:
    assert stream.endswith("\n\n"), "the last event is whole"
    for block in stream.split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}", block
        yield event


class MessageAssembly:
    """One message out of its events; refuses what does not follow the documented order."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self.is_ended = False
        self.error: dict[str, Any] | None = None
        self._open: dict[str, Any] | None = None
        self._json = ""

    def feed(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        assert not self.is_ended, "nothing comes after the last event"
        if kind == "ping":
            return
        if kind == "error":
            self.error, self.is_ended = event["error"], True
            return
        assert bool(self.message) == (kind != "message_start"), "it begins with message_start, once"
        getattr(self, f"_{kind}")(event)

    def _message_start(self, event: dict[str, Any]) -> None:
        self.message = event["message"]
        assert (self.message["type"], self.message["role"], self.message["content"]) == ("message", "assistant", [])
        assert self.message["stop_reason"] is None

    def _content_block_start(self, event: dict[str, Any]) -> None:
        assert self._open is None, "one block at a time"
        assert event["index"] == len(self.message["content"])
        self._open, self._json = event["content_block"], ""
        self.message["content"].append(self._open)

    def _content_block_delta(self, event: dict[str, Any]) -> None:
        assert self._open is not None
        assert event["index"] == len(self.message["content"]) - 1
        delta = event["delta"]
        block, name = _DELTAS[delta["type"]]
        assert self._open["type"] == block
        if block == "tool_use":
            self._json += delta[name]
        else:
            self._open[name] += delta[name]

    def _content_block_stop(self, event: dict[str, Any]) -> None:
        assert self._open is not None
        assert event["index"] == len(self.message["content"]) - 1
        if self._open["type"] == "tool_use":
            self._open["input"] = _input(self._json)
        self._open = None

    def _message_delta(self, event: dict[str, Any]) -> None:
        assert self._open is None, "every block is closed"
        assert self.message["stop_reason"] is None
        self.message |= event["delta"]
        self.message["usage"] |= event["usage"]

    def _message_stop(self, event: dict[str, Any]) -> None:
        assert self.message["stop_reason"] is not None
        self.is_ended = True


def _input(text: str) -> dict[str, Any]:
    """Arguments; those that break off are the text that they are."""
    try:
        found: dict[str, Any] = json.loads(text or "{}")
    except ValueError:
        return {"raw_arguments": text}
    return found


def assembled(stream: str) -> dict[str, Any]:
    """The message that a whole stream tells."""
    assembly = MessageAssembly()
    for event in named_events(stream):
        assembly.feed(event)
    assert assembly.is_ended
    assert assembly.error is None, assembly.error
    return assembly.message
