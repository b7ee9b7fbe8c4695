"""How streams are recorded, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsConfig:
    """Records of streams; there are none at a gateway without a platform key."""

    tenant_bytes: Annotated[int, Ge(0)] = 32 * 1024 * 1024
    """Sealed bytes of each tenant in Redis; those that were written longest ago go first. 0 keeps no records."""
    spill_part: Annotated[float, Gt(0)] = 0.5
    """Part of ``tenant_bytes`` over which the oldest texts of records move to the object store; 1 and more waits for
    their time alone."""
    spill_after_s: Annotated[float, Ge(0)] = 600.0
    """Seconds after its last write in which a record's texts move to the object store; 0 moves none at any time, and
    still deletes what no record needs any more."""
    spill_poll_s: Annotated[float, Gt(0)] = 1.0
    """Seconds between two looks for texts that are to move."""
    spill_call_s: Annotated[float, Gt(0)] = 5.0
    """Most seconds that a request waits for texts that were moved; after that it is refused, and can ask again."""
    tenant_streams: Annotated[int, Gt(0)] = 20_000
    """Records of each tenant, whose idempotency keys are among them."""
    kept_s: Annotated[float, Gt(0)] = 3600.0
    """Seconds after its last write in which a stream can be resumed, and an idempotency key gives its answer again."""
    lease_s: Annotated[float, Gt(0)] = 2.0
    """Seconds without a sign of life after which a client that comes back takes a stream from its gateway."""
    flush_s: Annotated[float, Gt(0)] = 0.05
    """Most seconds that a token waits to be recorded; all streams of a gateway are written together."""
    follow_s: Annotated[float, Gt(0)] = 0.1
    """Seconds between two looks at a stream that runs at another gateway, by one whose client came back here."""
    attach_s: Annotated[float, Ge(0)] = 1.0
    """Most seconds in which a gateway that takes a stream over reaches the worker that runs it still, to go on with
    that; beyond, and with 0 always, what was not recorded is computed again."""
    call_s: Annotated[float, Gt(0)] = 0.3
    """Most seconds that a request waits for its record, without those in which its gateway was held up; after that it
    runs without."""
    background_running: Annotated[int, Ge(0)] = 16
    """Background responses that this gateway computes at a time; 0 leaves them to other gateways."""
    background_queued: Annotated[int, Gt(0)] = 1000
    """Background responses of one tenant that wait or run; more get 429."""
    background_s: Annotated[float, Gt(0)] = 24 * 3600.0
    """Seconds after which a background response that could not be computed has failed."""
    queue_poll_s: Annotated[float, Gt(0)] = 0.5
    """Seconds between two looks for background responses that no gateway has."""
    max_body_bytes: Annotated[int, Ge(0)] = 1024 * 1024
    """Requests with larger bodies have no record, nor have larger answers of one message."""
