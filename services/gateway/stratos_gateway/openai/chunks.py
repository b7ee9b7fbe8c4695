"""Pieces of an answer, before they have the shape of any route: text, tokens and counts of each choice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stratos.common.changed import record
from stratos.core.requests.pins import NO_WRITES, CacheWrites
from stratos.core.requests.records import FinishReason, PositionLogprobs


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """Log probabilities of one emitted token."""

    logprobs: PositionLogprobs
    text_offset: int
    """Characters of the choice's text before this token."""


@dataclass(slots=True)
class ChoiceChunk:
    """News of a choice since its last chunk."""

    index: int
    text: str
    token_ids: list[int]
    entries: list[TokenEntry]
    finish_reason: str | None
    is_first: bool
    num_withheld: int = 0
    """Tokens of this text whose ids are told later; those that were counted so before are taken off again."""
    prompt_logprobs: Sequence[PositionLogprobs] = ()
    """Log probabilities of the prompt's tokens from the second on, with the first chunk, if asked for."""
    stop: str | None = None
    """Stop string that ended it, with its finish reason."""
    cause: FinishReason | None = None
    """Why its worker ended it; ``None`` where a stop string, or this side, did."""
    continuation: str = ""
    """Token with which the answer goes on, with its last chunk; empty where it does not."""
    is_open: bool = False
    """It ends a choice that another answer may go on with: what is held back is for that one to show."""

    @property
    def ends_text(self) -> bool:
        """No text of the choice follows, in whichever answer."""
        return self.finish_reason is not None and not self.is_open


def continuation_of(chunks: Iterable[ChoiceChunk]) -> dict[str, str]:
    """The field of an answer that can be gone on with, which one of its chunks has; nothing for others."""
    return next(({"continuation_token": chunk.continuation} for chunk in chunks if chunk.continuation), {})


@record(frozen=True, slots=True, kw_only=False)
class Usage:
    """Token counts of one request."""

    num_prompt_tokens: int
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    writes: CacheWrites = NO_WRITES
    """Tokens of the prompt whose KV is kept for the client since this request."""

    def body(self, num_reasoning: int | None = None) -> dict[str, Any]:
        """In OpenAI's shape.

        Args:
            num_reasoning: tokens of reasoning among the output's, where reasoning is told apart.
        """
        written = {"cache_write_tokens": self.writes.total} if self.writes.total else {}
        details = {} if num_reasoning is None else {"completion_tokens_details": {"reasoning_tokens": num_reasoning}}
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens, **written},
            **details,
        }
