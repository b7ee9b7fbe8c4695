"""gRPC edge of ``KvSourceService``, served by both roles: Fetch streams become ``SourceLeg`` runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stratos.api.kv.v1 import source_pb2, source_pb2_grpc
from stratos.common.errors import BadRequest, Draining, StratosError, WorkerLost
from stratos.rpc.tracing import Span, SpanKind, Tracing
from stratos.worker.handoff.context import HandoffContext
from stratos.worker.handoff.pairing import check_pairing, choose_transport
from stratos.worker.handoff.records import Intent, ReceiverMessage, Refused
from stratos.worker.handoff.source_leg import SourceLeg
from stratos.worker.handoff.source_peers import MAX_HASHES
from stratos.worker.handoff.streams import SourceStream

HASH_BYTES = 32

logger = logging.getLogger(__name__)


class SourceServicer(source_pb2_grpc.KvSourceServiceServicer):
    """Serves KV of this worker. ``context`` is called per request: the engine exists only after ``open``."""

    def __init__(self, context: Callable[[], HandoffContext]) -> None:
        self._context = context

    async def Fetch(self, request_iterator: Any, context: Any) -> None:
        """One hand-off; what prevents it is sent as ``Refused``."""
        shared = self._context()
        stream = SourceStream(context, shared.clock)
        with shared.gate.source_leg():
            outcome, label = "lost", "?"
            try:
                intent, transport = _check(await stream.receive(), shared)
                label = intent.label
                logger.debug("request %.400r, attempt %d, wants its prompt's KV", label, intent.attempt)
                leg = SourceLeg(shared, stream, intent, transport)
                try:
                    outcome = await _run(leg, intent, shared)
                finally:
                    num_tokens = leg.num_sent_tokens if outcome == "committed" else 0
                    shared.gate.note_fetched(intent.request_id, num_tokens)
                    shared.sent.note(intent.receiver, intent.identity, intent.terms, intent.token_ids[: leg.sent_end])
            except StratosError as error:
                outcome = error.code
                logger.info("hand-off of request %.400r ended as source: %s", label, error.message)
                with suppress(WorkerLost):
                    await stream.send(Refused(error))
            finally:
                shared.metrics.handoffs.labels("source", outcome).inc()

    async def Invalidate(self, request: source_pb2.InvalidateRequest, context: Any) -> source_pb2.InvalidateResponse:
        """Forget blocks whose content cannot be trusted."""
        hashes = list(request.block_hashes)
        if len(hashes) > MAX_HASHES or any(len(name) != HASH_BYTES for name in hashes):
            raise BadRequest(
                f"block_hashes must be at most {MAX_HASHES} names of {HASH_BYTES} bytes", param="block_hashes"
            )
        num_forgotten = await self._context().engine.forget_blocks(hashes)
        self._context().metrics.recalled_blocks.inc(num_forgotten)
        return source_pb2.InvalidateResponse(num_forgotten=num_forgotten)


def _check(intent: ReceiverMessage | None, context: HandoffContext) -> tuple[Intent, str]:
    if not isinstance(intent, Intent):
        raise BadRequest("the first message of a Fetch stream must be Intent")
    context.gate.check_trusted()
    if context.gate.is_asleep:
        raise Draining("this worker sleeps; its KV is gone")
    if context.gate.is_draining and intent.compute:
        raise Draining("this worker is leaving and computes nothing new")
    if intent.leg in context.jobs or not intent.leg:
        raise BadRequest("the leg must be new", param="leg")
    info = context.engine.info
    if not intent.token_ids or max(intent.token_ids) >= info.vocab_size or len(intent.token_ids) > info.max_model_len:
        raise BadRequest("token_ids must be a prompt of this model", param="token_ids")
    check_pairing(info.identity, intent.identity, info.geometry, intent.geometry)
    transports = context.transports
    theirs = intent.capabilities
    spoken = transports.names_for(theirs.device)
    return intent, choose_transport(spoken, intent.transports, transports.capabilities, theirs)


async def _run(leg: SourceLeg, intent: Intent, context: HandoffContext) -> str:
    """Run a leg inside its span; returns the outcome for the counters."""
    with context.tracing.span(
        "prefill",
        intent.trace,
        kind=SpanKind.SERVER,
        generation_id=intent.request_id,
        attempt=intent.attempt,
        worker_id=context.me().worker_id,
    ) as span:
        try:
            outcome = await leg.run()
            span.set(outcome=outcome)
        finally:
            _describe(span, leg, context.tracing)
    return outcome


def _describe(span: Span, leg: SourceLeg, tracing: Tracing) -> None:
    """Fill the span of a leg that is over, and add the span of its engine's steps, from the first chunk to the last."""
    finish, progress = leg.finish, leg.progress
    if finish is not None:
        span.set(
            queue_ns=finish.queue_ns,
            prefill_ns=finish.prefill_ns,
            frames=finish.num_frames,
            computed_tokens=finish.num_computed_tokens,
            cached_tokens=finish.num_cached_tokens,
        )
    if span.is_recording and progress is not None and progress.began_s is not None:
        steps = tracing.span("engine.prefill", span.trace, begin_s=progress.began_s, steps=progress.num_steps)
        steps.end(progress.ended_s)
