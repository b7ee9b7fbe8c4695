"""Where a prompt is computed: here, or at a source.  A counted policy, and its reason is in the receipt.

no prefill endpoint in the placement      -> here (LOCAL_NO_ENDPOINT)
log probabilities of the prompt wanted    -> here (LOCAL_PROMPT_LOGPROBS): a source does not make logits
uncached tail <= local_prefill_max_tokens -> here (LOCAL_SHORT_TAIL): shipping it would cost more than computing it
otherwise                                 -> hand-off; when every source fails, here (LOCAL_FALLBACK)
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from stratos.core.generation import PrefillPath
from stratos.worker.adapter_cache import AdapterCache
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.handoff.receiver import HandoffReceiver
from stratos.worker.metrics import WorkerMetrics
from stratos.worker.records import PromptOrigin, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacerConfig:
    """The policy's one number."""

    local_prefill_max_tokens: int


class PromptPlacer:
    """Implements ``request_table.Placer``."""

    def __init__(
        self,
        engine: EngineClient,
        receiver: HandoffReceiver,
        adapters: AdapterCache,
        metrics: WorkerMetrics,
        config: PlacerConfig,
    ) -> None:
        self._engine = engine
        self._receiver = receiver
        self._adapters = adapters
        self._metrics = metrics
        self._config = config

    async def place(self, record: RequestRecord, stack: AsyncExitStack) -> None:
        """See ``request_table.Placer``."""
        request = record.submission.request
        if request.sampling.grammar is not None:
            await self._engine.prepare_grammar(request.sampling.grammar)
        terms = request.terms
        num_cached = await self._engine.match(request.prompt_ids, terms.adapter.digest, terms.cache_salt)
        path = self._local_reason(record, len(request.prompt_ids) - 1 - num_cached)
        if path is None and await self._receiver.receive(record, stack):
            return
        await self._compute_here(record, path or PrefillPath.LOCAL_FALLBACK, stack)

    def _local_reason(self, record: RequestRecord, num_tail_tokens: int) -> PrefillPath | None:
        if not record.submission.prefill:
            return PrefillPath.LOCAL_NO_ENDPOINT
        if record.submission.request.sampling.num_prompt_logprobs is not None:
            return PrefillPath.LOCAL_PROMPT_LOGPROBS
        if num_tail_tokens <= self._config.local_prefill_max_tokens:
            return PrefillPath.LOCAL_SHORT_TAIL
        return None

    async def _compute_here(self, record: RequestRecord, path: PrefillPath, stack: AsyncExitStack) -> None:
        request = record.submission.request
        if request.terms.adapter.digest:
            await self._adapters.hold(request.terms.adapter, stack)
        self._metrics.local_prefills.labels(path).inc()
        record.origin = PromptOrigin(path=path)
        await self._engine.add(record.submission.request)  # without choices cancelled meanwhile
