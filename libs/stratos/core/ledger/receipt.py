"""Receipts of requests: what was decided about each one and why, for its tenant alone. No text of the tenant's.

A receipt is made of sections.  Each is noted where its facts are decided, under a name of ``SECTIONS``; a new section
is one line there, and one ``note`` where the decision falls.  What was billed is not in it: that is read from the
ledger's entries, which it names, so a receipt cannot say another amount than the ledger does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from stratos.common.changed import record
from stratos.core.ledger.entry import LedgerEntry, RequestOutcome, num_attempts

SECTIONS: Mapping[str, str] = {
    "request": "route, model, adapter and its digest, key, plan and class; when it came; grammar, ignored fields",
    "choice": "models that the request named, the one that was asked last, and those that refused it before",
    "superseded": "digests of older revisions of its model whose last worker left while it waited for one",
    "limits": "each limit of the tenant at the decision: what was claimed of it, what was left",
    "source": "who answered: workers, response_cache, external",
    "generations": "per prompt: prefix match, what is kept of it, hand-off path and times, numerics, and every attempt",
    "answer": "how it ended, with which status and error",
    "entries": "day and id of its entries in the ledger",
}
"""Sections of a receipt, in their order, and what each says."""
MAX_TEXT = 8192
"""Bytes of a receipt as it is stored; sections that do not fit are named in ``omitted``."""
MAX_ITEMS = 16
"""Items of one list, such as attempts or prompts; further ones are counted."""
OWN_RANK, ENTRY_RANK, CLAIMED_RANK = 2, 1, 0
"""A receipt by the gateway that answered stands above one that was made of the entries that it left, and that above one
of entries by what a worker counted."""


@record(frozen=True, slots=True, kw_only=True)
class RequestReceipt:
    """One request of one tenant."""

    tenant: str
    request_id: str
    """The x-request-id that the client was sent; of several requests of one id the latest is kept."""
    rank: int
    text: str
    """JSON object of its sections."""


def request_receipt(
    tenant: str, request_id: str, sections: Mapping[str, Any], *, rank: int = OWN_RANK
) -> RequestReceipt:
    """Make a receipt of noted sections.

    Raises:
        KeyError: a section that is not in the table.
    """
    if unknown := sections.keys() - SECTIONS.keys():
        raise KeyError(f"no section of a receipt: {', '.join(sorted(unknown))}")
    told = {name: sections[name] for name in SECTIONS if name in sections}
    text = orjson.dumps(told)
    if len(text) > MAX_TEXT:
        text = orjson.dumps(_fitting(told))
    return RequestReceipt(tenant=tenant, request_id=request_id, rank=rank, text=text.decode())


def _fitting(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Sections for which there is room, in their order, and the names of the others."""
    kept: dict[str, Any] = {}
    num_left = MAX_TEXT - len(orjson.dumps({"omitted": list(SECTIONS)}))
    for name, section in sections.items():
        num_bytes = len(orjson.dumps({name: section}))
        if num_bytes <= num_left:
            kept[name], num_left = section, num_left - num_bytes
    return kept | {"omitted": [name for name in sections if name not in kept]}


def entry_receipts(entries: Iterable[LedgerEntry]) -> list[RequestReceipt]:
    """Receipts of requests of which nothing but their entries is left, one for each.

    Args:
        entries: of requests that no gateway may come to give a receipt; those that no client asked for are left out.
    """
    found: dict[tuple[str, str], list[LedgerEntry]] = {}
    for entry in entries:
        if entry.tag.http_request_id:
            found.setdefault((entry.tenant, entry.tag.http_request_id), []).append(entry)
    return [_entry_receipt(tenant, request_id, some) for (tenant, request_id), some in found.items()]


def _entry_receipt(tenant: str, request_id: str, entries: Sequence[LedgerEntry]) -> RequestReceipt:
    """The receipt of one request, from its entries, one for each prompt."""
    first, tag, kept = entries[0], entries[0].tag, entries[:MAX_ITEMS]
    source = "external" if first.is_external else "workers"
    sections = {
        "request": {
            "route": tag.route,
            "model": tag.model,
            "revision": tag.revision,
            "adapter": tag.adapter,
            "key_id": tag.key_id,
            "arrived_unix_ms": tag.arrived_unix_ms,
        },
        "source": "response_cache" if first.outcome is RequestOutcome.REPLAYED else source,
        "generations": [_generation(entry) for entry in kept],
        "answer": {"outcome": first.outcome.value},
        "entries": [[entry.day, entry.request_id, entry.tag.arrived_unix_ms] for entry in kept],
    }
    rank = CLAIMED_RANK if first.outcome is RequestOutcome.RECOVERED else ENTRY_RANK
    return request_receipt(tenant, request_id, sections, rank=rank)


def _generation(entry: LedgerEntry) -> dict[str, Any]:
    counts, is_claim = entry.counts, entry.outcome is RequestOutcome.RECOVERED and not entry.is_external
    return {
        "prompt_tokens": counts.num_prompt,
        "cached_tokens": counts.num_cached,
        "output_tokens": counts.num_output,
        **({"cache_write_tokens": counts.writes.total} if counts.writes.total else {}),
        "queue_us": entry.stages.queue_us,
        "prefill_us": entry.stages.prefill_us,
        **({"num_attempts": num_attempts(entry.rank)} if is_claim else {}),
    }
