"""Log probabilities in OpenAI's two shapes, read back by OpenAI's own types: parts of characters, infinities, ties."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from stratos.core.requests.records import FinishReason, PositionLogprobs, TokenLogprob
from stratos.text.detokenizer import Detokenizer
from stratos.text.stop import StopMatcher
from stratos_gateway.generation.journal import ChoiceJournal
from stratos_gateway.openai.answers import ChatRenderer, CompletionRenderer
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.rendering import Answer
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.deltas import delta

TEXT = "ab \U0001f600 end"


def text_ids() -> list[int]:
    return shipped_tokenizer().encode_plain(TEXT)


END = 0


def usage() -> Usage:
    return Usage(1, len(text_ids()), 0)


def entry(token_id: int, num_top: int) -> PositionLogprobs:
    rivals = [(7, -0.25), (token_id, -1.5), (8, -math.inf)][:num_top]
    top = tuple(TokenLogprob(token, logprob, rank) for rank, (token, logprob) in enumerate(rivals, 1))
    return PositionLogprobs(TokenLogprob(token_id, -1.5, 2), top)


def chunks(num_top: int, *stops: str, size: int = 100) -> list[ChoiceChunk]:
    journal, taken = ChoiceJournal(0, Detokenizer(shipped_tokenizer()), StopMatcher(stops)), []
    ids = [*text_ids(), END]
    for begin in range(0, len(ids), size):
        part = ids[begin : begin + size]
        reason = FinishReason.STOP if begin + size >= len(ids) else None
        journal.accept(delta(begin, part, [entry(i, num_top) for i in part], reason))
        if (chunk := journal.take()) is not None:
            taken.append(chunk)
        if journal.is_finished:
            break
    return taken


def answer(num_top: int | None) -> Answer:
    return Answer(
        id="x", created=1, model="m", num_logprobs=num_top, num_prompt_logprobs=None, echoes_logprobs=False,
        return_token_ids=False, include_usage=False, prompts=[[5]], num_choices=1,
    )  # fmt: skip


def as_sent(body: dict[str, Any]) -> str:
    return json.dumps(body, allow_nan=False)


def test_chat_spells_parts_of_characters_and_bytes_join_to_the_text() -> None:
    body = ChatRenderer(answer(3), shipped_tokenizer()).body(chunks(3), usage())
    choice = ChatCompletion.model_validate_json(as_sent(body), strict=True).choices[0]
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert choice.message.content == TEXT
    assert len(content) == len(text_ids()) + 1, "the end token counts"
    assert b"".join(bytes(token.bytes or ()) for token in content[:-1]).decode() == TEXT
    parts = [token.token for token in content if token.token.startswith("\\x")]
    assert "".join(parts).encode().decode("unicode_escape").encode("latin-1").decode() == "\U0001f600"
    assert [rival.logprob for rival in content[0].top_logprobs] == [-0.25, -1.5, -9999.0]


def test_chat_without_rivals_or_without_log_probabilities() -> None:
    none_on_top = ChatRenderer(answer(0), shipped_tokenizer()).body(chunks(0), usage())["choices"][0]["logprobs"]
    assert all(token["top_logprobs"] == [] for token in none_on_top["content"])
    assert none_on_top["refusal"] is None
    assert ChatRenderer(answer(None), shipped_tokenizer()).body(chunks(0), usage())["choices"][0]["logprobs"] is None


def test_streamed_chat_has_every_token_once() -> None:
    renderer = ChatRenderer(answer(1), shipped_tokenizer())
    whole = renderer.body(chunks(1), usage())["choices"][0]
    events = [event for chunk in chunks(1, size=1) for event in renderer.events([chunk])]
    read = [ChatCompletionChunk.model_validate_json(as_sent(event), strict=True).choices[0] for event in events]
    assert "".join(choice.delta.content or "" for choice in read) == TEXT
    streamed = [token for event in events for token in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == whole["logprobs"]["content"]
    assert [choice.finish_reason for choice in read if choice.finish_reason] == ["stop"]


def test_completions_mark_parts_of_characters_and_tell_offsets() -> None:
    body = CompletionRenderer(answer(2), shipped_tokenizer()).body(chunks(2), usage())
    logprobs = Completion.model_validate_json(as_sent(body), strict=True).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert logprobs.top_logprobs is not None
    parts = [token for token in logprobs.tokens if token.startswith("bytes:\\x")]
    raw = "".join(part.removeprefix("bytes:") for part in parts)
    assert raw.encode().decode("unicode_escape").encode("latin-1").decode() == "\U0001f600"
    for token, offset in zip(logprobs.tokens[:-1], logprobs.text_offset, strict=False):
        assert token.startswith("bytes:") or TEXT[offset:].startswith(token)
    assert [next(iter(top)) for top in logprobs.top_logprobs] == logprobs.tokens, "the token itself comes first"
    assert len(logprobs.tokens) == len(logprobs.token_logprobs or ()) == len(logprobs.top_logprobs)


def test_a_stop_string_ends_the_log_probabilities_with_the_token_that_completes_it() -> None:
    body = CompletionRenderer(answer(0), shipped_tokenizer()).body(chunks(0, " en"), usage())["choices"][0]
    assert body["text"] == "ab \U0001f600"
    assert TEXT.startswith("".join(t for t in body["logprobs"]["tokens"] if not t.startswith("bytes:"))[:3])
    assert len(body["logprobs"]["tokens"]) <= len(text_ids())


def test_tokens_are_named_by_their_ids_where_that_is_asked() -> None:
    named = replace(answer(2), names_token_ids=True)
    chat = ChatRenderer(named, shipped_tokenizer()).body(chunks(2), usage())["choices"][0]["logprobs"]["content"]
    names = [f"token_id:{token_id}" for token_id in [*text_ids(), END]]
    assert [token["token"] for token in chat] == names
    assert b"".join(bytes(token["bytes"]) for token in chat[:-1]).decode() == TEXT, "bytes stay those of the text"
    assert chat[0]["top_logprobs"][0]["token"] == "token_id:7"
    body = CompletionRenderer(named, shipped_tokenizer()).body(chunks(2), usage())["choices"][0]["logprobs"]
    assert body["tokens"] == names
    assert "token_id:7" in body["top_logprobs"][0]
