"""Spans of a request at its decode worker, from the stage times that its record has anyway."""

from __future__ import annotations

from stratos.rpc.tracing import Span, Tracing
from stratos.worker.records import RequestRecord


def describe_decode(tracing: Tracing, span: Span, record: RequestRecord) -> None:
    """Fill the span of a request that is over, and add the spans of its engine's work.

    The engine's two spans lie between steps: from when the scheduler first took the request to the end of the step
    that sampled its first token, and from there to the end of the step that sampled its last one.
    """
    if not span.is_recording:
        return
    if record.error is not None:
        span.fail(record.error.code)
    span.set(output_tokens=record.num_output_tokens)
    if record.stats is None or record.first_token_s is None:
        return
    receipt = record.receipt()
    span.set(
        input_tokens=receipt.num_prompt_tokens,
        cached_tokens=receipt.num_cached_tokens,
        transferred_tokens=receipt.num_transferred_tokens,
        computed_tokens=receipt.num_recomputed_tokens,
        prefill_path=receipt.prefill_path.name.lower(),
        prefill_worker_id=receipt.prefill_worker_id or None,
        queue_ns=receipt.queue_ns,
        ttft_ns=round((record.first_token_s - record.submission.request.terms.arrival_s) * 1e9),
    )
    begin_s = record.stats.first_scheduled_s
    if begin_s is not None:
        prefill = tracing.span("engine.prefill", span.trace, begin_s=begin_s)
        prefill.end(record.first_token_s)
    if record.last_token_s is not None:
        decode = tracing.span("engine.decode", span.trace, begin_s=record.first_token_s)
        decode.set(output_tokens=record.num_output_tokens)
        decode.end(record.last_token_s)
