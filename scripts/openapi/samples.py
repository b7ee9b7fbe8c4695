"""Outputs of every kind that the generation routes know, as their renderers are given them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from scripts.bench.harness import MODEL
from scripts.openapi.examples import EXAMPLES
from stratos.core.requests.records import PositionLogprobs, TokenLogprob
from stratos.core.requests.tools import ToolMode
from stratos.text.output.parser import OutputShape, ReasoningTags
from stratos.text.output.syntaxes.hermes import HERMES
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.anthropic.requests import parse_message
from stratos_gateway.completion.requests import parse_completion
from stratos_gateway.openai.chunks import ChoiceChunk, TokenEntry, Usage
from stratos_gateway.openai.rendering import Answer, Renderer
from stratos_gateway.openai.requests import GenerationBody, parse_chat
from stratos_gateway.preparation.dialects import CHAT, COMPLETION, MESSAGE, RESPONSE, Dialect
from stratos_gateway.responses.requests import parse_response

USAGE = Usage(2, 3, 1)
_VOCAB_SIZE = 256
_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
_THOUGHT = "<think>\nHm.\n</think>\n\nYes."
_SHAPE = OutputShape(syntax=HERMES, reasoning=ReasoningTags("<think>", "</think>"))
_PARSERS: Mapping[str, Callable[[dict[str, Any], int], GenerationBody]] = {
    CHAT.path: parse_chat,
    COMPLETION.path: parse_completion,
    RESPONSE.path: parse_response,
    MESSAGE.path: parse_message,
}
_ENDS = ("stop", "length", "content_filter")


@dataclass(frozen=True, slots=True)
class Sample:
    """An output to one example of a route."""

    dialect: Dialect
    body: GenerationBody
    text: str
    end: str = "stop"
    stop: str | None = None
    """Stop string that has ended it."""
    continuation: str = ""
    """Token with which it can be gone on with."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the answer that ask for more than its text."""

    def renderer(self) -> Renderer:
        """A new one."""
        prompt = tuple(tokenizer().encode_plain("Hi you"))
        plain = {"num_logprobs": None, "num_prompt_logprobs": None, "return_token_ids": False, "include_usage": False,
                 "echoes_logprobs": False}  # fmt: skip
        answer = Answer(
            id="id-1", created=1, model="base", prompts=(prompt, prompt), num_choices=1,
            tool_mode=ToolMode.AUTO, **{**plain, **self.fields},
        )  # fmt: skip
        return self.dialect.render(answer, tokenizer(), self.body, ("Hi you", "Hi you"))

    def chunks(self, *, is_stream: bool = False) -> Sequence[ChoiceChunk]:
        """The output whole, or with its end in a chunk of its own; where a request has several, of two choices."""
        num_choices = 2 if self.dialect in (CHAT, COMPLETION) else 1
        if not is_stream:
            return [self._chunk(index, self.text, self.end) for index in range(num_choices)]
        parts = [
            (index, text, end) for index in range(num_choices) for text, end in ((self.text, None), ("", self.end))
        ]
        return [self._chunk(*part) for part in parts]

    def _chunk(self, index: int, text: str, end: str | None) -> ChoiceChunk:
        ids = tokenizer().encode_plain(text)
        entries = [TokenEntry(_position(token), place) for place, token in enumerate(ids)]
        logprobs = [_position(7)]
        chunk = ChoiceChunk(index, text, ids, entries, end, is_first=bool(text), prompt_logprobs=logprobs)
        if end is not None:
            chunk.stop, chunk.continuation, chunk.is_open = self.stop, self.continuation, bool(self.continuation)
        return chunk


def samples(dialect: Dialect) -> Iterator[Sample]:
    """Outputs to the examples of a route, of every kind that it knows."""
    bodies = [_PARSERS[dialect.path](example, _VOCAB_SIZE) for example in EXAMPLES[dialect.path]]
    for body in bodies:
        for end in _ENDS:
            yield Sample(dialect, body, "Yes.", end)
        yield Sample(dialect, body, "Yes", "length", continuation="cont_1")
        if dialect is not COMPLETION:
            for text in (_CALL, f"I look.\n{_CALL}", _THOUGHT):
                yield Sample(dialect, body, text, fields={"shape": _SHAPE})
    if dialect in (CHAT, COMPLETION):
        told = {"num_logprobs": 2, "num_prompt_logprobs": 2, "return_token_ids": True}
        yield Sample(dialect, bodies[0], "Yes.", fields=told)
        for is_continuous in (False, True):
            yield Sample(dialect, bodies[0], "Yes.", fields={"include_usage": True, "continuous_usage": is_continuous})
    if dialect is COMPLETION:
        yield Sample(dialect, bodies[1], "Yes.", fields={"num_logprobs": 2, "echoes_logprobs": True})
    if dialect is MESSAGE:
        yield Sample(dialect, bodies[0], "Yes.", stop="END")


@cache
def tokenizer() -> Tokenizer:
    """Of the shipped model."""
    return Tokenizer.load(MODEL)


def _position(token: int) -> PositionLogprobs:
    return PositionLogprobs(TokenLogprob(token, -0.5, 1), (TokenLogprob(token, -0.5, 1), TokenLogprob(7, -1.5, 2)))
