"""Entries of the ledger: of requests that ended here, and of those whose gateway died."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stratos.core.generation import Receipt
from stratos.core.ledger.entry import NO_TIMES, LedgerEntry, RequestOutcome, StageTimes, claim_rank
from stratos.core.ledger.pricing import TokenCounts, is_promise_kept, price_request
from stratos.core.ledger.usage import UsageCount
from stratos.core.ledger.windows import window_share
from stratos.core.tenancy.plan import Plan
from stratos_gateway.answering.draft import Draft, charged_counts

_NS_PER_US = 1000


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
    counts = _charged(draft, counted)
    amounts = price_request(draft.plan, draft.tag.model_size, counts, is_replay=is_replay, is_kept=is_kept)
    return LedgerEntry(
        request_id=draft.request_id,
        tenant=draft.tenant,
        plan=draft.plan.name,
        tag=draft.tag,
        outcome=draft.outcome,
        counts=counts,
        amounts=amounts,
        stages=_stages(draft.receipt, counted),
        times=draft.times,
        is_kept=is_kept,
        window=window_share(
            draft.plan, draft.times, amounts, has_failed=draft.is_platform_failure, waited_us=draft.waited_us
        ),
        is_external=draft.is_external,
        external_cost=draft.external_cost,
        rank=draft.rank,
        prefix_hashes=draft.prefix_hashes if counts.num_output else "",
    )


def claimed_entry(count: UsageCount, plan: Plan) -> LedgerEntry:
    """The entry of a request whose gateway died: of what the client saw nothing is known, so no promise is judged.

    What it costs is part of the charge of its window all the same.  An answer in one piece that the gateway had not got
    whole is free: nothing of it went to its client.
    """
    if count.tag.is_batch and not plan.is_batch:  # by its service tier
        plan = plan.as_batch()
    charged = charged_counts(
        count.num_prompt_tokens, count.num_cached_tokens, count.num_output_tokens, writes=count.writes
    )
    if num_prior := count.tag.num_prior_tokens:
        charged = TokenCounts(num_output=max(0, count.num_output_tokens - num_prior))
    if count.tag.is_whole and count.is_cut:
        charged = TokenCounts()
    amounts = price_request(plan, count.tag.model_size, charged)
    return LedgerEntry(
        request_id=count.key.request_id,
        tenant=count.tenant,
        plan=plan.name,
        tag=replace(count.tag, num_cached_tokens=0, num_prior_tokens=0, is_whole=False),
        outcome=RequestOutcome.RECOVERED,
        counts=charged,
        amounts=amounts,
        window=window_share(plan, NO_TIMES, amounts),
        stages=_stages(None, {count.key.attempt: count}),
        rank=claim_rank(count.key.attempt),
    )


def _charged(draft: Draft, counted: Mapping[int, UsageCount]) -> TokenCounts:
    """Counts that the gateway saw; where a client left before any, those of its prompt that workers had computed."""
    if draft.outcome is not RequestOutcome.ABORTED or draft.counts != TokenCounts():
        return draft.counts
    computed = (count.num_computed_tokens for count in counted.values() if not count.tag.num_prior_tokens)
    return TokenCounts(num_prompt=max(computed, default=0))


def _stages(receipt: Receipt | None, counted: Mapping[int, UsageCount]) -> StageTimes:
    """Waiting and computing of the attempt that began the answer; devices of all attempts."""
    queue_ns, prefill_ns = (0, 0) if receipt is None else (receipt.queue_ns, receipt.prefill_ns)
    if receipt is None and counted:
        last = counted[max(counted)]
        queue_ns, prefill_ns = last.queue_ns, last.prefill_ns
    by_attempt = tuple((attempt, counted[attempt].device_ns // _NS_PER_US) for attempt in sorted(counted))
    return StageTimes(
        queue_us=queue_ns // _NS_PER_US,
        prefill_us=prefill_ns // _NS_PER_US,
        decode_us=sum(count.decode_ns for count in counted.values()) // _NS_PER_US,
        device_us=sum(device_us for _, device_us in by_attempt),
        by_attempt=by_attempt,
    )
