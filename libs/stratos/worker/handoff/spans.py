"""Spans of a hand-off: ``fetch`` at its receiver, and in it ``prefill`` at its source."""

from __future__ import annotations

from stratos.core.placement import WorkerRef
from stratos.rpc.tracing import Span, SpanKind, Tracing
from stratos.worker.handoff.records import Finish, Intent
from stratos.worker.handoff.source_jobs import PrefillProgress
from stratos.worker.records import RequestRecord


def fetch_span(tracing: Tracing, source: WorkerRef, record: RequestRecord) -> Span:
    """One leg at its receiver; a child of the attempt and not of ``decode``, which is lost with a killed worker."""
    return tracing.span(
        "fetch",
        record.submission.trace,
        kind=SpanKind.CLIENT,
        generation_id=record.key.request_id,
        attempt=record.key.attempt,
        source_worker_id=source.worker_id,
    )


def prefill_span(tracing: Tracing, intent: Intent, worker_id: str) -> Span:
    """One leg at its source."""
    return tracing.span(
        "prefill",
        intent.trace,
        kind=SpanKind.SERVER,
        generation_id=intent.request_id,
        attempt=intent.attempt,
        worker_id=worker_id,
    )


def describe_prefill(tracing: Tracing, span: Span, progress: PrefillProgress | None, finish: Finish | None) -> None:
    """Fill the span of a leg that is over, and add the span of its engine's steps, from the first chunk to the last.

    Args:
        tracing: of the source.
        span: of the leg.
        progress: of the job, if the engine took it.
        finish: what the receiver was told, if everything was sent.
    """
    if not span.is_recording or progress is None:
        return
    if finish is not None:
        span.set(
            queue_ns=finish.queue_ns,
            prefill_ns=finish.prefill_ns,
            frames=finish.num_frames,
            computed_tokens=finish.num_computed_tokens,
            cached_tokens=finish.num_cached_tokens,
        )
    if progress.began_s is not None:
        steps = tracing.span("engine.prefill", span.trace, begin_s=progress.began_s, steps=progress.num_steps)
        steps.end(progress.ended_s)
