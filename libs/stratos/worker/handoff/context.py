"""What both sides of hand-offs work with, in addition to the worker's own context; and their deadlines."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratos.worker.context import WorkerContext
from stratos.worker.handoff.source_jobs import PrefillJobs
from stratos.worker.handoff.source_peers import SourcePeers
from stratos.worker.handoff.staging_slots import StagingSlots
from stratos.worker.handoff.transports import Transports


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverLegConfig:
    """Deadlines of the phases, and how many slots a leg asks for."""

    progress_timeout_s: float = 1.0
    """A source that says nothing for this long is lost; it promises a message every 250 ms."""
    stall_timeout_s: float = 2.0
    """A source that says it computes, with a step counter that stands still for this long, hangs."""
    frame_timeout_s: float = 10.0
    """An announced frame must be complete within this time."""
    abort_timeout_s: float = 1.0
    """Longest wait for AbortAck, and for the source to leave after Ack."""
    slot_wait_s: float = 2.0
    """Longest wait for a staging slot; its holder gives it back within a transfer's time."""
    num_slots: int = 2
    """Credits asked for: one frame on the wire while the one before it is scattered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """Limits of the source's side."""

    receiver_timeout_s: float = 10.0
    """Longest wait for the receiver's Grant, Credit or Ack; it answers within milliseconds when it lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffContext(WorkerContext):
    """The worker's context, and what only hand-offs need."""

    transports: Transports
    peers: SourcePeers
    staging: StagingSlots
    jobs: PrefillJobs
    receiver_config: ReceiverLegConfig
    source_config: SourceConfig = field(default_factory=SourceConfig)
