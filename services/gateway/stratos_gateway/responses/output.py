"""Output items of one response, put together from the events of its text; each step is told as an event of the stream.

    reasoning      output_item.added  content_part.added  reasoning_text.delta ...  .done  content_part.done  item.done
    message        output_item.added  content_part.added  output_text.delta ...     .done  content_part.done  item.done
    function_call  output_item.added  function_call_arguments.delta ...             .done                     item.done

One item is open at a time.  A whole answer is made by the same steps, so it has the items of its stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratos.text.output.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
)

Event = dict[str, Any]
"""Event of the stream, without its number."""
Logprobs = list[dict[str, Any]]
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


@dataclass(slots=True)
class _OpenItem:
    """The item that is being written."""

    kind: str
    body: dict[str, Any]
    texts: list[str] = field(default_factory=list)
    logprobs: Logprobs = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)


class OutputItems:
    """Belongs to one response.

    Args:
        response_id: from which ids of items and calls are made.
        namespaces: namespace and own name of functions, by the name that the model writes.
    """

    def __init__(self, response_id: str, namespaces: Mapping[str, tuple[str, str]] | None = None) -> None:
        self._response_id = response_id
        self._namespaces = namespaces or {}
        self._done: list[dict[str, Any]] = []
        self._open: _OpenItem | None = None

    def feed(self, event: OutputEvent, logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        """Events of the stream for one event of the text.

        Args:
            event: of the text.
            logprobs: of the tokens of a text.
        """
        match event:
            case TextDelta(text):
                return self._text("message", text, logprobs)
            case ReasoningDelta(text):
                return self._text("reasoning", text)
            case CallBegin(_, name):
                more = {"call_id": f"call_{self._digest('call')}", "name": name, "arguments": ""}
                if name in self._namespaces:
                    more["namespace"], more["name"] = self._namespaces[name]
                return self._open_item("function_call", **more)
            case CallArguments(_, text):
                return [*self._delta("response.function_call_arguments.delta", text)]
            case CallEnd(_, is_complete):
                return self.close("completed" if is_complete else "incomplete")

    def end(self, status: str) -> list[Event]:
        """The rest: an answer without anything in it is an empty message."""
        events = [] if self._open or self._done else self._text("message", "")
        return events + self.close(status)

    def items(self, status: str) -> list[dict[str, Any]]:
        """All items; the one that is open has this status, and what it has so far."""
        return [*self._done, *([] if self._open is None else [_finished(self._open, status)])]

    def close(self, status: str) -> list[Event]:
        """End the open item."""
        item, place = self._open, self._place()
        if item is None:
            return []
        self._open = None
        done = _finished(item, status)
        self._done.append(done)
        events: list[Event] = []
        if item.kind == "function_call":
            events.append(
                {"type": "response.function_call_arguments.done", **place, "name": done["name"], "arguments": item.text}
            )
        else:
            name, part = _PARTS[item.kind], done["content"][0]
            more = {"logprobs": item.logprobs} if item.kind == "message" else {}
            events.append({"type": f"response.{name}.done", **place, "content_index": 0, "text": item.text, **more})
            events.append({"type": "response.content_part.done", **place, "content_index": 0, "part": part})
        index = place["output_index"]
        return [*events, {"type": "response.output_item.done", "output_index": index, "item": done}]

    def _text(self, kind: str, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open.kind != kind:
            events = self._open_item(kind)
            part = _part(kind, "", [])
            events.append({"type": "response.content_part.added", **self._place(), "content_index": 0, "part": part})
        if not (text or logprobs):
            return events
        assert self._open is not None
        self._open.logprobs += logprobs
        more: dict[str, Any] = {"content_index": 0}
        if kind == "message":
            more["logprobs"] = list(logprobs)
        return events + self._delta(f"response.{_PARTS[kind]}.delta", text, **more)

    def _delta(self, kind: str, text: str, **more: Any) -> list[Event]:
        assert self._open is not None, "an item is opened before its text"
        self._open.texts.append(text)
        return [{"type": kind, **self._place(), **more, "delta": text}]

    def _open_item(self, kind: str, **more: Any) -> list[Event]:
        events = self.close("completed")
        body: dict[str, Any] = {"type": kind, "id": f"{_PREFIXES[kind]}_{self._digest('item')}", **more}
        if kind == "message":
            body["role"] = "assistant"
        self._open = _OpenItem(kind, body)
        shown = {**body, "status": "in_progress"}
        if kind != "function_call":
            shown["content"] = []
        if kind == "reasoning":
            shown |= {"summary": [], "encrypted_content": None}
        return [*events, {"type": "response.output_item.added", "output_index": len(self._done), "item": shown}]

    def _place(self) -> dict[str, Any]:
        item_id = "" if self._open is None else self._open.body["id"]
        return {"item_id": item_id, "output_index": len(self._done)}

    def _digest(self, name: str) -> str:
        """The same however often the response is rendered."""
        text = f"{self._response_id}/{name}/{len(self._done) + (self._open is not None)}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _part(kind: str, text: str, logprobs: Logprobs) -> dict[str, Any]:
    part: dict[str, Any] = {"type": _PARTS[kind], "text": text}
    return {**part, "annotations": [], "logprobs": logprobs} if kind == "message" else part


def _finished(item: _OpenItem, status: str) -> dict[str, Any]:
    body = {**item.body, "status": status}
    match item.kind:
        case "function_call":
            return {**body, "arguments": item.text}
        case "reasoning":
            part = _part("reasoning", item.text, [])
            return {**body, "summary": [], "content": [part], "encrypted_content": None}
    return {**body, "content": [_part("message", item.text, item.logprobs)]}
