"""Log probabilities of prompt tokens in the shapes of the two APIs that have them.

A prompt of N tokens has N - 1 entries: the first token is predicted by nothing and stands as null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from stratos.core.requests.records import PositionLogprobs
from stratos.text.detokenizer import Detokenizer
from stratos.text.tokenizer import Tokenizer

TokenName = Callable[[int], str]
"""Id of a token -> its name in log probabilities."""
MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def finite(logprob: float) -> float:
    """A number that JSON can hold."""
    return logprob if math.isfinite(logprob) else MIN_LOGPROB


def by_token_id(entries: Sequence[PositionLogprobs], num_top: int, tokenizer: Tokenizer) -> list[dict[str, Any] | None]:
    """vLLM's ``prompt_logprobs``: per prompt token null or a map from token id to logprob, rank and text, which begins
    with the token itself."""
    body: list[dict[str, Any] | None] = [None]
    for entry in entries:
        candidates = {token.token_id: token for token in (entry.sampled, *entry.top[:num_top])}
        body.append(
            {
                str(token.token_id): {
                    "logprob": finite(token.logprob),
                    "rank": token.rank,
                    "decoded_token": tokenizer.token_text(token.token_id),
                }
                for token in candidates.values()
            }
        )
    return body


def id_name(token_id: int) -> str:
    """Name of a token that tells its id, as vLLM has it: texts of two tokens may be the same."""
    return f"token_id:{token_id}"


def legacy(
    prompt_ids: Sequence[int],
    echo: str,
    entries: Sequence[PositionLogprobs],
    num_top: int,
    tokenizer: Tokenizer,
    name: TokenName,
) -> dict[str, list[Any]]:
    """The part of a completion's ``logprobs`` that ``echo`` puts before the output's; offsets are into ``echo``."""
    hides_special = tokenizer.decode(prompt_ids, skip_special=False) != echo  # the tokenizer added some
    detokenizer, num_chars = Detokenizer(tokenizer, skip_special=hides_special), 0
    body: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for place, token_id in enumerate(prompt_ids):
        entry = entries[place - 1] if 0 < place <= len(entries) else None
        body["tokens"].append(name(token_id))
        body["token_logprobs"].append(None if entry is None else finite(entry.sampled.logprob))
        body["top_logprobs"].append(None if entry is None else top_by_text(entry, num_top, name))
        body["text_offset"].append(num_chars)
        num_chars += len(detokenizer.push((token_id,)))
    return body


def top_by_text(entry: PositionLogprobs, num_top: int, name: TokenName) -> dict[str, float]:
    """OpenAI's legacy map from the text of the token itself, and of the most likely ones, to logprobs; clients of vLLM
    read its first key as the token."""
    tokens = (entry.sampled, *entry.top[:num_top])
    return {name(token.token_id): finite(token.logprob) for token in tokens}
