"""Bounds of WebSocket connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketsConfig:
    """WebSockets on /v1/responses; each keeps its last response in memory."""

    max_open: Annotated[int, Ge(0)] = 1024
    """Sockets of this gateway; one more is answered with 503. 0 takes none."""
    max_open_per_tenant: Annotated[int, Ge(1)] = 128
    """Sockets of one tenant; one more is answered with 429."""
    idle_s: Annotated[float, Gt(0)] = 300.0
    """A socket that has asked for nothing for this long is closed, whatever else it sends."""
    max_age_s: Annotated[float, Gt(0)] = 3600.0
    """A socket takes no further request after this time, as at OpenAI."""
    kept_bytes: Annotated[int, Ge(0)] = 1024 * 1024
    """Largest last response that a socket remembers, as JSON with the conversation before it. 0 remembers none."""
