"""Kept answers as bytes and back; another format is as if there were no answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stratos.core.requests.records import PositionLogprobs, TokenLogprob
from stratos_gateway.openai.chunks import ChoiceChunk, TokenEntry
from stratos_gateway.response_cache.cache import KeptAnswer, KeptPrompt

_FORMAT = 2


def encode_answer(answer: KeptAnswer) -> bytes:
    """An answer as it is sealed."""
    value = {"format": _FORMAT, **asdict(answer)}
    return json.dumps(value, separators=(",", ":")).encode()


def decode_answer(content: bytes) -> KeptAnswer | None:
    """The way back; ``None`` for what another version wrote."""
    try:
        value = json.loads(content)
        if value["format"] != _FORMAT:
            return None
        return KeptAnswer(
            chunks=tuple(_chunk(chunk) for chunk in value["chunks"]),
            prompts=tuple(KeptPrompt(**prompt) for prompt in value["prompts"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _chunk(value: Mapping[str, Any]) -> ChoiceChunk:
    entries = [TokenEntry(_position(entry["logprobs"]), entry["text_offset"]) for entry in value["entries"]]
    prompt = tuple(_position(position) for position in value["prompt_logprobs"])
    return ChoiceChunk(**{**value, "entries": entries, "prompt_logprobs": prompt})


def _position(value: Mapping[str, Any]) -> PositionLogprobs:
    return PositionLogprobs(_token(value["sampled"]), _tokens(value["top"]))


def _tokens(values: Sequence[Mapping[str, Any]]) -> tuple[TokenLogprob, ...]:
    return tuple(_token(value) for value in values)


def _token(value: Mapping[str, Any]) -> TokenLogprob:
    return TokenLogprob(**value)
