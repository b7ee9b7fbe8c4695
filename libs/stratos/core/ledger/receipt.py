"""Receipts of requests: what was decided about each one and why, for its tenant alone. No text of the tenant's.

A receipt is made of sections.  Each is noted where its facts are decided, under a name of ``SECTIONS``; a new section
is one line there, and one ``note`` where the decision falls.  What was billed is not in it: that is read from the
ledger's entries, which it names, so a receipt cannot say another amount than the ledger does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from stratos.core.ledger.usage import UsageCount

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
OWN_RANK, CLAIMED_RANK = 1, 0
"""A receipt by the gateway that answered stands above one that another gateway made of a worker's count."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    if unknown := set(sections) - set(SECTIONS):
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


def claimed_receipt(count: UsageCount, day: str) -> RequestReceipt:
    """The receipt of a request whose gateway died, from what a worker counted.

    Args:
        count: of its last attempt.
        day: of its entry in the ledger.
    """
    tag = count.tag
    sections = {
        "request": {
            "route": tag.route,
            "model": tag.model,
            "revision": tag.revision,
            "adapter": tag.adapter,
            "key_id": tag.key_id,
            "arrived_unix_ms": tag.arrived_unix_ms,
        },
        "source": "workers",
        "generations": [
            {
                "prompt_tokens": count.num_prompt_tokens,
                "cached_tokens": count.num_cached_tokens,
                "output_tokens": count.num_output_tokens,
                **({"cache_write_tokens": count.writes.total} if count.writes.total else {}),
                "queue_us": count.queue_ns // 1000,
                "prefill_us": count.prefill_ns // 1000,
                "num_attempts": count.key.attempt + 1,
            }
        ],
        "answer": {"outcome": "recovered"},
        "entries": [[day, count.key.request_id, tag.arrived_unix_ms]],
    }
    return request_receipt(count.tenant, tag.http_request_id, sections, rank=CLAIMED_RANK)
