"""Collaborators of both sides of hand-offs, in addition to the worker's own context."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.kv_transfer.port.slot_queue import SlotQueue
from stratos.worker.context import WorkerContext
from stratos.worker.handoff.source_jobs import PrefillJobs
from stratos.worker.handoff.source_peers import SourcePeers
from stratos.worker.handoff.transports import Transports
from stratos.worker.health.sent_kv import SentKv
from stratos.worker.settings import HandoffConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffContext(WorkerContext):
    """The worker's context, and what only hand-offs need."""

    transports: Transports
    peers: SourcePeers
    slot_queue: SlotQueue
    jobs: PrefillJobs
    sent: SentKv
    config: HandoffConfig
