"""The workers as one gateway reaches them: routers that place, sessions that carry, and the clock of both."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratos.common.clock import Clock
from stratos.rpc.tracing import TRACING_OFF, Tracing
from stratos_gateway.generation.prompt_names import NO_PREFIX_HASHES, PrefixHashes, PrefixNames, PromptDigests
from stratos_gateway.generation.succession import Succession
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.routers.contract import Routers
from stratos_gateway.sessions.pool import SessionPool


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAccess:
    """Shared by all requests of the process."""

    routers: Routers
    prompt_digests: PromptDigests
    sessions: SessionPool
    clock: Clock
    metrics: GatewayMetrics
    placement_timeout_s: float
    takeover_timeout_s: float = 1.0
    """Most seconds for reaching a worker that may run another gateway's attempt still."""
    tracing: Tracing = TRACING_OFF
    zone: str = ""
    """Where this gateway runs."""
    region: str = ""
    """Around that zone."""
    succession: Succession = field(default_factory=Succession)
    """Waits that a newer revision ends."""
    prefix_names: PrefixNames = field(default_factory=lambda: PrefixNames(0))
    prefix_hashes: PrefixHashes = NO_PREFIX_HASHES
