"""Chat answers with reasoning and tool calls: events of the output's text in OpenAI's shapes.

Whole bodies and streams are made from the same events, so they say the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

from stratos.core.requests.tools import ToolMode
from stratos.text.output.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
)
from stratos.text.output.parser import OutputParser, OutputShape
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.http.sse import encode_events
from stratos_gateway.openai.answers import ChatRenderer
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.event_bytes import MARK, TextTemplate
from stratos_gateway.openai.reasoning_tokens import ReasoningTokens
from stratos_gateway.openai.rendering import Answer

FINISH_REASONS = {
    ToolMode.AUTO: "tool_calls",
    ToolMode.REQUIRED: "tool_calls",
    ToolMode.NAMED: "stop",
}
"""Ends of an answer with calls, as OpenAI has them; an answer that was cut short says so instead."""


@dataclass(slots=True)
class _ParsedChoice:
    parser: OutputParser
    reasoning: ReasoningTokens
    num_calls: int = 0
    is_whole: bool = True
    """Every call so far was closed."""


@dataclass(slots=True)
class _Message:
    """One choice's message while it is put together."""

    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def add(self, event: OutputEvent, call_id: str) -> None:
        match event:
            case TextDelta(text):
                self.text += text
            case ReasoningDelta(text):
                self.reasoning += text
            case CallBegin(_, name):
                self.calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}})
            case CallArguments(index, text):
                self.calls[index]["function"]["arguments"] += text

    def body(self, shape: OutputShape) -> dict[str, Any]:
        """In OpenAI's shape; reasoning under both names that clients know."""
        body: dict[str, Any] = {"role": "assistant", "content": self.text, "refusal": None}
        if self.calls:
            body["content"], body["tool_calls"] = self.text or None, self.calls
        if shape.has_reasoning:
            body["reasoning"] = body["reasoning_content"] = self.reasoning or None
        return body


class EventRenderer(ChatRenderer):
    """/v1/chat/completions where something is looked for in the output."""

    def __init__(self, answer: Answer, tokenizer: Tokenizer, echo: str = "") -> None:
        super().__init__(answer, tokenizer, echo)
        assert answer.shape is not None, "others need no events"
        self._shape = answer.shape
        self._choices: dict[int, _ParsedChoice] = {}
        self._kinds: dict[tuple[int, type, int], TextTemplate] = {}
        """By choice, kind of event and call."""

    def token_part(self, token_id: int, text: str) -> bytes | None:
        """None: what is looked for is looked for in chunks."""
        return None

    @property
    def token_template(self) -> TextTemplate | None:
        """None, as no token is an event for certain."""
        return None

    def _event(self, chunk: ChoiceChunk) -> bytes:
        if not self.is_inner(chunk):
            return encode_events(self.events([chunk]))
        told = (event for event in self._events(chunk) if not isinstance(event, CallEnd))
        return b"".join([self._told(chunk.index, event) for event in told])

    def _told(self, choice: int, event: TextDelta | ReasoningDelta | CallBegin | CallArguments) -> bytes:
        """One event of a stream, which differs from others of its kind in the text alone."""
        if isinstance(event, CallBegin):
            return self._encoded(choice, event)
        key = choice, type(event), event.index if isinstance(event, CallArguments) else 0
        if (template := self._kinds.get(key)) is None:
            template = self._kinds[key] = TextTemplate(self._encoded(choice, replace(event, text=MARK)))
        return template.event(event.text)

    def _encoded(self, choice: int, event: OutputEvent) -> bytes:
        delta = self._delta(choice, event)
        part = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
        return encode_events([self._enveloped(part)])

    def _whole(self, chunk: ChoiceChunk) -> dict[str, Any]:
        message = _Message(self._echo)
        for event in self._events(chunk):
            message.add(event, self._call_id(chunk.index, event))
        return self._finish({"index": chunk.index, "message": message.body(self._shape)}, chunk)

    def _parts(self, chunk: ChoiceChunk) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        if chunk.is_first:
            delta: dict[str, Any] = {"role": "assistant", "content": self._echo}
            parts.append({"index": chunk.index, "delta": delta, "logprobs": None, "finish_reason": None})
        deltas = [self._delta(chunk.index, event) for event in self._events(chunk) if not isinstance(event, CallEnd)]
        if not deltas and self._tells_more(chunk):
            deltas = [{}]
        for delta in deltas[:-1]:
            parts.append({"index": chunk.index, "delta": delta, "logprobs": None, "finish_reason": None})
        if deltas:
            parts.append(self._finish({"index": chunk.index, "delta": deltas[-1]}, chunk))
        return parts

    def _tells_more(self, chunk: ChoiceChunk) -> bool:
        """Something besides events is to be told: an end, or tokens whose text is held back."""
        tells_tokens = self.answer.wants_logprobs or self.answer.return_token_ids
        return bool(chunk.finish_reason or (tells_tokens and chunk.token_ids))

    def _events(self, chunk: ChoiceChunk) -> list[OutputEvent]:
        """Events of a chunk; its end is told by what was found."""
        choice = self._choices.get(chunk.index)
        if choice is None:
            choice = self._choices[chunk.index] = _ParsedChoice(
                self.answer.parser_of(chunk.index), ReasoningTokens(self._shape, self._tokenizer)
            )
        events = choice.parser.feed(chunk.text)
        if chunk.ends_text:
            events += choice.parser.finish()
        choice.reasoning.add(chunk.token_ids, events)
        for event in events:
            if isinstance(event, CallEnd):
                choice.num_calls += 1
                choice.is_whole = choice.is_whole and event.is_complete
        if self.answer.hides_reasoning:
            return [event for event in events if not isinstance(event, ReasoningDelta)]
        return events

    def _finish(self, choice: dict[str, Any], chunk: ChoiceChunk) -> dict[str, Any]:
        choice = super()._finish(choice, chunk)
        state = self._choices[chunk.index]
        if chunk.finish_reason == "stop" and state.num_calls and state.is_whole:
            choice["finish_reason"] = FINISH_REASONS.get(self.answer.tool_mode, "tool_calls")
        return choice

    def _usage(self, usage: Usage) -> dict[str, Any]:
        if not self._shape.has_reasoning:
            return usage.body()
        each = usage.num_output_tokens // max(1, len(self._choices))
        return usage.body(sum(choice.reasoning.count(each) for choice in self._choices.values()))

    def _delta(self, choice: int, event: OutputEvent) -> dict[str, Any]:
        match event:
            case TextDelta(text):
                return {"content": text}
            case ReasoningDelta(text):
                return {"reasoning": text, "reasoning_content": text}
            case CallBegin(index, name):
                function = {"name": name, "arguments": ""}
                call_id = self._call_id(choice, event)
                return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
            case CallArguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case CallEnd():
                return {}

    def _call_id(self, choice: int, event: OutputEvent) -> str:
        """Id of a call, the same however often its answer is rendered."""
        index = event.index if isinstance(event, CallBegin) else 0
        name = f"{self.answer.id}/{choice}/{index}"
        return "call_" + hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
