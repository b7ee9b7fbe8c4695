"""How long responses are kept, and how much of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesConfig:
    """Responses that clients come back to; there are none at a gateway without a platform key."""

    store_by_default: bool = False
    """A response is kept whose request does not say ``store``, as OpenAI does; while it cannot be kept, it says
    ``store: false``."""
    kept_s: Annotated[float, Gt(0)] = 7 * 24 * 3600
    """Seconds after which a response is gone; deleting it, or its tenant, is earlier."""
    tenant_bytes: Annotated[int, Ge(0)] = 64 * 1024 * 1024
    """Sealed bytes of each tenant in Redis and in the object store; its oldest responses go first. 0 keeps none."""
    inline_bytes: Annotated[int, Ge(0)] = 32 * 1024
    """Larger ones go to the object store where there is one (``OBJECT_STORE__URL``), and Redis knows their place."""
    sweep_s: Annotated[float, Gt(0)] = 30.0
    """Seconds between two looks for objects whose response is gone."""
