"""How requests get into the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Le

from stratos.store.ledger.sealer import SealLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """The usage ledger; prices are in the tenants' plans."""

    interval_s: Annotated[float, Gt(0)] = 0.25
    """Seconds between two writes of what has ended since."""
    count_wait_s: Annotated[float, Ge(0)] = 1.0
    """How long the entry of an ended request waits for its worker to say what its devices took; 0.25 s is usual."""
    settle_s: Annotated[float, Ge(0)] = 0.1
    """Longest that vectors are held for their entry, which no worker could make up for: first for Redis, then as long
    for ``spool_path``. 0 holds none, and a gateway that dies before a later entry is written leaves them unbilled."""
    max_pending: Annotated[int, Ge(1)] = 100_000
    """Entries kept in memory while they can be neither written nor spooled; beyond this the oldest is dropped and
    counted."""
    spool_path: Path | None = None
    """File (mode 0600) that keeps entries while Redis is away, over a restart, too; each gateway needs its own. Unset
    keeps them in memory, and workers keep their counts in any case."""
    spool_max_bytes: Annotated[int, Ge(4096)] = 256 * 1024 * 1024
    """Largest spool: about 500,000 entries."""
    entries_kept_days: Annotated[int, Ge(32)] = 92
    """Days after which single entries are gone from Redis where no object store takes them; sums per day stay."""
    seal_interval_s: Annotated[float, Gt(0)] = 3600
    """Seconds between two segments of entries in the object store, and those that entries stay in Redis. What is told
    of a request in this time is one line of a segment; what comes later is a further line that corrects it."""
    max_unsealed: Annotated[int, Ge(2)] = 100_000
    """Entries in Redis, of all tenants, beyond which younger ones go to the object store, too; one takes 0.7 KB."""
    segment_lines: Annotated[int, Ge(1)] = 20_000
    """Most entries of a segment, about 2 MB."""
    seal_poll_s: Annotated[float, Gt(0)] = 10
    """Seconds between two looks for entries that are due."""
    redis_share: Annotated[float, Gt(0), Le(1)] = 0.8
    """Part of Redis's ``maxmemory`` from which on entries wait in the spool, and streams, responses and files are not
    kept: keys and limits need the rest."""
    receipts_max_bytes: Annotated[int, Ge(0)] = 16 * 1024 * 1024
    """Memory in Redis for receipts of requests, over all tenants; the oldest go first. 0 keeps none."""
    receipts_kept_s: Annotated[float, Gt(0)] = 24 * 3600
    """Seconds after which a receipt is gone."""
    response_cache_bytes: Annotated[int, Ge(0)] = 64 * 1024 * 1024
    """Memory for answers that are given again, of tenants whose plan has ``response_cache``; 0 keeps none."""
    shared_responses_bytes: Annotated[int, Ge(0)] = 16 * 1024 * 1024
    """Memory in Redis for such answers, sealed with the tenant's data key, over all tenants and gateways; what ends
    first goes first. 0 shares none, and so does a gateway without a platform key."""
    claim_interval_s: Annotated[float, Gt(0)] = 5.0
    """Seconds between two looks for workers that no request of this gateway has met: they may hold counts of a gateway
    that died."""
    budget_interval_s: Annotated[float, Gt(0)] = 1.0
    """Seconds between two looks at what tenants with a budget have spent at other gateways."""
    usage_reads_per_min: Annotated[int, Ge(1)] = 60
    """Questions about usage (``GET /v1/usage``, and statements and pages of entries that a tenant asks for) that each
    gateway answers one tenant a minute, one at a time. After a pause ten may follow each other at once."""
    max_prefix_hashes: Annotated[int, Ge(0), Le(256)] = 64
    """Keyed hashes of a prompt's beginnings in its entry, one for each 512 tokens, of 8 bytes: `stratos trace export`
    knows by them which prompts begin alike. 0 keeps none, and so does a gateway without a platform key."""


def seal_limits(config: LedgerConfig) -> SealLimits:
    """When entries leave Redis."""
    return SealLimits(
        interval_s=config.seal_interval_s,
        max_unsealed=config.max_unsealed,
        max_lines=config.segment_lines,
        older_days=config.entries_kept_days,
    )
