"""How much may be open at once, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsConfig:
    """Bounds of open requests."""

    max_open: Annotated[int, Ge(1)] = 512
    """Requests open at once; more get 503 overloaded at once."""
    max_open_per_tenant: Annotated[int, Ge(1)] = 128
    """Requests that one tenant may have open at once; more get 429 concurrency_limit."""
    max_open_bodies: Annotated[int, Ge(1)] = 512
    """Bodies that may be on their way in at once, beside the open requests. More get 503 overloaded, unless one of a
    lower class, or of a tenant of the same class that holds more of them, gives way."""
    max_open_bodies_per_tenant: Annotated[int, Ge(1)] = 128
    """Bodies that one tenant may have on their way in at once; more get 429 concurrency_limit."""
    reads_per_min: Annotated[int, Ge(1)] = 6000
    """Calls about files, batches, responses, streams and receipts that are kept which one tenant may make a minute; a
    list counts as 10. After a pause those of ten seconds may come at once; more get 429 rate_limit_exceeded."""
    placement_timeout_s: Annotated[float, Gt(0)] = 60.0
    """Longest time without an output token, from a request's arrival or its last token, over all its attempts."""
    embedding_timeout_s: Annotated[float, Gt(0)] = 60.0
    """Longest time of one embeddings request."""
