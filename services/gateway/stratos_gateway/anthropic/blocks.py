"""The content of an answer while it is written: blocks of thinking, text and calls, and the events that tell them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from stratos.core.requests.tools import RAW_ARGUMENTS
from stratos.text.output.events import CallArguments, CallBegin, CallEnd, OutputEvent, ReasoningDelta, TextDelta

Event = dict[str, Any]


@dataclass(slots=True)
class _Block:
    kind: Literal["text", "thinking", "tool_use"]
    id: str
    name: str = ""
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def begun(self) -> dict[str, Any]:
        """The block as it begins in a stream."""
        match self.kind:
            case "text":
                return {"type": "text", "text": ""}
            case "thinking":
                return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}

    def whole(self) -> dict[str, Any]:
        match self.kind:
            case "text":
                return {"type": "text", "text": self.text}
            case "thinking":
                return {"type": "thinking", "thinking": self.text, "signature": self.id}
        return {"type": "tool_use", "id": self.id, "name": self.name, "input": _input(self.text)}


class ContentBlocks:
    """Blocks of one answer.

    Args:
        answer_id: names its calls, the same however often it is rendered.
    """

    def __init__(self, answer_id: str) -> None:
        self._answer_id = answer_id
        self._blocks: list[_Block] = []
        self._is_open = False
        self.num_calls = 0
        self.is_whole = True
        """Every call so far was closed by the model."""

    @property
    def content(self) -> list[dict[str, Any]]:
        """All blocks."""
        return [block.whole() for block in self._blocks]

    def feed(self, event: OutputEvent) -> Iterator[Event]:
        """Take a piece of the output; its events."""
        match event:
            case TextDelta(text):
                yield from self._continue("text", {"type": "text_delta", "text": text}, text)
            case ReasoningDelta(text):
                yield from self._continue("thinking", {"type": "thinking_delta", "thinking": text}, text)
            case CallBegin(index, name):
                self.num_calls += 1
                yield from self._begin(_Block("tool_use", self._name("toolu", index), name))
            case CallArguments(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text}, text)
            case CallEnd(_, is_complete):
                self.is_whole = self.is_whole and is_complete
                yield from self.close()

    def close(self) -> Iterator[Event]:
        """End the block that is open, if one is."""
        if not self._is_open:
            return
        block = self._blocks[-1]
        if block.kind == "thinking":
            yield self._delta({"type": "signature_delta", "signature": block.id}, "")
        self._is_open = False
        yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _continue(self, kind: Literal["text", "thinking"], delta: dict[str, Any], text: str) -> Iterator[Event]:
        if not self._is_open or self._blocks[-1].kind != kind:
            yield from self._begin(_Block(kind, self._name("sig", len(self._blocks))))
        yield self._delta(delta, text)

    def _begin(self, block: _Block) -> Iterator[Event]:
        yield from self.close()
        self._blocks.append(block)
        self._is_open = True
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": block.begun()}

    def _delta(self, delta: dict[str, Any], text: str) -> Event:
        self._blocks[-1].parts.append(text)
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _name(self, prefix: str, index: int) -> str:
        name = f"{self._answer_id}/{prefix}/{index}"
        return f"{prefix}_{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"


def _input(text: str) -> Any:
    """Arguments as the object that they are the text of, byte for byte."""
    if not text.strip():
        return {}
    try:
        is_object = isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        is_object = False
    return orjson.Fragment(text) if is_object else {RAW_ARGUMENTS: text}
