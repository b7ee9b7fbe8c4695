"""Where a prompt is computed: here, or at a source.  A counted policy, and its reason is in the receipt.

no prefill endpoint in the placement      -> here (LOCAL_NO_ENDPOINT)
log probabilities of the prompt wanted    -> here (LOCAL_PROMPT_LOGPROBS): a source does not make logits
uncached tail <= local_prefill_max_tokens -> here (LOCAL_SHORT_TAIL): shipping it would cost more than computing it
otherwise                                 -> hand-off; when every source fails, here: all of it (LOCAL_FALLBACK),
                                             or what is left behind the verified prefix (LOCAL_TAIL)
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from stratos.core.generation import PrefillPath
from stratos.worker.context import WorkerContext
from stratos.worker.handoff.receiver import HandoffReceiver
from stratos.worker.records import PromptOrigin, RequestRecord
from stratos.worker.settings import HandoffConfig


class PrefillPolicy:
    """Decides where the prompt of a request is computed, and has it computed there."""

    def __init__(self, context: WorkerContext, receiver: HandoffReceiver, config: HandoffConfig) -> None:
        self._context = context
        self._receiver = receiver
        self._config = config

    async def prefill(self, record: RequestRecord, stack: AsyncExitStack) -> None:
        """Bring the prompt's KV to this worker and let the request join the batch.

        What must be given back when the request ends is pushed onto ``stack``. Sets ``record.origin``.
        """
        request, engine = record.submission.request, self._context.engine
        if request.sampling.grammar is not None:
            await engine.prepare_grammar(request.sampling.grammar)
        terms = request.terms
        token_ids = engine.info.handed_ids(request)
        await self._context.kv_loads.load(token_ids, terms)
        num_cached = await engine.match(token_ids, terms.adapter.digest, terms.cache_salt)
        path = self.decide(record, len(token_ids) - 1 - num_cached)
        origin = await self._receiver.receive(record, stack) if path is None else PromptOrigin(path=path)
        if origin is not None:
            await self._compute_here(record, origin, stack)

    def decide(self, record: RequestRecord, num_tail_tokens: int) -> PrefillPath | None:
        """The reason to compute here; ``None`` for a hand-off.

        Args:
            record: the request.
            num_tail_tokens: tokens that a hand-off would be about and that are not in this worker's prefix cache.
        """
        if not record.submission.prefill:
            return PrefillPath.LOCAL_NO_ENDPOINT
        if record.submission.request.sampling.num_prompt_logprobs is not None:
            return PrefillPath.LOCAL_PROMPT_LOGPROBS
        if num_tail_tokens <= self._config.local_prefill_max_tokens:
            return PrefillPath.LOCAL_SHORT_TAIL
        return None

    async def _compute_here(self, record: RequestRecord, origin: PromptOrigin, stack: AsyncExitStack) -> None:
        request = record.submission.request
        if request.terms.adapter.digest:
            await self._context.adapters.hold(request.terms.adapter, stack)
        self._context.metrics.local_prefills.labels(origin.path).inc()
        record.origin = origin
        # A choice that was cancelled during the wait is no longer in the submission.
        await self._context.engine.add(record.submission.request)
        record.is_admitted = True
