"""What a request leaves at its end, and its entry in the ledger.

    finished                      every token of the answer
    the client left a stream      what was written to it
    the client left, no stream    what had been decoded for it
    the platform failed a stream  what was written to it
    the platform failed, else     nothing

The prompt is charged with the first token, once, or with the vectors that were asked for; tokens after a stop string,
and a prompt that a recovery computed again, are in none of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stratos.core.generation import Receipt
from stratos.core.ledger.entry import LedgerEntry, RequestOutcome, StageTimes
from stratos.core.ledger.pricing import Times, TokenCounts, is_promise_kept, price_request
from stratos.core.ledger.usage import MeterTag, UsageCount
from stratos.core.tenancy.plan import Plan

_NS_PER_US = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One prompt of an ended request, as its gateway saw it."""

    request_id: str
    tenant: str
    plan: Plan
    tag: MeterTag
    outcome: RequestOutcome
    counts: TokenCounts
    times: Times
    receipt: Receipt | None = None
    last_attempt: int | None = None
    """Whose count is waited for; ``None`` where nothing ran."""
    is_platform_failure: bool = False
    """The platform, and not the request, was the reason of its failure."""
    is_external: bool = False
    external_cost: int = 0
    """Micro-units, where it ran at the external endpoint."""


def charged_counts(num_prompt: int, num_cached: int, num_output: int) -> TokenCounts:
    """Of an answer in text: without a token of it, its prompt is not charged."""
    return (
        TokenCounts(num_prompt=num_prompt, num_cached=num_cached, num_output=num_output)
        if num_output
        else TokenCounts()
    )


def own_entry(draft: Draft, counted: Mapping[int, UsageCount]) -> LedgerEntry:
    """The entry of a request of this gateway.

    Args:
        draft: what it saw.
        counted: what workers said of its attempts.
    """
    is_kept = is_promise_kept(draft.plan, draft.times, has_failed=draft.is_platform_failure)
    is_replay = draft.outcome is RequestOutcome.REPLAYED
    if is_replay:
        is_kept = None
    return LedgerEntry(
        request_id=draft.request_id,
        tenant=draft.tenant,
        plan=draft.plan.name,
        tag=draft.tag,
        outcome=draft.outcome,
        counts=draft.counts,
        amounts=price_request(draft.plan, draft.tag.model_size, draft.counts, is_replay=is_replay, is_kept=is_kept),
        stages=_stages(draft.receipt, counted),
        times=draft.times,
        is_kept=is_kept,
        is_external=draft.is_external,
        external_cost=draft.external_cost,
    )


def claimed_entry(count: UsageCount, plan: Plan) -> LedgerEntry:
    """The entry of a request whose gateway died: of what the client saw nothing is known, so no promise is judged."""
    charged = charged_counts(count.num_prompt_tokens, count.num_cached_tokens, count.num_output_tokens)
    return LedgerEntry(
        request_id=count.key.request_id,
        tenant=count.tenant,
        plan=plan.name,
        tag=replace(count.tag, num_cached_tokens=0),
        outcome=RequestOutcome.RECOVERED,
        counts=charged,
        amounts=price_request(plan, count.tag.model_size, charged),
        stages=_stages(None, {count.key.attempt: count}),
        rank=count.key.attempt,
    )


def _stages(receipt: Receipt | None, counted: Mapping[int, UsageCount]) -> StageTimes:
    """Waiting and computing of the attempt that began the answer; devices of all attempts."""
    queue_ns, prefill_ns = (0, 0) if receipt is None else (receipt.queue_ns, receipt.prefill_ns)
    if receipt is None and counted:
        last = counted[max(counted)]
        queue_ns, prefill_ns = last.queue_ns, last.prefill_ns
    return StageTimes(
        queue_us=queue_ns // _NS_PER_US,
        prefill_us=prefill_ns // _NS_PER_US,
        decode_us=sum(count.decode_ns for count in counted.values()) // _NS_PER_US,
        device_us=sum(count.device_ns for count in counted.values()) // _NS_PER_US,
    )
