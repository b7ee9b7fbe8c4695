"""Usage of one attempt at a worker, and the tag by which a gateway that never saw the request can bill it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from stratos.common.changed import record
from stratos.core.requests.pins import NO_WRITES, CacheWrites
from stratos.core.requests.records import RequestKey

REVISION_DIGITS = 12
MAX_COST_TAGS = 8
MAX_COST_TAG_CHARS = 64
"""Of a name, and of a text: an entry of the ledger is kept for long."""


def cost_tags(metadata: Mapping[str, str]) -> dict[str, str]:
    """The part of a request's metadata that its entries keep: short texts, the first ones."""
    if not metadata:
        return {}
    short = {name: text for name, text in metadata.items() if 0 < max(len(name), len(text)) <= MAX_COST_TAG_CHARS}
    return dict(list(short.items())[:MAX_COST_TAGS])


@record(frozen=True, slots=True, kw_only=True)
class MeterTag:
    """Billing facts that a gateway sends along with a request, for the case that it dies before it bills it."""

    key_id: str = ""
    """API key."""
    model: str = ""
    """Base model, as clients call it."""
    revision: str = ""
    """First ``REVISION_DIGITS`` digits of its digest."""
    model_size: str = ""
    """Row of the plan's prices."""
    adapter: str = ""
    """Name of the adapter for clients; empty for the base model."""
    route: str = ""
    """"chat", "completion", "message", "response" or "embedding"."""
    http_request_id: str = ""
    """The x-request-id that the client knows."""
    arrived_unix_ms: int = 0
    """Wall clock of the gateway at the request's arrival: every entry of the request is in the ledger of that day."""
    num_cached_tokens: int = 0
    """Prompt tokens that an earlier attempt had found in a prefix cache: what is computed again is not charged."""
    num_prior_tokens: int = 0
    """Output tokens of an earlier answer that this one goes on from: they and the prompt are charged there."""
    cost_tags: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Names that its client gave to what it was for."""
    is_batch: bool = False
    """It waits for all others, at the price of that, whatever the plan of its tenant."""
    is_whole: bool = False
    """Its client gets the answer in one piece, or nothing of it."""


@record(frozen=True, slots=True, kw_only=True)
class UsageCount:
    """One attempt that has ended at a decode worker. Counts include what earlier attempts had emitted."""

    key: RequestKey
    tenant: str
    tag: MeterTag
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    """Over all choices; where it is cut, those that its gateway was sent."""
    queue_ns: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    """First to last token of this attempt."""
    device_ns: int = 0
    """Its share of the steps of all devices that worked on this attempt."""
    writes: CacheWrites = NO_WRITES
    num_computed_tokens: int = 0
    """Tokens of the prompt that were computed, where the attempt ended before its first token; else 0."""
    is_cut: bool = False
    """Its gateway was lost before it had all of the attempt's output."""
