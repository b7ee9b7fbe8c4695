"""JSON schemas of whole answers, from what the renderers write of outputs of every kind.

A schema has the fields that every answer has, and the types that were written; a field that was always null has none.
It closes nothing: an answer may have further fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from stratos_gateway.openai.rendering import Answer
from stratos_gateway.openai.requests import GenerationBody, parse_chat
from stratos_gateway.preparation.dialects import CHAT, COMPLETION, DIALECTS, MESSAGE, RESPONSE, Dialect
from stratos_gateway.responses.requests import parse_response

_VOCAB_SIZE = 256
_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
_THOUGHT = "<think>\nHm.\n</think>\n\nYes."
_SHAPE = OutputShape(syntax=HERMES, reasoning=ReasoningTags("<think>", "</think>"))
_PLAIN: Mapping[str, Any] = {"num_logprobs": None, "num_prompt_logprobs": None, "return_token_ids": False}
_PARSERS: Mapping[str, Callable[[dict[str, Any], int], GenerationBody]] = {
    CHAT.path: parse_chat,
    COMPLETION.path: parse_completion,
    RESPONSE.path: parse_response,
    MESSAGE.path: parse_message,
}
_ENDS = ("stop", "length", "content_filter")


def answer_schemas() -> Mapping[str, dict[str, Any]]:
    """The schema of each generation route's whole answer, by its path."""
    return {dialect.path: schema_of(_answers(dialect)) for dialect in DIALECTS}


def schema_of(values: Iterable[Any]) -> dict[str, Any]:
    """The narrowest schema of this kind that all values obey; empty where they are all null, or there are none."""
    found = list(values)
    objects = [value for value in found if isinstance(value, dict)]
    lists = [value for value in found if isinstance(value, list)]
    kinds = sorted({_kind(value) for value in found})
    if kinds in ([], ["null"]):
        return {}
    if "number" in kinds and "integer" in kinds:
        kinds.remove("integer")
    schema: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    if objects:
        names = sorted(set().union(*objects))
        schema["properties"] = {name: schema_of(one[name] for one in objects if name in one) for name in names}
        schema["required"] = [name for name in names if all(name in one for one in objects)]
    if lists:
        schema["items"] = schema_of(item for one in lists for item in one)
    return schema


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.load(MODEL)


def _answers(dialect: Dialect) -> Iterator[dict[str, Any]]:
    """Whole answers to the examples of a route, of every kind that it knows."""
    for body in (_parsed(dialect, example) for example in EXAMPLES[dialect.path]):
        for end in _ENDS:
            yield _rendered(dialect, body, [_chunk(0, "Yes.", end), _chunk(1, "No.", end)], _PLAIN)
        yield _rendered(dialect, body, [_cut()], _PLAIN)
        if dialect is not COMPLETION:
            for text in (_CALL, f"I look.\n{_CALL}", _THOUGHT):
                yield _rendered(dialect, body, [_chunk(0, text, "stop")], {**_PLAIN, "shape": _SHAPE})
    if dialect in (CHAT, COMPLETION):
        told = {"num_logprobs": 2, "num_prompt_logprobs": 2, "return_token_ids": True}
        yield _rendered(dialect, _parsed(dialect, EXAMPLES[dialect.path][0]), [_chunk(0, "Yes.", "stop")], told)
    if dialect is MESSAGE:
        yield _rendered(dialect, _parsed(dialect, EXAMPLES[dialect.path][0]), [_stopped()], _PLAIN)


def _parsed(dialect: Dialect, example: dict[str, Any]) -> GenerationBody:
    return _PARSERS[dialect.path](example, _VOCAB_SIZE)


def _rendered(
    dialect: Dialect, body: GenerationBody, chunks: Sequence[ChoiceChunk], fields: Mapping[str, Any]
) -> dict[str, Any]:
    prompt = tuple(_tokenizer().encode_plain("Hi you"))
    answer = Answer(
        id="id-1", created=1, model="base", echoes_logprobs=False, include_usage=False, prompts=(prompt, prompt),
        num_choices=1, tool_mode=ToolMode.AUTO, **fields,
    )  # fmt: skip
    shown = chunks if dialect in (CHAT, COMPLETION) else chunks[:1]
    return dialect.render(answer, _tokenizer(), body, ("Hi you", "Hi you")).body(shown, Usage(2, 3, 1))


def _chunk(index: int, text: str, end: str) -> ChoiceChunk:
    ids = _tokenizer().encode_plain(text)
    entries = [TokenEntry(_position(token), place) for place, token in enumerate(ids)]
    return ChoiceChunk(index, text, ids, entries, end, is_first=True, prompt_logprobs=[_position(ids[0])])


def _cut() -> ChoiceChunk:
    chunk = _chunk(0, "Yes", "length")
    chunk.continuation, chunk.is_open = "cont_1", True
    return chunk


def _stopped() -> ChoiceChunk:
    chunk = _chunk(0, "Yes.", "stop")
    chunk.stop = "END"
    return chunk


def _position(token: int) -> PositionLogprobs:
    return PositionLogprobs(TokenLogprob(token, -0.5, 1), (TokenLogprob(token, -0.5, 1), TokenLogprob(7, -1.5, 2)))
