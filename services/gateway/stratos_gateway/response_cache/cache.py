"""Whole answers in memory, given again to requests whose output would be the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stratos.common.clock import Clock
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.chunks import ChoiceChunk, Usage

_CHUNK_BYTES, _TOKEN_BYTES, _ENTRY_BYTES = 500, 40, 2000
"""Memory of an answer, roughly and rather too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPrompt:
    """One prompt of an answer, as it was counted."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """An answer of a request that finished."""

    chunks: tuple[ChoiceChunk, ...]
    """One per choice."""
    prompts: tuple[KeptPrompt, ...]

    def copies(self) -> list[ChoiceChunk]:
        """The chunks, for one more answer."""
        return [replace(chunk) for chunk in self.chunks]

    def is_cut_short(self, most_tokens: Sequence[int]) -> bool:
        """Some choice ended for its length before it had as many tokens as its prompt leaves room for."""
        num_choices = len(self.chunks) // len(most_tokens)
        return any(
            chunk.finish_reason == "length" and len(chunk.token_ids) < most_tokens[chunk.index // num_choices]
            for chunk in self.chunks
        )

    @property
    def usage(self) -> Usage:
        """Counts that the first client was told."""
        return Usage(
            sum(prompt.num_prompt_tokens for prompt in self.prompts),
            sum(prompt.num_output_tokens for prompt in self.prompts),
            sum(prompt.num_cached_tokens for prompt in self.prompts),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of memory, roughly."""
        return sum(
            _CHUNK_BYTES
            + 4 * len(chunk.text)
            + _TOKEN_BYTES * len(chunk.token_ids)
            + _ENTRY_BYTES * (len(chunk.entries) + len(chunk.prompt_logprobs))
            for chunk in self.chunks
        )


@dataclass(frozen=True, slots=True)
class _TimedAnswer:
    tenant: str
    answer: KeptAnswer
    until_s: float


class ResponseCache:
    """Belongs to the event loop.

    Args:
        clock: monotonic.
        max_bytes: the least recently used answers beyond this are dropped; 0 keeps none.
        metrics: of the process.
    """

    def __init__(self, clock: Clock, max_bytes: int, metrics: GatewayMetrics) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._metrics = metrics
        self._kept: OrderedDict[bytes, _TimedAnswer] = OrderedDict()
        self._num_bytes = 0

    def find(self, key: bytes) -> KeptAnswer | None:
        """The answer of an equal request, if it is fresh."""
        found = self._kept.get(key)
        if found is not None and found.until_s <= self._clock.now():
            self._drop(key)
            found = None
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found.answer

    def count(self, answer: KeptAnswer | None) -> None:
        """A request was answered with a kept answer, or there was none."""
        self._metrics.responses.labels("miss" if answer is None else "hit").inc()

    def keep(self, key: bytes, tenant: str, answer: KeptAnswer, ttl_s: float) -> None:
        """Keep an answer of a tenant for a while."""
        if answer.num_bytes > self._max_bytes:
            return
        if key in self._kept:
            self._drop(key)
        self._kept[key] = _TimedAnswer(tenant, answer, self._clock.now() + ttl_s)
        self._num_bytes += answer.num_bytes
        while self._num_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def forget_tenant(self, tenant: str) -> None:
        """Drop every answer of a tenant."""
        for key in [key for key, kept in self._kept.items() if kept.tenant == tenant]:
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        self._num_bytes -= self._kept.pop(key).answer.num_bytes
