"""Messages of one Fetch stream as frozen records; see ``protos/stratos/api/kv/v1/source.proto`` for their life."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from stratos.common.errors import StratosError
from stratos.core.kv import KvGeometry, KvIdentity
from stratos.core.placement import WorkerRef
from stratos.core.requests.terms import DEFAULT_TERMS, RequestTerms
from stratos.core.trace import NO_TRACE, TraceContext
from stratos.kv_transfer.capabilities import UNKNOWN, Capabilities
from stratos.kv_transfer.transfer import FrameHeader, TransportOffer


class SourcePhase(enum.Enum):
    """Activity of a source; values are those of the proto enum."""

    UNSPECIFIED = 0
    QUEUED = 1
    LOADING_ADAPTER = 2
    READY = 3
    COMPUTING = 4
    SENDING = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Which KV is wanted, and by which worker."""

    handoff_id: str
    request_id: str
    attempt: int
    leg: str
    token_ids: tuple[int, ...]
    compute: bool
    identity: KvIdentity
    geometry: KvGeometry
    receiver: WorkerRef
    transports: tuple[str, ...]
    capabilities: Capabilities = UNKNOWN
    """Facts of the receiver; nothing is known of one that reports none."""
    terms: RequestTerms = DEFAULT_TERMS
    trace: TraceContext = NO_TRACE

    @property
    def label(self) -> str:
        """The request's name for log lines."""
        return self.trace.label(self.request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The receiver has taken its resources."""

    num_skip_tokens: int
    slots: tuple[int, ...]
    offer: TransportOffer


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """The receiver is busy."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Slots that may be written again."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nack:
    """A frame arrived damaged."""

    seq: int
    slot: int


@dataclass(frozen=True, slots=True)
class Ack:
    """COMMIT has happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """The receiver gives up."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Sign of life of the source."""

    phase: SourcePhase
    queue_position: int
    engine_step: int
    slow_step_s: float = 0.0
    """The slowest of its recent steps."""
    num_tokens: int = 0
    """Tokens of this job whose KV is there."""
    wait_s: float = 0.0
    """Expected wait until the job is computed; 0 where nothing is known."""
    compute_s: float = 0.0
    """Expected time of its own steps; 0 where nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The source will run the first chunk next."""

    transport: str
    source: WorkerRef
    capabilities: Capabilities = UNKNOWN
    """Facts of the source; nothing is known of one that reports none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A payload is complete."""

    leg: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """No frame will follow."""

    num_frames: int
    digest: bytes
    queue_ns: int
    prefill_ns: int
    num_computed_tokens: int
    num_cached_tokens: int
    device_ns: int = 0
    """The job's share of the steps that worked on it."""


@dataclass(frozen=True, slots=True)
class AbortAck:
    """Nothing is under way any more."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The source cannot serve this hand-off."""

    error: StratosError


ReceiverMessage = Intent | Grant | NoRoom | Credit | Nack | Ack | Abort
SourceMessage = Progress | Ready | FrameHeader | Sent | Finish | AbortAck | Refused
