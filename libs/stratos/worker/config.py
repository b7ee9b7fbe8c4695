"""Groups of a worker's settings that the worker library itself takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffConfig:
    """When a prompt is handed off, and the deadlines of both ends."""

    local_prefill_max_tokens: Annotated[int, Ge(0)] = 16
    """An uncached tail up to this long is computed at the decode worker: one block costs less than a hand-off."""
    progress_timeout_s: Annotated[float, Gt(0)] = 1.0
    """A source that says nothing for this long is lost; it speaks every 250 ms."""
    stall_timeout_s: Annotated[float, Gt(0)] = 2.0
    """A source whose step counter stands still for this long, or for 4 of its slow steps, while it computes, hangs."""
    frame_timeout_s: Annotated[float, Gt(0)] = 10.0
    """An announced frame must be complete within this time: one slot takes milliseconds on any network."""
    abort_timeout_s: Annotated[float, Gt(0)] = 1.0
    """Longest wait for AbortAck, and for the source to leave after Ack."""
    slot_wait_s: Annotated[float, Gt(0)] = 2.0
    """Longest wait for a staging slot; a leg that holds one gives it back within a transfer's time."""
    num_slots: Annotated[int, Ge(1)] = 2
    """Credits that a leg asks for: one frame on the wire while the one before it is scattered."""
    receiver_timeout_s: Annotated[float, Gt(0)] = 10.0
    """A source's longest wait for the receiver's Grant, Credit or Ack, which come within milliseconds when it lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCacheConfig:
    """Where adapters are kept, and how much of them."""

    directory: Path = Path("/tmp/stratos-adapters")  # noqa: S108 - content is checked by digest
    """Checked adapters, one folder per digest; each worker of a host needs its own."""
    max_bytes: Annotated[int, Ge(0)] = 2 * 1024**3
    """Least recently used adapters beyond this are removed from disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageConfig:
    """How long what requests took is kept for the ledger."""

    max_counts: Annotated[int, Ge(1)] = 100_000
    """Requests whose count is kept until the ledger has it; beyond this the oldest one is dropped and counted."""
    max_age_s: Annotated[float, Gt(0)] = 24 * 3600.0
    """A count that no gateway has written for so long is dropped and counted."""
    claim_after_s: Annotated[float, Gt(0)] = 5.0
    """A count whose gateway's session broke so long ago is offered to another gateway."""
    offer_interval_s: Annotated[float, Gt(0)] = 10.0
    """Seconds after which an offer that was not acknowledged is made again, to another gateway where there is one."""
    settle_timeout_s: Annotated[float, Ge(0)] = 3.0
    """How long a worker that leaves waits for the acknowledgements of its last requests."""
