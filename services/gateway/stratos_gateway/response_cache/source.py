"""Kept answers as a source: a request that another one was answered for already gets the same chunks again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from stratos.common.ids import new_id
from stratos.core.ledger.entry import RequestOutcome
from stratos.core.ledger.pricing import Times, TokenCounts
from stratos.core.tenancy.plan import Plan
from stratos_gateway.answering.draft import Draft
from stratos_gateway.answering.output import ChunkOutput, merge_chunks
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.generation.fanout import Fanout
from stratos_gateway.generation.prompt_names import NO_PREFIX_HASHES, PrefixHashes
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.response_cache.cache import KeptAnswer, KeptPrompt, ResponseCache
from stratos_gateway.response_cache.key import response_key
from stratos_gateway.response_cache.shared import SharedAnswers


class KeptOutput(ChunkOutput):
    """A kept answer for one more request.

    Args:
        answer: from the cache.
        plan: of the tenant.
        specs: of the request.
    """

    def __init__(self, answer: KeptAnswer, plan: Plan, specs: Sequence[GenerationSpec]) -> None:
        self._answer = answer
        self._plan = plan
        self._specs = specs
        self._left = answer.copies()
        self._hashes = [""] * len(specs)

    async def news(self) -> list[ChoiceChunk]:
        """All chunks at once."""
        chunks, self._left = self._left, []
        return chunks

    async def finish(self) -> list[ChoiceChunk]:
        """All chunks at once."""
        return await self.news()

    def end_choice(self, index: int, reason: str) -> None:
        """Nothing runs that could be ended."""

    @property
    def usage(self) -> Usage:
        """Counts that the first client was told."""
        return self._answer.usage

    @property
    def num_limited_tokens(self) -> int:
        """None: nothing was computed."""
        return 0

    def sections(self) -> Mapping[str, Any]:
        """The cache answered."""
        return {"source": "response_cache"}

    async def hash_prompts(self, hashes: PrefixHashes) -> None:
        """Hash what its entries tell of the prompts, with a turn of the event loop for others between two of them."""
        for number, spec in enumerate(self._specs):
            if number:
                await asyncio.sleep(0)
            self._hashes[number] = hashes.of(spec)

    def drafts(self, error: BaseException | None) -> Sequence[Draft]:
        """One per prompt: its full cost, and the discount for it; an answer that was not taken is not billed."""
        return [
            Draft(
                request_id=new_id("gen"),
                tenant=spec.terms.tenant,
                plan=self._plan,
                tag=spec.meter,
                outcome=RequestOutcome.REPLAYED,
                counts=TokenCounts(
                    num_prompt=prompt.num_prompt_tokens,
                    num_cached=prompt.num_cached_tokens,
                    num_output=prompt.num_output_tokens,
                ),
                times=Times(),
                prefix_hashes=hashes,
            )
            for spec, prompt, hashes in zip(self._specs, self._answer.prompts, self._hashes, strict=True)
            if spec.meter is not None
        ]


class CacheSource:
    """Answers from the cache, and fills it from the answers that this platform's workers gave.

    Args:
        cache: of the process.
        shared: of all gateways; ``None`` shares nothing.
        hashes: of prompts, for their entries.
    """

    def __init__(
        self, cache: ResponseCache, shared: SharedAnswers | None = None, hashes: PrefixHashes = NO_PREFIX_HASHES
    ) -> None:
        self._cache = cache
        self._shared = shared
        self._hashes = hashes

    def open(self, request: ClientRequest[PreparedGeneration]) -> AbstractAsyncContextManager[KeptOutput | None] | None:
        """The kept answer; without one, that of the next source is kept once it was sent."""
        prepared, request.when_sent = request.prepared, None
        if request.screen is not None or request.is_exact:
            return None
        key = response_key(request.tenant.plan, prepared.options, prepared.specs)
        return None if key is None else self._kept(key, request)

    @asynccontextmanager
    async def _kept(self, key: bytes, request: ClientRequest[PreparedGeneration]) -> AsyncIterator[KeptOutput | None]:
        answer = await self._find(key, request.tenant.id)
        if answer is None:
            request.when_sent = partial(self._keep, key, request)
            yield None
            return
        output = KeptOutput(answer, request.tenant.plan, request.prepared.specs)
        try:
            yield output
        except BaseException:
            request.output, request.num_claimed_tokens = None, 0  # it counts once it was taken
            raise
        await output.hash_prompts(self._hashes)

    async def _find(self, key: bytes, tenant_id: str) -> KeptAnswer | None:
        """Find an answer that this gateway has kept, else one of another."""
        answer = self._cache.find(key)
        if answer is None and self._shared is not None and (found := await self._shared.find(key, tenant_id)):
            answer, left_s = found
            self._cache.keep(key, tenant_id, answer, left_s)
        self._cache.count(answer)
        return answer

    def _keep(self, key: bytes, request: ClientRequest[PreparedGeneration], sent: Sequence[ChoiceChunk]) -> None:
        output, tenant = request.output, request.tenant
        if not isinstance(output, Fanout) or not all(g.transcript.is_complete for g in output.generations):
            return
        if any(chunk.continuation for chunk in sent):
            return  # each of them goes on with its own answer
        prompts = tuple(
            KeptPrompt(
                num_prompt_tokens=len(generation.spec.prompt_ids),
                num_cached_tokens=generation.transcript.num_cached_tokens,
                num_output_tokens=generation.transcript.num_output_tokens,
            )
            for generation in output.generations
        )
        kept = KeptAnswer(chunks=tuple(merge_chunks(sent)), prompts=prompts)
        if kept.is_cut_short([generation.spec.sampling.max_tokens for generation in output.generations]):
            return  # for want of memory: the next one may get further
        self._cache.keep(key, tenant.id, kept, tenant.plan.response_ttl_s)
        if self._shared is not None:
            self._shared.keep(key, tenant.id, kept, tenant.plan.response_ttl_s)
