"""The response cache: whole answers, given again to requests whose output would be the same.

Kept are answers whose output is determined (temperature 0, or a seed of the client's) and that finished, in the memory
of each gateway.  The cache salt of the request is part of the key, so answers are shared exactly as prefixes are: by a
tenant, by one of its keys, or not at all.  How an answer is shown (a stream, log probabilities as text) is no part of
it: it is rendered for each request.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stratos.common.clock import Clock
from stratos.core.tenancy.plan import CachePolicy, Plan
from stratos_gateway.generation.generation import GenerationSpec
from stratos_gateway.generation.journal import ChoiceChunk
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.requests import GenerationOptions
from stratos_gateway.openai.responses import Usage

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

    def is_cut_short(self, max_tokens: int) -> bool:
        """Some choice ended for its length before ``max_tokens``."""
        return any(c.finish_reason == "length" and len(c.token_ids) < max_tokens for c in self.chunks)

    @property
    def usage(self) -> Usage:
        """As the first client was told."""
        return Usage(
            sum(prompt.num_prompt_tokens for prompt in self.prompts),
            sum(prompt.num_output_tokens for prompt in self.prompts),
            sum(prompt.num_cached_tokens for prompt in self.prompts),
        )

    @property
    def num_bytes(self) -> int:
        """Of memory, roughly."""
        return sum(
            _CHUNK_BYTES
            + 4 * len(chunk.text)
            + _TOKEN_BYTES * len(chunk.token_ids)
            + _ENTRY_BYTES * (len(chunk.entries) + len(chunk.prompt_logprobs))
            for chunk in self.chunks
        )


@dataclass(frozen=True, slots=True)
class _Kept:
    tenant: str
    answer: KeptAnswer
    until_s: float


def response_key(plan: Plan, options: GenerationOptions, specs: Sequence[GenerationSpec]) -> bytes | None:
    """What two requests with the same answer have in common; ``None`` where answers are not kept."""
    if not plan.response_cache or plan.cache_policy is CachePolicy.OFF:
        return None
    if options.seed is None and any(spec.sampling.temperature > 0 for spec in specs):
        return None
    seed = options.seed if any(spec.sampling.temperature > 0 for spec in specs) else None
    parts = [
        (s.terms.tenant, s.terms.cache_salt, s.model_digest, s.terms.adapter.digest, s.prompt_ids, s.sampling,
         s.continues_prompt)
        for s in specs
    ]  # fmt: skip
    return hashlib.sha256(repr((parts, options.n, options.stop, options.include_stop, seed)).encode()).digest()


def merge_chunks(chunks: Sequence[ChoiceChunk]) -> tuple[ChoiceChunk, ...]:
    """The chunks of a stream as one per choice."""
    merged: dict[int, ChoiceChunk] = {}
    for chunk in chunks:
        known = merged.get(chunk.index)
        if known is None:
            merged[chunk.index] = replace(chunk, token_ids=list(chunk.token_ids), entries=list(chunk.entries))
            continue
        known.text += chunk.text
        known.token_ids += chunk.token_ids
        known.entries += chunk.entries
        known.finish_reason = chunk.finish_reason
    return tuple(merged.values())


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
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._num_bytes = 0

    def find(self, key: bytes) -> KeptAnswer | None:
        """The answer of an equal request, if it is fresh."""
        found = self._kept.get(key)
        if found is not None and found.until_s <= self._clock.now():
            self._drop(key)
            found = None
        self._metrics.responses.labels("miss" if found is None else "hit").inc()
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found.answer

    def keep(self, key: bytes, tenant: str, answer: KeptAnswer, ttl_s: float) -> None:
        """Keep an answer of a tenant for a while."""
        if answer.num_bytes > self._max_bytes:
            return
        if key in self._kept:
            self._drop(key)
        self._kept[key] = _Kept(tenant, answer, self._clock.now() + ttl_s)
        self._num_bytes += answer.num_bytes
        while self._num_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def forget_tenant(self, tenant: str) -> None:
        """Drop every answer of a tenant."""
        for key in [key for key, kept in self._kept.items() if kept.tenant == tenant]:
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        self._num_bytes -= self._kept.pop(key).answer.num_bytes
