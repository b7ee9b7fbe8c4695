"""Token ids of a body counted before any of them is looked at, and work that is too long for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from stratos.common.errors import ContextLengthExceeded
from stratos.core.requests.limits import MAX_EMBEDDING_INPUTS, MAX_EMBEDDING_TOKENS

T = TypeVar("T")
INLINE_IDS = 4096
"""Token ids that are checked or decoded on the event loop, in well under a millisecond."""


def num_token_ids(prompt: Any) -> list[int]:
    """Number of token ids in each prompt or input of a body; empty where they are texts, or something else."""
    if not isinstance(prompt, list) or not prompt:
        return []
    if isinstance(prompt[0], list):
        return [len(entry) for entry in prompt[:MAX_EMBEDDING_INPUTS] if isinstance(entry, list)]
    return [] if isinstance(prompt[0], str) else [len(prompt)]


def check_counts(counts: list[int], max_input_tokens: int, param: str) -> None:
    """Refuse token ids by their number alone.

    Raises:
        ContextLengthExceeded: there are more than any prompt may have, or than any request.
    """
    longest = max(counts, default=0)
    if longest > max_input_tokens:
        raise ContextLengthExceeded(f"{param} has {longest} tokens, the limit is {max_input_tokens}", param=param)
    if sum(counts) > MAX_EMBEDDING_TOKENS:
        text = f"{param} has {sum(counts)} tokens together, the limit is {MAX_EMBEDDING_TOKENS}"
        raise ContextLengthExceeded(text, param=param)


async def off_loop(num_ids: int, work: Callable[[], T]) -> T:
    """Result of work that takes its time by the number of token ids: in a thread where there are many."""
    return work() if num_ids <= INLINE_IDS else await asyncio.to_thread(work)
