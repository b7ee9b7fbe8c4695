"""Records of the fleet: what workers report, and how the router sees them.

Workers fill ``WorkerStatus``, gateways ``GatewayLoad``; the router adds liveness and bookings; the autoscaler reads
``Fleet``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from stratos.core.engine_load import EngineLoad
from stratos.core.features import PROTOCOL_VERSION
from stratos.core.gateway_load import GatewayLoad
from stratos.core.kv import KvIdentity, StagingLedger
from stratos.core.placement import Work, WorkerRef


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMark:
    """Service of a tenant as the router had it that placed its latest request at a worker, in virtual time."""

    tenant: str
    priority_class: int
    start: float
    """Before that placement; 0 for one that took no turn."""
    counter: float
    """After it."""


RESTING = "asleep"
"""Why a worker that sleeps, falls asleep or wakes may not be chosen."""


HELD = "standby"
"""Why a spare may not be chosen: it has its model in memory, and waits until a worker of its pool is missing."""


class SleepState(enum.StrEnum):
    """Whether a worker has its model in memory, and takes work."""

    AWAKE = "awake"
    FALLING_ASLEEP = "falling asleep"
    ASLEEP = "asleep"
    WAKING = "waking"
    FAILED = "failed"
    """It could not wake, and ends."""
    STANDBY = HELD
    """A spare: loaded and verified, and no part of its pool until it is woken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker as it describes itself."""

    ref: WorkerRef
    engine: EngineLoad
    """Load of its engine, with the requests that it has accepted and not submitted there yet."""
    staging: StagingLedger = field(default_factory=StagingLedger)
    num_handoffs: int = 0
    num_orphans: int = 0
    is_draining: bool = False
    not_ready_reason: str = ""
    identity: KvIdentity
    resident_adapters: frozenset[str] = frozenset()
    block_size: int = 16
    max_num_seqs: int = 0
    """Most sequences in one batch; 0 means the worker does not say."""
    version: int = 0
    """Moves when something that admission depends on has changed."""
    tenant_tokens: Mapping[str, int] = field(default_factory=dict)
    """Output tokens made since the status before this one, of the tenants that got any."""
    service_marks: tuple[ServiceMark, ...] = ()
    """Marks by other routers than the one that is told, where they have risen since the status before; at first all."""
    num_routers: int = 1
    """Routers that follow its status, and could place requests by it."""
    placing_routers: tuple[str, ...] = ()
    """Incarnations of those whose requests have come to it in the last seconds."""

    @property
    def num_seqs(self) -> int:
        """Sequences that run, wait or are promised a place in the batch."""
        engine = self.engine
        in_batch = self.max_num_seqs - engine.num_free_batch_slots if self.max_num_seqs else engine.num_running
        return in_batch + engine.num_waiting

    features: frozenset[str] = frozenset()
    """Features that it offers, see ``stratos.core.features``."""
    protocol_version: int = PROTOCOL_VERSION
    ttft_s: float = 0.0
    """From a request's arrival there to its first token, mean of the last seconds; 0 means unknown."""
    itl_s: float = 0.0
    """Between two tokens of a stream, mean of the last seconds; 0 means unknown."""
    zone: str = ""
    """Where it runs; empty when it does not say."""
    region: str = ""
    """Around that zone."""
    pool: str = ""
    """Label by which plans name it; empty where it has none."""
    is_spot: bool = False
    """It may vanish at any moment, so it takes requests of the lowest class alone."""
    host_load_ratio: float = 0.0
    """Time to load a block from host memory over the time to compute it."""
    disk_load_ratio: float = 0.0
    """The same of its disk."""
    sleep_state: SleepState = SleepState.AWAKE


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """One queue of the router."""

    model_digest: str
    priority_class: int
    num_requests: int
    num_tokens: int
    """Prompt tokens of those requests."""
    oldest_s: float
    """Seconds the oldest has waited."""
    work: Work = Work.GENERATION


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetWorker:
    """One worker as the router sees it."""

    ref: WorkerRef
    """Where discovery found it; the incarnation is empty before the first status."""
    status: WorkerStatus | None
    """Last status; ``None`` before the first one."""
    is_live: bool
    """May be chosen."""
    out_reason: str = ""
    """Why it may not be chosen; empty when it may."""
    age_s: float = 0.0
    """Seconds since the last status."""
    num_booked: int = 0
    """Placements that its status does not show yet."""
    is_clear: bool = False
    """It takes no request of the lowest class now, since others come."""

    @property
    def is_resting(self) -> bool:
        """It sleeps, or is on its way there or back: it may not be chosen, and nothing is wrong with it."""
        rests = self.status is not None and self.status.sleep_state not in (SleepState.AWAKE, SleepState.FAILED)
        return rests and self.out_reason == RESTING

    @property
    def is_well(self) -> bool:
        """It takes work, or would if it were woken."""
        return self.is_live or self.is_resting or self.out_reason == HELD

    @property
    def is_spare(self) -> bool:
        """It stands by, or did when it was last heard of: its pool is as large without it."""
        return self.status is not None and self.status.sleep_state is SleepState.STANDBY

    @property
    def is_spot(self) -> bool:
        """It takes the lowest class alone: its pool is as large without it."""
        return self.status is not None and self.status.is_spot


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Queues and workers at one moment."""

    queues: tuple[QueueDepth, ...] = ()
    workers: tuple[FleetWorker, ...] = ()
    gateways: tuple[GatewayLoad, ...] = ()
    """Gateways that have reported lately."""
