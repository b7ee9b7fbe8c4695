"""Messages, whole and as streams of named events.

message_start  (content_block_start  content_block_delta ...  content_block_stop) ...  message_delta  message_stop
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stratos.common.errors import StratosError
from stratos.text.output.events import OutputEvent, ReasoningDelta, TextDelta
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.anthropic.blocks import ContentBlocks, Event
from stratos_gateway.anthropic.errors import error_object
from stratos_gateway.http.sse import encode_named_events
from stratos_gateway.openai.chunks import ChoiceChunk, Usage, continuation_of
from stratos_gateway.openai.reasoning_tokens import ReasoningTokens
from stratos_gateway.openai.rendering import Answer, Renderer

FILTERED = "content_filter"
_STOP_REASONS = {"length": "max_tokens", FILTERED: "refusal"}
"""Ends that this API calls otherwise; all others are the end of a turn, of a stop sequence or of calls."""


class MessageRenderer(Renderer):
    """/v1/messages.

    Args:
        answer: shared fields; it has one choice.
        tokenizer: tells tokens of thinking from others.
    """

    keep_alive = encode_named_events([{"type": "ping"}])

    def __init__(self, answer: Answer, tokenizer: Tokenizer) -> None:
        super().__init__(answer)
        self._id = answer.id.replace("-", "_", 1)
        self._blocks = ContentBlocks(self._id)
        shape = answer.shape
        self._parser = None if shape is None else answer.parser_of(0)
        self._thinking = ReasoningTokens(shape, tokenizer) if shape is not None and shape.has_reasoning else None
        self._end: tuple[str, str | None] | None = None
        """Why it ended, and the stop sequence, if that was the reason."""
        self._continuation: dict[str, str] = {}
        self._is_begun = False

    def body(self, chunks: Sequence[ChoiceChunk], usage: Usage) -> dict[str, Any]:
        """The whole message."""
        for chunk in chunks:
            for _ in self._read(chunk):
                pass
        reason, stop = self._end or (None, None)
        told = {"content": self._blocks.content, "stop_reason": reason, "stop_sequence": stop}
        return self._message(self._counts(usage)) | told | self._continuation

    def stream_part(self, chunks: Sequence[ChoiceChunk]) -> bytes:
        """Events for what is new."""
        return encode_named_events([*self._begin(), *(event for chunk in chunks for event in self._read(chunk))])

    def stream_end(self, usage: Usage) -> bytes:
        """Why it ended, and the counts that hold: those of the beginning do not know of any cache."""
        reason, stop = self._end or (None, None)
        delta = {"stop_reason": reason, "stop_sequence": stop}
        told = {"type": "message_delta", "delta": delta, "usage": self._counts(usage), **self._continuation}
        return encode_named_events([*self._begin(), told, {"type": "message_stop"}])

    def stream_failure(self, error: StratosError) -> bytes:
        """The error as the last event; blocks that are open stay so."""
        return encode_named_events([{"type": "error", "error": error_object(error)}])

    def _begin(self) -> Iterator[Event]:
        if not self._is_begun:
            self._is_begun = True
            usage = Usage(sum(map(len, self.answer.prompts)))
            yield {"type": "message_start", "message": self._message(_counts(usage))}

    def _read(self, chunk: ChoiceChunk) -> Iterator[Event]:
        for event in self._events(chunk):
            yield from self._blocks.feed(event)
        if chunk.finish_reason is not None:
            yield from self._blocks.close()
            self._end, self._continuation = self._stop_reason(chunk), continuation_of([chunk])

    def _events(self, chunk: ChoiceChunk) -> list[OutputEvent]:
        if self._parser is None:
            return [TextDelta(chunk.text)] if chunk.text else []
        events = self._parser.feed(chunk.text)
        if chunk.ends_text:
            events += self._parser.finish()
        if self._thinking is not None:
            self._thinking.add(chunk.token_ids, events)
        if chunk.finish_reason == FILTERED:  # what stands in the place of the hit is no part of a call
            return [event for event in events if isinstance(event, TextDelta | ReasoningDelta)]
        return events

    def _counts(self, usage: Usage) -> dict[str, Any]:
        if self._thinking is None:
            return _counts(usage)
        num_thinking = self._thinking.count(usage.num_output_tokens)
        return _counts(usage) | {"output_tokens_details": {"thinking_tokens": num_thinking}}

    def _stop_reason(self, chunk: ChoiceChunk) -> tuple[str, str | None]:
        reason = _STOP_REASONS.get(chunk.finish_reason or "")
        if reason is not None:
            return reason, None
        if chunk.stop is not None:
            return "stop_sequence", chunk.stop
        is_call = self._blocks.num_calls and self._blocks.is_whole
        return ("tool_use" if is_call else "end_turn"), None

    def _message(self, counts: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.answer.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": counts,
        }


def _counts(usage: Usage) -> dict[str, Any]:
    """Token counts; those of the input are kept since this request, else read from a cache, else neither."""
    writes = usage.writes
    num_read = max(0, min(usage.num_cached_tokens - writes.num_cached, usage.num_prompt_tokens - writes.total))
    kept = {"ephemeral_5m_input_tokens": writes.num_5m, "ephemeral_1h_input_tokens": writes.num_1h}
    if writes.num_24h:
        kept["ephemeral_24h_input_tokens"] = writes.num_24h
    return {
        "input_tokens": usage.num_prompt_tokens - num_read - writes.total,
        "cache_creation_input_tokens": writes.total,
        "cache_creation": kept,
        "cache_read_input_tokens": num_read,
        "output_tokens": usage.num_output_tokens,
    }
