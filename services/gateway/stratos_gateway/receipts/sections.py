"""Sections of a receipt that are the same for every route: what was asked for, and how it ended. No text of clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratos.common.errors import StratosError
from stratos.core.ledger.pricing import Times
from stratos.core.ledger.receipt import MAX_ITEMS
from stratos_gateway.answering.draft import outcome_of
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.http.errors import public_error, shed_reason


def request_section(request: ClientRequest[Any]) -> dict[str, Any]:
    """Terms of the request, and whose key it carried; ``constrained`` says what kind of grammar its output obeys.

    ``model`` is the name that was asked for, ``base_model`` and ``revision`` the model that answers.
    ``reasoning_budget`` is the most tokens of its reasoning, where that is bounded; ``ignored`` are fields that it had
    and that mean nothing here: those known to us, as the header's unknown ones are texts of the client.
    """
    tenant, prepared = request.tenant, request.prepared
    asked: dict[str, Any] = {"constrained": prepared.constrained} if prepared.constrained else {}
    if prepared.reasoning_budget is not None:
        asked["reasoning_budget"] = prepared.reasoning_budget
    if prepared.ignored:
        asked["ignored"] = list(prepared.ignored[:MAX_ITEMS])
    served = {"base_model": prepared.base_model, "revision": prepared.model_digest} if prepared.model_digest else {}
    return {
        "operation": prepared.operation,
        "model": prepared.model,
        **served,
        "key_id": tenant.key_id,
        "plan": tenant.plan.name,
        "class": tenant.priority_class,
        "sequences": prepared.num_sequences,
        "most_tokens": prepared.num_tokens,
        **asked,
    }


def answer_section(request: ClientRequest[Any], now_s: float) -> dict[str, Any]:
    """How it ended; ``now_s`` is in monotonic seconds."""
    error = request.error
    section: dict[str, Any] = {
        "outcome": outcome_of(error).value,
        "duration_ms": round((now_s - request.arrival_s) * 1e3, 1),
    }
    if isinstance(error, StratosError):
        shown = public_error(error)
        section |= {"status": request.exchange.status or shown.http_status, "error": shown.code}
        section |= {"shed_reason": reason} if (reason := shed_reason(error)) else {}
        section |= _queue(error)
    elif request.exchange.status:
        section["status"] = request.exchange.status
    if request.declined is not None:
        section |= {"gave_way": request.declined.code, **_queue(request.declined)}
    if request.output is not None:
        usage = request.output.usage
        section |= {
            "prompt_tokens": usage.num_prompt_tokens,
            "output_tokens": usage.num_output_tokens,
            "cached_tokens": usage.num_cached_tokens,
            **({"cache_write_tokens": usage.writes.total} if usage.writes.total else {}),
            **_times(request.output.times(request.received_s)),
        }
    return section


def _times(found: Sequence[Times]) -> dict[str, float]:
    """The first token of any prompt, and the mean between tokens over all."""
    firsts = [times.ttft_us for times in found if times.ttft_us is not None]
    gaps = [times.itl_us for times in found if times.itl_us is not None]
    section = {"ttft_ms": round(min(firsts) / 1e3, 2)} if firsts else {}
    return section | ({"itl_ms": round(sum(gaps) / len(gaps) / 1e3, 2)} if gaps else {})


def _queue(error: StratosError) -> dict[str, Any]:
    """How many were before the request while it waited for the placement that it did not get."""
    samples = error.queue_samples
    return {"queue": [list(pair) for pair in zip(samples[::2], samples[1::2], strict=False)]} if samples else {}
