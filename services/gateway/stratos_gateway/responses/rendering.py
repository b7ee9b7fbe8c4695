"""Responses, whole and as streams of typed events that are numbered from 0 and always end with a terminal one.

response.created  response.in_progress  (items)  response.completed | response.incomplete | response.failed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from stratos.common.errors import BadRequest, RateLimited, StratosError
from stratos.text.output.events import OutputEvent, TextDelta
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.http.errors import error_body
from stratos_gateway.openai.answers import chat_logprobs
from stratos_gateway.openai.chunks import ChoiceChunk, Usage, continuation_of
from stratos_gateway.openai.reasoning_tokens import ReasoningTokens
from stratos_gateway.openai.rendering import Answer, Renderer
from stratos_gateway.responses.output import Event, OutputItems
from stratos_gateway.responses.requests import ResponseBody

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Ends of a choice that leave its response incomplete, and the reasons that this API has for them."""


def _unshown(chunk: ChoiceChunk) -> ChoiceChunk:
    """A chunk of a response that shows no output; that it has one token is not its client's wish."""
    reason = "stop" if chunk.finish_reason == "length" else chunk.finish_reason
    return replace(chunk, text="", token_ids=[], entries=[], finish_reason=reason, continuation="", is_open=False)


class ResponseRenderer(Renderer):
    """/v1/responses.

    Args:
        answer: shared fields.
        tokenizer: for the texts of tokens in log probabilities.
        body: of the request.

    Raises:
        BadRequest: log probabilities of a text are asked for whose tokens are not all its own.
    """

    def __init__(self, answer: Answer, tokenizer: Tokenizer, body: ResponseBody) -> None:
        super().__init__(answer)
        if body.includes_logprobs and answer.shape is not None:
            text = "log probabilities cannot be told where tools or reasoning are looked for in the output"
            raise BadRequest(text, param="include", code="unsupported_parameter")
        self._tokenizer = tokenizer
        self._body = body
        self._items = OutputItems(answer.id, body.namespaces)
        shape = answer.shape
        self._parser = None if shape is None else answer.parser_of(0)
        self._reasoning = None if shape is None else ReasoningTokens(shape, tokenizer)
        self._reason: str | None = None
        self._continuation: dict[str, str] = {}
        self._num_events = 0
        self._ended_unix_s: int | None = None

    def body(self, chunks: Sequence[ChoiceChunk], usage: Usage) -> dict[str, Any]:
        """The whole response."""
        self._read(chunks)
        return self.ended(usage)

    def stream_part(self, chunks: Sequence[ChoiceChunk]) -> bytes:
        """Events for what is new."""
        return self._encoded([*self._begin(), *self._read(chunks)])

    def stream_end(self, usage: Usage) -> bytes:
        """Event of the response that has ended."""
        response = self.ended(usage)
        return self._encoded([*self._begin(), {"type": f"response.{response['status']}", "response": response}])

    def renumber(self, num_events: int) -> None:
        """Number the next event so."""
        self._num_events = num_events

    def stream_failure(self, error: StratosError) -> bytes:
        """The error as an event, and the response that failed, with what was written of it."""
        shown = error_body(error)["error"]
        told = {name: shown[name] for name in ("code", "message", "param")}
        code = "rate_limit_exceeded" if isinstance(error, RateLimited) else "server_error"
        failed = self._response("failed", self._items.items("incomplete"))
        failed["error"] = {"code": code, "message": shown["message"]}
        return self._encoded(
            [*self._begin(), {"type": "error", **told}, {"type": "response.failed", "response": failed}]
        )

    def _begin(self) -> list[Event]:
        if self._num_events:
            return []
        response = self._response("in_progress", [])
        return [{"type": f"response.{name}", "response": response} for name in ("created", "in_progress")]

    def _read(self, chunks: Sequence[ChoiceChunk]) -> list[Event]:
        events: list[Event] = []
        for chunk in map(_unshown, chunks) if self._body.is_warm_up else chunks:
            logprobs = chat_logprobs(chunk.entries, self._tokenizer) if self._body.includes_logprobs else []
            for event in self._text_events(chunk, has_logprobs=bool(logprobs)):
                events += self._items.feed(event, logprobs)
            if chunk.finish_reason is not None:
                self._reason, self._continuation = chunk.finish_reason, continuation_of([chunk])
                events += [] if self._body.is_warm_up else self._items.end(self._item_status)
                self._ended_unix_s = int(self.answer.wall_clock())
        return events

    def _text_events(self, chunk: ChoiceChunk, *, has_logprobs: bool) -> list[OutputEvent]:
        if self._parser is None:
            return [TextDelta(chunk.text)] if chunk.text or has_logprobs else []
        assert self._reasoning is not None, "made with the parser"
        events = self._parser.feed(chunk.text)
        if chunk.ends_text:
            events += self._parser.finish()
        self._reasoning.add(chunk.token_ids, events)
        return events

    @property
    def _item_status(self) -> str:
        return "incomplete" if self._reason in _INCOMPLETE else "completed"

    def ended(self, usage: Usage) -> dict[str, Any]:
        """The response once its output has ended."""
        reason = _INCOMPLETE.get(self._reason or "")
        response = self._response("incomplete" if reason else "completed", self._items.items(self._item_status))
        if reason:
            response["incomplete_details"] = {"reason": reason}
        else:
            response["completed_at"] = self._ended_unix_s
        response["usage"] = self._usage(usage)
        return response | self._continuation

    def standing(self, status: str, chunks: Sequence[ChoiceChunk], error: StratosError | None = None) -> dict[str, Any]:
        """The response while it is waiting or written, or as it was when it was ended early."""
        self._read(chunks)
        is_open = status in ("queued", "in_progress")
        response = self._response(status, self._items.items("in_progress" if is_open else "incomplete"))
        if error is not None:
            response["error"] = {"code": "server_error", "message": error.message}
        return response

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.answer.id,
            "object": "response",
            "created_at": self.answer.created,
            "completed_at": None,
            "status": status,
            "model": self.answer.model,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "truncation": "disabled",
            "usage": None,
            **self._body.echoed,
        }

    def _encoded(self, events: Sequence[Event]) -> bytes:
        parts = []
        for event in events:
            numbered = {**event, "sequence_number": self._num_events}
            parts += [b"event: ", event["type"].encode(), b"\ndata: ", orjson.dumps(numbered), b"\n\n"]
            self._num_events += 1
        return b"".join(parts)

    def _usage(self, usage: Usage) -> dict[str, Any]:
        num_output = usage.num_output_tokens
        num_reasoning = 0 if self._reasoning is None else self._reasoning.count(num_output)
        return {
            "input_tokens": usage.num_prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.num_cached_tokens,
                "cache_write_tokens": usage.writes.total,
            },
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": num_reasoning},
            "total_tokens": usage.num_prompt_tokens + num_output,
        }
