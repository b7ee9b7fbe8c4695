"""Everything a worker has once it is open, wired together; role only decides which servicers face outwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from stratos.common.clock import Clock
from stratos.core.placement import WorkerRef
from stratos.kv.gloo import GlooConfig
from stratos.kv.receiver import ReceiverConfig
from stratos.kv.registry import TransportConfig, make_receiver, make_sender
from stratos.rpc.tracing import Tracing
from stratos.worker.adapter_cache import AdapterCache, AdapterCacheConfig, AdapterStore
from stratos.worker.decode.prefill_policy import PlacerConfig, PromptPlacer
from stratos.worker.decode.request_table import RequestTable, RequestTableConfig
from stratos.worker.decode.servicer import DecodeParts
from stratos.worker.drain_gate import DrainGate
from stratos.worker.embed.embedder import Embedder
from stratos.worker.embed.servicer import EmbedParts
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.handoff.receiver import HandoffReceiver
from stratos.worker.handoff.receiver_parts import ReceiverLegConfig, ReceiverParts
from stratos.worker.handoff.source_jobs import PrefillJobs
from stratos.worker.handoff.source_leg import SourceConfig, SourceParts
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
    tracing: Tracing,
) -> WorkerParts:
    """Build the parts around a started engine."""
    metrics, jobs = WorkerMetrics(registry), PrefillJobs()
    transports = Transports(_factories(settings, incarnation))
    config = AdapterCacheConfig(directory=settings.adapter_cache_dir, max_bytes=settings.adapter_cache_bytes)
    adapters = AdapterCache(store, engine, config, metrics)
    leg_config = ReceiverLegConfig(
        progress_timeout_s=settings.fetch_progress_timeout_s,
        stall_timeout_s=settings.fetch_stall_timeout_s,
        frame_timeout_s=settings.fetch_frame_timeout_s,
    )
    room = StagingRoom(leg_config.slot_wait_s)
    peers = SourcePeers(transports, room, clock)
    receiver_parts = ReceiverParts(
        me=me,
        engine=engine,
        transports=transports,
        peers=peers,
        room=room,
        metrics=metrics,
        config=leg_config,
        clock=clock,
        tracing=tracing,
    )
    receiver = HandoffReceiver(receiver_parts, adapters, gate, clock)
    placer_config = PlacerConfig(local_prefill_max_tokens=settings.local_prefill_max_tokens)
    placer = PromptPlacer(engine, receiver, adapters, metrics, placer_config)
    table_config = RequestTableConfig(
        max_requests=settings.max_num_seqs + settings.max_num_waiting, orphan_ttl_s=settings.orphan_ttl_s
    )
    table = RequestTable(engine, placer, clock, table_config, tracing)
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
            config=SourceConfig(),
            clock=clock,
            tracing=tracing,
        ),
        decode=DecodeParts(me=me, engine=engine, table=table, clock=clock),
        embed=EmbedParts(engine=engine, embedder=embedder, metrics=metrics, clock=clock, tracing=tracing),
    )


def _factories(settings: WorkerSettings, incarnation: str) -> dict[str, TransportFactory]:
    ring = ReceiverConfig(
        incarnation=incarnation, slot_bytes=settings.staging_slot_bytes, slots_per_pair=settings.staging_slots
    )
    config = TransportConfig(shm_directory=settings.shm_dir, gloo=GlooConfig(host=settings.gloo_host))
    return {
        name: TransportFactory(
            receiver=lambda name=name: make_receiver(name, ring, config),  # type: ignore[misc]
            sender=lambda name=name: make_sender(name, config),  # type: ignore[misc]
        )
        for name in settings.kv_transports
    }
