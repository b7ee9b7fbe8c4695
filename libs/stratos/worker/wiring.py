"""Everything a worker has once it is open, wired together; role only decides which servicers face outwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from stratos.common.clock import Clock
from stratos.core.placement import WorkerRef
from stratos.kv.registry import make_receiver, make_sender
from stratos.kv.settings import TransportConfig
from stratos.worker.adapter_cache import AdapterCache, AdapterStore
from stratos.worker.decode.prefill_policy import PromptPlacer
from stratos.worker.decode.request_table import RequestTable
from stratos.worker.decode.servicer import DecodeParts
from stratos.worker.drain_gate import DrainGate
from stratos.worker.embed.embedder import Embedder
from stratos.worker.embed.servicer import EmbedParts
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.handoff.receiver import HandoffReceiver
from stratos.worker.handoff.receiver_parts import ReceiverParts
from stratos.worker.handoff.source_jobs import PrefillJobs
from stratos.worker.handoff.source_leg import SourceParts
from stratos.worker.handoff.source_peers import SourcePeers
from stratos.worker.handoff.staging_slots import StagingRoom
from stratos.worker.handoff.transports import TransportFactory, Transports
from stratos.worker.metrics import WorkerMetrics
from stratos.worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """The open resources of a worker."""

    engine: EngineClient
    transports: Transports
    adapters: AdapterCache
    peers: SourcePeers
    receiver: HandoffReceiver
    table: RequestTable
    metrics: WorkerMetrics
    source: SourceParts
    decode: DecodeParts
    embed: EmbedParts

    async def close(self) -> None:
        """Close in reverse order of use."""
        await self.table.close()
        await self.receiver.close()
        await self.adapters.close()
        await self.peers.close()
        await self.transports.close()
        await self.engine.close()


def wire_worker(
    settings: WorkerSettings,
    engine: EngineClient,
    store: AdapterStore,
    me: Callable[[], WorkerRef],
    incarnation: str,
    *,
    registry: CollectorRegistry,
    clock: Clock,
    gate: DrainGate,
) -> WorkerParts:
    """Build the parts around a started engine."""
    metrics, jobs = WorkerMetrics(registry), PrefillJobs()
    transports = Transports(_factories(settings.transport, incarnation))
    adapters = AdapterCache(store, engine, settings.adapter_cache, metrics)
    room = StagingRoom(settings.handoff.slot_wait_s)
    peers = SourcePeers(transports, room, clock)
    receiver_parts = ReceiverParts(
        me=me,
        engine=engine,
        transports=transports,
        peers=peers,
        room=room,
        metrics=metrics,
        config=settings.handoff,
        clock=clock,
    )
    receiver = HandoffReceiver(receiver_parts, adapters, gate, clock)
    placer = PromptPlacer(engine, receiver, adapters, metrics, settings.handoff)
    bounds = settings.scheduler
    table = RequestTable(
        engine,
        placer,
        clock,
        max_requests=bounds.max_num_seqs + bounds.max_num_waiting,
        orphan_ttl_s=settings.orphan_ttl_s,
    )
    engine.subscribe(jobs.on_step)
    engine.subscribe(table.on_step)
    embedder = Embedder(engine, adapters)
    engine.subscribe(embedder.on_step)
    return WorkerParts(
        engine=engine,
        transports=transports,
        adapters=adapters,
        peers=peers,
        receiver=receiver,
        table=table,
        metrics=metrics,
        source=SourceParts(
            me=me,
            engine=engine,
            jobs=jobs,
            adapters=adapters,
            transports=transports,
            metrics=metrics,
            config=settings.handoff,
            clock=clock,
        ),
        decode=DecodeParts(me=me, engine=engine, table=table, clock=clock),
        embed=EmbedParts(engine=engine, embedder=embedder, metrics=metrics, clock=clock),
    )


def _factories(config: TransportConfig, incarnation: str) -> dict[str, TransportFactory]:
    return {
        name: TransportFactory(
            receiver=lambda name=name: make_receiver(name, incarnation, config),  # type: ignore[misc]
            sender=lambda name=name: make_sender(name, config),  # type: ignore[misc]
        )
        for name in config.names
    }
